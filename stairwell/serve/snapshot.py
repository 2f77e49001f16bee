"""A stream after some tokens, as a value that requests share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from stairwell.state import State


@dataclass(frozen=True)
class Snapshot:
    """The state of one stream, the logits (V,) of the next token, and the most recent tokens. It never changes, so a
    fork costs nothing, and a request that continues from it is independent of all others."""

    state: State
    logits: Tensor | None = None  # None before the first token
    recent: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return int(self.state.count)

    @property
    def croppable(self) -> int:
        """Number of most recent tokens that can be removed. If any token is left, the last one is read again to get the
        logits, so the state must be able to crop it too."""
        croppable = int(self.state.croppable)
        return croppable if croppable == self.tokens else max(croppable - 1, 0)

    @cached_property
    def nbytes(self) -> int:
        return self.state.nbytes + (0 if self.logits is None else self.logits.nbytes)
