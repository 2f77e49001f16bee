"""Where everything lies on the diagonals of a Staircase's call: chunks, what came before the call, the cache.

    [ cached chunks s-N+1 .. s-E ] [ chunks before the call, from the state, at their passes ] [ this call's tokens ]

is what a token on diagonal s sees, up to itself. A call may begin and end inside a chunk: then the first chunk's
earlier tokens come from the state, and the last one is short. Letters as in `staircase`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source
from stairwell.cores.staircase import HostAges, Staircase
from stairwell.cores.time import counts, slide
from stairwell.layers import KEEP_ALL, LayerMasks, Masks


class Diagonals:
    """One call, seen as diagonals."""

    def __init__(
        self,
        core: Staircase,
        x: Tensor,
        state: Any,
        start: Tensor | None,
        age: Tensor,
        source: Source | None,
        masks: Masks | None,
        known: HostAges,
    ) -> None:
        self.core, self.x, self.state, self.start, self.age = core, x, state, start, age
        self.source, self.masks, self.known = source, masks, known
        config = core.config
        self.C, self.E, self.L = config.chunk, config.computed, config.layers
        self.chunks = known.pieces()
        self.open = known.lowest_phase[0]  # tokens of the first chunk that came before this call
        self.newest, self.oldest = known.newest[0], known.oldest[0]
        self.begun = known.begun
        # A diagonal is all that its newest chunk, at pass 1, sees.
        in_sight = config.in_sight(1)
        self.cache_sight = next((sight for sight in in_sight if sight.pass_number is None), None)
        self.chunks_back = [sight.nearest for sight in in_sight if sight.pass_number is not None]  # the farthest first
        self.alive = [l for l in range(self.L) if masks is None or not masks.dropped[l]]

    @property
    def steps(self) -> int:
        return len(self.chunks) + self.E - 1

    def on(self, s: int) -> range:
        """The call's chunks that are on diagonal s, oldest first."""
        return range(max(s - self.E + 1, 0), min(s, len(self.chunks) - 1) + 1)

    def full(self, begin: int, slots: int) -> bool:
        """Whether every row is known to have read as many slots before the call's token `begin`."""
        return not self.begun and self.newest + begin >= slots

    def positions(self) -> Tensor:
        """p for every distance of this call, the nearest first. (distances, K)"""
        position = self.core.position
        in_sight = position.distances if self.core.config.N is not None else self.oldest + self.x.shape[1]
        return position.table(in_sight, self.masks.vectors if self.masks is not None else None)

    def slots_back(self, c: int) -> tuple[int, int]:
        """Where chunk c <= 0 lies before this call: (near, far) slots back, no farther than any row goes."""
        near, far = (0, self.open) if c == 0 else (self.open + (-c - 1) * self.C, self.open - c * self.C)
        return min(near, self.oldest), min(far, self.oldest)

    def old_inputs(self, s: int) -> list[Tensor]:
        """Layer inputs (B, o, L, D) of the chunks on diagonal s that came before this call, from the state: of chunk -d
        at pass s+1+d, and of the open chunk at pass s+1; oldest first."""
        parts = []
        for d in self.chunks_back:
            if d >= s:  # chunk s-d, at pass 1+d, came before this call, or is open
                near, far = self.slots_back(s - d)
                memory = self.state.passes[d]
                parts.append(memory[:, memory.shape[1] - far : memory.shape[1] - near])
        return [part for part in parts if part.shape[1]]

    def old_cache(self) -> Tensor:
        """The state's cache, as far as any chunk looks. (B, slots, D)"""
        slots = min(-self.cached(0)[0], self.state.cache.shape[1])
        return self.state.cache[:, self.state.cache.shape[1] - slots :]

    def cached(self, s: int) -> tuple[int, int]:
        """The cached chunks that diagonal s looks at, as slots (first, last): counted from the call's beginning,
        negative before it."""
        sight = self.cache_sight
        if sight is None:
            return 0, 0
        last = s - sight.nearest
        high = self.chunks[last][1] if last >= 0 else -self.slots_back(last)[0]
        if sight.farthest is None:
            return -self.oldest, high
        first = s - sight.farthest
        return self.chunks[first][0] if first > 0 else -self.slots_back(first)[1], high

    def kept(self, s: int, l: int) -> LayerMasks:
        """The random part of a diagonal: each chunk has that of its own pass."""
        if self.masks is None:
            return KEEP_ALL
        parts = [self.masks.at((s - c) * self.L + l, *self.chunks[c]) for c in self.on(s)]

        def joined(name: str) -> Tensor | None:
            found = [getattr(part, name) for part in parts]
            return None if found[0] is None else torch.cat(found, -2)

        return LayerMasks(joined("attention"), joined("relu"), joined("cross"), joined("residual"))

    def state_after(self, inputs: Sequence[Tensor], cached: list[Tensor]) -> Any:
        """inputs (B, t, L, D) of the newest tokens at each pass, and what is cached of the call's tokens, in parts."""
        core, state, start = self.core, self.state, self.start
        count, croppable = counts(state.count, state.croppable, start, self.age, state.max_crop)
        passes = tuple(slide(old, new, count, start) for old, new in zip(state.passes, inputs, strict=True))
        cache = core.next_cache(state, cached, count, start, self.known)
        return replace(state, count=count, croppable=croppable, passes=passes, cache=cache)
