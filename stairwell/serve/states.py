"""States that stay on the server: streams by opaque ids, with a quota, forgotten when nobody asks for them."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stairwell import text
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.serve.requests import Limits, Refused
from stairwell.stream import Stream

SLACK = 32  # tokens that can be taken back


@dataclass
class Kept:
    stream: Stream
    used: float
    lock: threading.Lock


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
        self.lock = threading.Lock()
        try:
            self.slack = SLACK
            Stream(model, vocabulary, slack=SLACK)
        except ValueError:  # a core that cannot take tokens back
            self.slack = 0

    def __len__(self) -> int:
        return len(self.kept)

    def create(self) -> tuple[str, Stream]:
        stream = Stream(self.model, self.vocabulary, slack=self.slack)
        return self._keep(stream), stream

    def read(self, name: str) -> Kept:
        """Of this id; hold its lock while it is used."""
        with self.lock:
            self._forget()
            kept = self.kept.get(name)
            if kept is None:
                raise Refused(404, "there is no such state; it may have been forgotten")
            kept.used = self.clock()
            return kept

    def fork(self, name: str) -> str:
        kept = self.read(name)
        with kept.lock:
            return self._keep(kept.stream.fork())

    def delete(self, name: str) -> None:
        with self.lock:
            if self.kept.pop(name, None) is None:
                raise Refused(404, "there is no such state; it may have been forgotten")

    def save(self, name: str) -> bytes:
        kept = self.read(name)
        with kept.lock, tempfile.TemporaryDirectory() as folder:
            kept.stream.save(Path(folder) / "state")
            return (Path(folder) / "state").read_bytes()

    def restore(self, content: bytes) -> tuple[str, Stream]:
        """A state that `save` gave out; anything else is refused. Nothing is unpickled."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state").write_bytes(content)
            try:
                stream = Stream.load(Path(folder) / "state", self.model, self.vocabulary)
                self.model.core.check_state(stream.state(), 1)
            except (UserError, ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
                message = str(error).replace(str(folder), "").replace("/state", "the state")
                raise Refused(400, message) from None
        return self._keep(stream), stream

    def _keep(self, stream: Stream) -> str:
        with self.lock:
            self._forget()
            if len(self.kept) >= self.limits.states:
                raise Refused(429, f"{self.limits.states} states are kept already; delete some, or try again later")
            name = f"state-{secrets.token_urlsafe(18)}"
            self.kept[name] = Kept(stream, self.clock(), threading.Lock())
            return name

    def _forget(self) -> None:
        before = self.clock() - self.limits.state_seconds
        for name in [name for name, kept in self.kept.items() if kept.used < before]:
            del self.kept[name]
