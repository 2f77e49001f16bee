"""States that stay on the server: what a model remembers of a text, by opaque ids, with quotas, forgotten when nobody
asks for them.

A `Past` is a value, so that forking costs nothing, whoever goes on from one is not touched by what others do with it,
and an id that is saved and restored goes on bit for bit.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from stairwell import text
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.serve.requests import Limits, Refused
from stairwell.state import State
from stairwell.stream import RECENT, Stream, with_max_crop

SLACK = 32  # tokens that can be taken back
HEADER, HEADER_EACH = 16_384, 512  # bytes of a file's description at most: of all, and of each tensor of a state
NO_STATE = "there is no such state; it may have been forgotten"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        croppable = int(self.state.croppable)
        return croppable if croppable == self.tokens else max(croppable - 1, 0)

    @cached_property
    def nbytes(self) -> int:
        return self.state.nbytes + (0 if self.logits is None else self.logits.nbytes)


@dataclass
class Kept:
    past: Past
    used: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by who changes it


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
            self.fresh = Past(model.init_state(1, max_crop=SLACK + 1))
        except ValueError:  # a core that cannot take tokens back
            self.fresh = Past(model.init_state(1))

    def __len__(self) -> int:
        with self.lock:
            self._forget()
            return len(self.kept)

    def keep(self, past: Past) -> str:
        """Keep a state; its new id."""
        with self.lock:
            self.check_room(past.nbytes)
            name = f"state-{secrets.token_urlsafe(18)}"
            self.kept[name] = Kept(past, self.clock())
            return name

    def read(self, name: str) -> Past:
        return self._find(name).past

    async def change(self, name: str, change: Callable[[Past], Awaitable[Past]]) -> Past:
        """All of a change or, if it cannot be done, nothing of it. Changes of one state wait for each other."""
        kept = self._find(name)
        async with kept.lock:
            past = await change(kept.past)
            with self.lock:
                self._find(name)  # it may have been deleted meanwhile
                self.check_room(past.nbytes - kept.past.nbytes, 0)
                kept.past = past
            return past

    def cropped(self, past: Past, tokens: int) -> tuple[Past, Sequence[int]]:
        """A state without its last tokens, as if they had never been read, once it has read the tokens given here."""
        if tokens > past.croppable:
            raise Refused(
                409, f"cannot take back {tokens} tokens: of the {past.tokens} that were read {past.croppable} can be"
            )
        if not tokens:
            return past, ()
        if tokens == past.tokens:
            return Past(past.state.crop(tokens)), ()
        kept = past.recent[: len(past.recent) - tokens]
        return Past(past.state.crop(tokens + 1), None, kept[:-1]), kept[-1:]

    def fork(self, name: str) -> tuple[str, Past]:
        past = self.read(name)
        return self.keep(past), past

    def delete(self, name: str) -> None:
        with self.lock:
            if self.kept.pop(name, None) is None:
                raise Refused(404, NO_STATE)

    def save(self, name: str) -> bytes:
        """A stream's file, which `Stream.load` and `restore` read."""
        past = self.read(name)
        stream = Stream.at(self.model, self.vocabulary, past.state, past.logits, past.recent)
        with temporary_folder() as folder:
            stream.save(folder / "state")
            return (folder / "state").read_bytes()

    def restore(self, content: bytes) -> Past:
        """A state that `save` gave out; anything else is refused. Nothing is unpickled."""
        self.check_room(self.fresh.nbytes)
        check_header(content, HEADER + HEADER_EACH * len(list(self.fresh.state.tensors())))
        with temporary_folder() as folder:
            (folder / "state").write_bytes(content)
            try:
                stream = Stream.load(folder / "state", self.model, self.vocabulary)
                state = stream.state()
                self._check(state)
                max_crop = min(state.max_crop, self.fresh.state.max_crop)
                past = Past(
                    with_max_crop(self.model.core, state, max_crop), stream.logits, tuple(stream.recent[-RECENT:])
                )
            except (UserError, ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
                message = str(error).replace(str(folder), "").replace("/state", "the state")
                raise Refused(400, message) from None
        return past

    def _check(self, state: State) -> None:
        """`Stream.load` checked what came from outside; reading its last tokens again may still overflow."""
        if not all(tensor.isfinite().all() for _, tensor in state.tensors()):
            raise UserError("/state is damaged: it holds NaN or infinity")

    def _find(self, name: str) -> Kept:
        with self.lock:
            self._forget()
            kept = self.kept.get(name)
            if kept is None:
                raise Refused(404, NO_STATE)
            kept.used = self.clock()
            return kept

    def check_room(self, more: int, states: int = 1) -> None:
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


def check_header(content: bytes, most: int) -> None:
    """A safetensors file describes its tensors first: a long description is refused before it is parsed."""
    size = int.from_bytes(content[:8], "little")
    if size > most:
        raise Refused(400, f"the state is damaged: its header has {size} bytes, and one of this model {most} at most")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that goes away; if its disk is full, the client is told."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    except (OSError, SafetensorError) as problem:
        if getattr(problem, "errno", None) in FULL or "No space left" in str(problem):
            raise Refused(507, "the server has no disk space left for the file of a state; try again later") from None
        raise


def beginning(model: LanguageModel, past: Past) -> tuple[State, Tensor | None, Sequence[int]]:
    """A state as the batch takes it, which takes nothing back."""
    return with_max_crop(model.core, past.state, 0), past.logits, past.recent
