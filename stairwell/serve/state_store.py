"""Snapshots that stay on the server under random ids, with quotas; idle ones are evicted."""

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
from pathlib import Path

from safetensors import SafetensorError

from stairwell import text
from stairwell.decode.sampling import REPETITION_WINDOW
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.serve.limits import Limits, RequestError
from stairwell.serve.snapshot import Snapshot
from stairwell.state import with_max_crop
from stairwell.stream import Stream

MAX_CROP = 32  # tokens
HEADER_BYTES, HEADER_BYTES_PER_TENSOR = 16_384, 512  # largest header of a state file
NOT_FOUND = "there is no such state; it may have been evicted"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class StoredState:
    snapshot: Snapshot
    last_used: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while it is changed


class StateStore:
    def __init__(
        self,
        model: LanguageModel,
        vocabulary: text.Vocabulary,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.vocabulary, self.limits, self.clock = model, vocabulary, limits, clock
        self.states: dict[str, StoredState] = {}
        self.lock = threading.RLock()
        try:
            # `crop` reads the last remaining token again to get the logits, so the state must crop one token more.
            self.initial = Snapshot(model.init_state(1, max_crop=MAX_CROP + 1))
        except ValueError:  # a core without crop
            self.initial = Snapshot(model.init_state(1))

    def __len__(self) -> int:
        with self.lock:
            self._evict()
            return len(self.states)

    def add(self, snapshot: Snapshot) -> str:
        """Store a snapshot and return its new id."""
        with self.lock:
            self.check_quota(snapshot.nbytes)
            id = f"state-{secrets.token_urlsafe(18)}"
            self.states[id] = StoredState(snapshot, self.clock())
            return id

    def get(self, id: str) -> Snapshot:
        return self._find(id).snapshot

    async def change(self, id: str, change: Callable[[Snapshot], Awaitable[Snapshot]]) -> Snapshot:
        """Replace a snapshot by the changed one, or raise an error and keep it. Changes of one state run one after the
        other."""
        stored = self._find(id)
        async with stored.lock:
            snapshot = await change(stored.snapshot)
            with self.lock:
                self._find(id)  # it may have been deleted in the meantime
                self.check_quota(snapshot.nbytes - stored.snapshot.nbytes, 0)
                stored.snapshot = snapshot
            return snapshot

    def fork(self, id: str) -> tuple[str, Snapshot]:
        """Store the snapshot under another id; return both."""
        snapshot = self.get(id)
        return self.add(snapshot), snapshot

    def delete(self, id: str) -> None:
        with self.lock:
            if self.states.pop(id, None) is None:
                raise RequestError(404, NOT_FOUND)

    def save(self, id: str) -> bytes:
        """Return the content of a stream file, which `Stream.load` and `restore` read."""
        snapshot = self.get(id)
        stream = Stream.from_state(self.model, self.vocabulary, snapshot.state, snapshot.logits, snapshot.recent)
        with temporary_folder() as folder:
            stream.save(folder / "state")
            return (folder / "state").read_bytes()

    def restore(self, content: bytes) -> Snapshot:
        """Return the snapshot in a file that `save` made. Nothing is unpickled."""
        self.check_quota(self.initial.nbytes)
        check_header(content, HEADER_BYTES + HEADER_BYTES_PER_TENSOR * len(list(self.initial.state.tensors())))
        with temporary_folder() as folder:
            (folder / "state").write_bytes(content)
            try:
                stream = Stream.load(folder / "state", self.model, self.vocabulary)
                state = stream.state()
                # The file was checked, but reading its most recent tokens again may overflow.
                if not all(tensor.isfinite().all() for _, tensor in state.tensors()):
                    raise UserError("/state is damaged: it has NaN or infinity")
                max_crop = min(state.max_crop, self.initial.state.max_crop)
                state = with_max_crop(self.model.core, state, max_crop)
                return Snapshot(state, stream.logits, tuple(stream.recent[-REPETITION_WINDOW:]))
            except (UserError, ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
                message = str(error).replace(str(folder), "").replace("/state", "the state")
                raise RequestError(400, message) from None

    def check_quota(self, more_bytes: int, more_states: int = 1) -> None:
        with self.lock:
            self._evict()
            if len(self.states) + more_states > self.limits.states:
                raise RequestError(
                    429, f"{self.limits.states} states are stored already; delete some, or try again later"
                )
            stored_bytes = sum(stored.snapshot.nbytes for stored in self.states.values())
            if more_bytes > 0 and stored_bytes + more_bytes > self.limits.total_state_bytes:
                raise RequestError(
                    429,
                    f"all states together would exceed {self.limits.total_state_bytes} bytes; delete some, or try "
                    "again later",
                )

    def _find(self, id: str) -> StoredState:
        with self.lock:
            self._evict()
            stored = self.states.get(id)
            if stored is None:
                raise RequestError(404, NOT_FOUND)
            stored.last_used = self.clock()
            return stored

    def _evict(self) -> None:
        oldest = self.clock() - self.limits.state_seconds
        for id in [id for id, stored in self.states.items() if stored.last_used < oldest]:
            del self.states[id]


def crop(snapshot: Snapshot, tokens: int) -> tuple[Snapshot, Sequence[int]]:
    """Remove the most recent tokens. Return the cropped snapshot, and tokens to read again to get its logits."""
    if tokens > snapshot.croppable:
        raise RequestError(
            409,
            f"cannot crop {tokens} tokens: the state has read {snapshot.tokens}, and at most {snapshot.croppable} can "
            "be cropped",
        )
    if not tokens:
        return snapshot, ()
    if tokens == snapshot.tokens:
        return Snapshot(snapshot.state.crop(tokens)), ()
    left = snapshot.recent[: len(snapshot.recent) - tokens]
    return Snapshot(snapshot.state.crop(tokens + 1), None, left[:-1]), left[-1:]


def check_header(content: bytes, limit: int) -> None:
    """Reject a safetensors file with a long header before it is parsed."""
    size = int.from_bytes(content[:8], "little")
    if size > limit:
        raise RequestError(
            400, f"the state is damaged: its header has {size} bytes; for this model it has at most {limit}"
        )


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder. A full disk becomes a `RequestError`."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) in DISK_FULL or "No space left" in str(error):
            raise RequestError(507, "the server has no disk space left for a state file; try again later") from None
        raise
