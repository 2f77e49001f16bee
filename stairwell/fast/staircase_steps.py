"""The steps of a Staircase call: which chunks, cached chunks and chunks from the state each step contains.

    [ cached chunks s-N+1 .. s-E ] [ chunks before the call, from the state, at their passes ] [ this call's tokens ]

is what a token of step s attends to, up to itself. A call may start and end inside a chunk: the first chunk's earlier
tokens then come from the state, and the last chunk is shorter. Letters as in `staircase`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source
from stairwell.cores.sliding_window import next_counts, slide
from stairwell.cores.staircase import HostCounts, Staircase, StaircaseState
from stairwell.layers import NO_MASKS, LayerMasks, Masks


class StaircaseSteps:
    """One call of a Staircase, as steps. Slots are counted back from the call's start."""

    def __init__(
        self,
        core: Staircase,
        x: Tensor,
        state: StaircaseState,
        start: Tensor | None,
        since_start: Tensor,
        source: Source | None,
        masks: Masks | None,
        counts: HostCounts,
    ) -> None:
        self.core, self.x, self.state, self.start, self.since_start = core, x, state, start, since_start
        self.source, self.masks, self.counts = source, masks, counts
        config = core.config
        self.C, self.E, self.L = config.chunk, config.computed, config.layers
        self.chunks = counts.segments()
        self.phase = counts.min_phase[0]  # tokens of the first chunk that precede this call
        self.min_count, self.max_count = counts.min_count[0], counts.max_count[0]
        # A step contains everything that its newest chunk, at pass 1, attends to.
        ranges = config.visible_ranges(1)
        self.cache_range = next((part for part in ranges if part.pass_number is None), None)
        self.chunks_back = [part.nearest for part in ranges if part.pass_number is not None]  # farthest first
        self.active_layers = [l for l in range(self.L) if masks is None or not masks.dropped[l]]

    @property
    def S(self) -> int:
        """Number of steps."""
        return len(self.chunks) + self.E - 1

    def chunks_of(self, s: int) -> range:
        """Return the call's chunks in step s, oldest first."""
        return range(max(s - self.E + 1, 0), min(s, len(self.chunks) - 1) + 1)

    def all_filled(self, start: int, slots: int) -> bool:
        """Return whether every stream is known to have filled `slots` slots before the call's token `start`."""
        return not self.counts.any_start and self.min_count + start >= slots

    def positions(self) -> Tensor:
        """Return the position embeddings of every distance of this call, nearest first. (distances, K)"""
        position = self.core.position
        distances = position.distances if self.core.config.N is not None else self.max_count + self.x.shape[1]
        return position.table(distances, self.masks.position_index if self.masks is not None else None)

    def slots_back(self, c: int) -> tuple[int, int]:
        """Return the slots (near, far) of chunk c <= 0 before this call, limited to the longest stream."""
        near, far = (0, self.phase) if c == 0 else (self.phase + (-c - 1) * self.C, self.phase - c * self.C)
        return min(near, self.max_count), min(far, self.max_count)

    def state_inputs(self, s: int) -> list[Tensor]:
        """Return the layer inputs (B, o, L, D) of the chunks of step s that precede this call, oldest first: chunk -d
        at pass s+1+d, and the earlier tokens of the call's first chunk at pass s+1."""
        parts = []
        for d in self.chunks_back:
            if d >= s:  # chunk s-d, at pass 1+d, is not after the call's first chunk
                near, far = self.slots_back(s - d)
                memory = self.state.passes[d]
                parts.append(memory[:, memory.shape[1] - far : memory.shape[1] - near])
        return [part for part in parts if part.shape[1]]

    def state_cache(self) -> Tensor:
        """Return the part of the state's cache that is visible to any chunk. (B, slots, D)"""
        slots = min(-self.cached(0)[0], self.state.cache.shape[1])
        return self.state.cache[:, self.state.cache.shape[1] - slots :]

    def cached(self, s: int) -> tuple[int, int]:
        """Return the positions (first, last) of the cached chunks visible to step s, relative to the call's start."""
        cache_range = self.cache_range
        if cache_range is None:
            return 0, 0
        last_chunk = s - cache_range.nearest
        last = self.chunks[last_chunk][1] if last_chunk >= 0 else -self.slots_back(last_chunk)[0]
        if cache_range.farthest is None:
            return -self.max_count, last
        first_chunk = s - cache_range.farthest
        return self.chunks[first_chunk][0] if first_chunk > 0 else -self.slots_back(first_chunk)[1], last

    def dropout_masks(self, s: int, l: int) -> LayerMasks:
        """Return the dropout masks of step s, where each chunk has those of its own pass."""
        if self.masks is None:
            return NO_MASKS
        parts = [self.masks.for_layer((s - c) * self.L + l, *self.chunks[c]) for c in self.chunks_of(s)]

        def concat(name: str) -> Tensor | None:
            masks = [getattr(part, name) for part in parts]
            return None if masks[0] is None else torch.cat(masks, -2)

        return LayerMasks(concat("attention"), concat("relu"), concat("cross"), concat("residual"))

    def next_state(self, inputs: Sequence[Tensor], cached: list[Tensor]) -> Any:
        """Return the state after the call, given the layer inputs (B, t, L, D) of the newest tokens at each pass, and
        the segments of the call's cached tokens."""
        core, state, start = self.core, self.state, self.start
        count, croppable = next_counts(state.count, state.croppable, start, self.since_start, state.max_crop)
        passes = tuple(slide(old, new, count, start) for old, new in zip(state.passes, inputs, strict=True))
        cache = core.next_cache(state, cached, count, start, self.counts)
        return replace(state, count=count, croppable=croppable, passes=passes, cache=cache)
