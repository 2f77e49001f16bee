"""States that stay on the server: what a model remembers of a text, by opaque ids, with quotas, forgotten when nobody
asks for them.

A `Past` is a value, so that forking costs nothing, whoever goes on from one is not touched by what others do with it,
and an id that is saved and restored goes on bit for bit.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from stairwell import text
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.serve.requests import Limits, Refused
from stairwell.state import State
from stairwell.stream import AT_ONCE, RECENT, Stream, with_slack

SLACK = 32  # tokens that can be taken back
LONGEST = 1 << 48  # tokens that nobody has read; counts stay far from where they overflow


@dataclass(frozen=True)
class Past:
    """What was read: the state after it, the logits (V,) of what follows, the last tokens."""

    state: State
    logits: Tensor | None = None  # none before the first token
    recent: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return int(self.state.count)

    @property
    def croppable(self) -> int:
        """How many tokens can be taken back: all, or those after which one more is left, to be read again."""
        room = int(self.state.room)
        return room if room == self.tokens else max(room - 1, 0)

    @cached_property
    def nbytes(self) -> int:
        return self.state.nbytes + (0 if self.logits is None else self.logits.nbytes)


@dataclass
class Kept:
    past: Past
    used: float
    lock: threading.Lock = field(default_factory=threading.Lock)  # held by who changes it


class States:
    def __init__(
        self,
        model: LanguageModel,
        vocabulary: text.Vocabulary,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.vocabulary, self.limits, self.clock = model, vocabulary, limits, clock
        self.kept: dict[str, Kept] = {}
        self.lock = threading.RLock()
        try:
            # What follows a cropped text is found by reading its last token again, so one more is kept.
            self.fresh = Past(model.init_state(1, slack=SLACK + 1))
        except ValueError:  # a core that cannot take tokens back
            self.fresh = Past(model.init_state(1))

    def __len__(self) -> int:
        with self.lock:
            self._forget()
            return len(self.kept)

    def create(self, ids: Sequence[int]) -> tuple[str, Past]:
        self._check_room(self.fresh.nbytes)
        past = self._read(self.fresh, ids)
        return self._keep(past), past

    def read(self, name: str) -> Past:
        return self._find(name).past

    def feed(self, name: str, ids: Sequence[int]) -> Past:
        return self._change(name, lambda past: self._read(past, ids))

    def crop(self, name: str, tokens: int) -> Past:
        """Take the last tokens back, as if they had never been read."""

        def take_back(past: Past) -> Past:
            if tokens > past.croppable:
                raise Refused(
                    409,
                    f"cannot take back {tokens} tokens: of the {past.tokens} that were read {past.croppable} can be",
                )
            if not tokens:
                return past
            if tokens == past.tokens:
                return Past(past.state.crop(tokens))
            kept = past.recent[: len(past.recent) - tokens]
            return self._read(Past(past.state.crop(tokens + 1), None, kept[:-1]), kept[-1:])

        return self._change(name, take_back)

    def fork(self, name: str) -> tuple[str, Past]:
        past = self.read(name)
        return self._keep(past), past

    def delete(self, name: str) -> None:
        with self.lock:
            if self.kept.pop(name, None) is None:
                raise Refused(404, "there is no such state; it may have been forgotten")

    def save(self, name: str) -> bytes:
        """A stream's file, which `Stream.load` and `restore` read."""
        past = self.read(name)
        stream = Stream.at(self.model, self.vocabulary, past.state, past.logits, past.recent)
        with tempfile.TemporaryDirectory() as folder:
            stream.save(Path(folder) / "state")
            return (Path(folder) / "state").read_bytes()

    def restore(self, content: bytes) -> tuple[str, Past]:
        """A state that `save` gave out; anything else is refused. Nothing is unpickled."""
        self._check_room(self.fresh.nbytes)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state").write_bytes(content)
            try:
                stream = Stream.load(Path(folder) / "state", self.model, self.vocabulary)
                state = stream.state()
                self._check(state, stream)
                slack = min(state.slack, self.fresh.state.slack)
                past = Past(with_slack(self.model.core, state, slack), stream.logits, tuple(stream.recent[-RECENT:]))
            except (UserError, ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
                message = str(error).replace(str(folder), "").replace("/state", "the state")
                raise Refused(400, message) from None
        return self._keep(past), past

    def _check(self, state: State, stream: Stream) -> None:
        """Of what came from outside: it is this model's, all numbers, and says how much it has read."""
        self.model.core.check_state(state, 1)
        if not all(tensor.isfinite().all() for _, tensor in state.tensors()):
            raise UserError("/state is damaged: it holds NaN or infinity")
        count, room = int(state.count), int(state.room)
        if not 0 <= count < LONGEST or not 0 <= room <= min(state.slack, count):
            raise UserError(f"/state is damaged: it has read {count} tokens and can take back {room}")
        if (count > 0) != (stream.logits is not None) or len(stream.recent) < min(room, RECENT):
            raise UserError("/state is damaged: what it read last is missing")

    @torch.no_grad()
    def _read(self, past: Past, ids: Sequence[int]) -> Past:
        state, logits = past.state, past.logits
        device = next(self.model.parameters()).device
        for first in range(0, len(ids), AT_ONCE):
            x, state = self.model.hidden(torch.tensor([ids[first : first + AT_ONCE]], device=device), state)
            logits = self.model.head(x[0, -1:])[0].clone()
        return Past(state, logits, (*past.recent, *ids)[-RECENT:])

    def _change(self, name: str, change: Callable[[Past], Past]) -> Past:
        """All of a change or, if it cannot be done, nothing of it."""
        kept = self._find(name)
        with kept.lock:
            try:
                past = change(kept.past)
            except UserError as mistake:
                raise Refused(400, str(mistake)) from None
            with self.lock:
                self._check_room(past.nbytes - kept.past.nbytes, 0)
                kept.past = past
            return past

    def _find(self, name: str) -> Kept:
        with self.lock:
            self._forget()
            kept = self.kept.get(name)
            if kept is None:
                raise Refused(404, "there is no such state; it may have been forgotten")
            kept.used = self.clock()
            return kept

    def _keep(self, past: Past) -> str:
        with self.lock:
            self._check_room(past.nbytes)
            name = f"state-{secrets.token_urlsafe(18)}"
            self.kept[name] = Kept(past, self.clock())
            return name

    def _check_room(self, more: int, states: int = 1) -> None:
        with self.lock:
            self._forget()
            if len(self.kept) + states > self.limits.states:
                raise Refused(429, f"{self.limits.states} states are kept already; delete some, or try again later")
            if more > 0 and sum(kept.past.nbytes for kept in self.kept.values()) + more > self.limits.states_bytes:
                raise Refused(
                    429, f"the states would have more than {self.limits.states_bytes} bytes; delete some, or try later"
                )

    def _forget(self) -> None:
        before = self.clock() - self.limits.state_seconds
        for name in [name for name, kept in self.kept.items() if kept.used < before]:
            del self.kept[name]


def beginning(model: LanguageModel, past: Past) -> tuple[State, Tensor | None, Sequence[int]]:
    """A state as the batch takes it, which takes nothing back."""
    return with_slack(model.core, past.state, 0), past.logits, past.recent
