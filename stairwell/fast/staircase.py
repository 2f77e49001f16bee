"""The fast engine of the Staircases: the walk of `stairwell.cores.staircase` by diagonals, as the paper draws it.

    H_{s-E+1}^E, ..., H_{s-1}^2, H_s^1 = TC(H_{s-E+1}^{E-1}, ..., H_{s-1}^1, H_s^0)                 diagonal s

Chunk c is at pass n = s-c+1 on diagonal s. What it sees there, chunk c-d at pass n+d, lies on the same diagonal; what
it sees in the cache are the chunks just before. So a diagonal is a plain causal run of up to E*C tokens that goes
through the layers once, after slots that are already known:

    [ cached chunks s-N+1 .. s-E ] [ chunks before the call, from the state, at their passes ] [ this call's tokens ]

n chunks take n + E - 1 diagonals instead of n*E passes one by one. A call may begin and end inside a chunk: then the
first chunk's earlier tokens come from the state, and the last one is short. Keys and values are projected once for
each chunk, pass and layer. Rows must be at the same place of their chunks; otherwise the reference runs.
Letters: B rows, T tokens, C chunk, N chunks in sight, M cached after, E = max(M, 1) computed passes, L layers, D width.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source
from stairwell.cores.staircase import FOREVER, Staircase, spans
from stairwell.cores.time import Track, ages, counts, slide, stack
from stairwell.fast.banded import Band, FastLayer, ramp
from stairwell.layers import KEEP_ALL, LayerMasks, Masks


def walk(
    core: Staircase,
    x: Tensor,
    state: Any,
    start: Tensor | None = None,
    source: Source | None = None,
    masks: Masks | None = None,
) -> tuple[Tensor, Any]:
    """The reference's walk, by diagonals where all rows can climb together."""
    if torch.is_autocast_enabled(x.device.type):
        return core.walk(x, state, start, source, masks)  # autocast chooses types op by op, so it needs the ops
    age = ages(state.count, start, x.shape[1])
    phase = age % core.config.chunk
    if not bool((phase == phase[:1]).all()):
        say_why_not()
        return core.walk(x, state, start, source, masks)
    return Wavefront(core, x, state, start, age, source, masks).climb()


@cache
def say_why_not() -> None:
    """Once a process."""
    logging.getLogger("stairwell").warning(
        "rows of this batch are at different places of their chunks, so they cannot climb together: "
        "the reference engine runs for such calls"
    )


class Wavefront:
    """One call: what is known before it, and what the diagonals leave behind."""

    def __init__(
        self,
        core: Staircase,
        x: Tensor,
        state: Any,
        start: Tensor | None,
        age: Tensor,
        source: Source | None,
        masks: Masks | None,
    ) -> None:
        self.core, self.x, self.state, self.start, self.age, self.masks = core, x, state, start, age, masks
        config = core.config
        self.C, self.E, self.L = config.chunk, config.computed, config.layers
        self.chunks = list(spans(age, config.chunk))
        self.open = int(age[0, 0]) % config.chunk  # tokens of the first chunk that came before this call
        self.youngest, self.oldest = int(age[:, 0].min()), int(age[:, 0].max())
        self.begun = start is not None and bool(start.any())
        alive = [l for l in range(self.L) if masks is None or not masks.dropped[l]]
        sources, tokens = core.source_slots(source), x.shape[0] * x.shape[1]
        self.layers = {l: FastLayer(core.layers[l], sources[l], tokens) for l in alive}
        self.reach = {l: core.reach(core.layers[l], FOREVER) for l in alive}
        self.vectors = self.learned_distances()
        self.ramps = {l: ramp(core.layers[l], 0, self.vectors.shape[0]) for l in alive}
        # What the cache holds: raw, and as each layer sees it.
        self.cached: list[Tensor] = []
        self.seen_cache: dict[int, Track] = {l: self.old_cache(l) for l in alive} if core.caches else {}
        self.inputs: list[list[list[Tensor]]] = [[[] for _ in range(self.L)] for _ in range(self.E)]  # by pass, layer

    def old_cache(self, l: int) -> Track:
        """The state's cache through a layer's norm and projections: (B, 1, slots, 2HK), as far as any chunk looks."""
        slots = min(self.slots_back(1 - self.core.config.N)[1], self.state.cache.shape[1])
        memory = self.state.cache[:, self.state.cache.shape[1] - slots :]
        return Track(self.layers[l].keys_values(memory)[:, None])

    def learned_distances(self) -> Tensor:
        """p for every distance of this call; those beyond the last learned one share it."""
        vectors = self.core.position.vectors
        missing = self.oldest + self.x.shape[1] - vectors.shape[0]
        if missing <= 0 or self.core.config.N < FOREVER:
            return vectors
        return torch.cat([vectors, vectors[-1:].expand(missing, -1)])

    def climb(self) -> tuple[Tensor, Any]:
        """All diagonals: at each the next chunk steps on, and the oldest steps off after its last pass."""
        n, E, M = len(self.chunks), self.E, self.core.config.M
        outputs: list[Tensor] = []
        h = self.x[:, :0]
        for s in range(n + E - 1):
            if s < n:
                first, last = self.chunks[s]
                h = torch.cat([h, self.x[:, first:last]], 1) if h.shape[1] else self.x[:, first:last]
            h = self.diagonal(s, h)
            oldest = s - E + 1
            if oldest >= 0:
                first, last = self.chunks[oldest]
                done, h = h[:, : last - first], h[:, last - first :]
                outputs.append(done)
                self.into_cache(oldest, done if M > 0 else self.x[:, first:last])
        return stack(outputs), self.state_after()

    def diagonal(self, s: int, h: Tensor) -> Tensor:
        """h (B, t, D): the chunks on diagonal s, oldest first, before their pass -> after it"""
        low, high = max(s - self.E + 1, 0), min(s, len(self.chunks) - 1)
        begin, end = self.chunks[low][0], self.chunks[high][1]
        sizes = [last - first for first, last in self.chunks[low : high + 1]]
        before = self.old_inputs(s) if low == 0 else None
        for l in range(self.L):
            for c, part in zip(range(low, high + 1), h.split(sizes, 1), strict=True):
                self.inputs[s - c][l].append(part)
            if l not in self.layers:
                continue
            olds = self.slots_before(s, l, before)
            full = not self.begun and self.youngest + begin >= sum(old.shape[1] for old in olds)
            kept = self.kept(s, l, low, high)
            age = None if full else self.age[:, begin:end]
            band = Band(self.core.config.heads, 0, self.reach[l], age, kept.attention)
            h = self.layers[l](h, olds, self.vectors, self.ramps[l], band, kept)
        return h

    def slots_before(self, s: int, l: int, old: Tensor | None) -> list[Tensor]:
        """Keys and values of all that layer l sees before this call's tokens on diagonal s, in parts, oldest first."""
        most = self.reach[l]  # a layer whose span is short needs no keys from farther away
        if old is None:
            return self.cache_in_sight(s, l, most)
        near = old[:, max(old.shape[1] - most, 0) :, l]
        return [*self.cache_in_sight(s, l, most - near.shape[1]), self.layers[l].keys_values(near)]

    def old_inputs(self, s: int) -> Tensor | None:
        """Layer inputs (B, o, L, D) of the chunks on diagonal s that came before this call, from the state: of chunk -d
        at pass s+1+d, and of the open chunk at pass s+1."""
        parts = []
        for d in range(self.E - 1 - s, -1, -1):
            near, far = self.slots_back(-d)
            if near < far:
                memory = self.state.passes[s + d]
                parts.append(memory[:, memory.shape[1] - far : memory.shape[1] - near])
        return stack(parts) if parts else None

    def slots_back(self, c: int) -> tuple[int, int]:
        """Where chunk c <= 0 lies before this call: (near, far) slots back, no farther than any row goes."""
        near, far = (0, self.open) if c == 0 else (self.open + (-c - 1) * self.C, self.open - c * self.C)
        return min(near, self.oldest), min(far, self.oldest)

    def cache_in_sight(self, s: int, l: int, most: int) -> list[Tensor]:
        """Keys and values of the cached chunks s-N+1 .. s-E, oldest first, no more than the `most` newest slots."""
        first, last = s - self.core.config.N + 1, s - self.E
        if not self.core.caches or first > last:
            return []
        near = self.slots_back(last)[0] if last < 0 else 0
        # The cache ends with chunk `last`, or with the call's beginning if that comes later.
        end = self.chunks[last][1] if last >= 0 else 0
        far = end - self.chunks[first][0] if first > 0 else end + self.slots_back(first)[1]
        return [view[:, 0] for view in self.seen_cache[l].back(near, min(far, near + most))]

    def into_cache(self, c: int, final: Tensor) -> None:
        """Put chunk c into the cache as later chunks see it. final (B, t, D)"""
        if not self.core.caches:
            return
        self.cached.append(final)
        if c + 1 < len(self.chunks):  # nobody comes after the last chunk of a call
            for l, seen in self.seen_cache.items():
                seen.append(self.layers[l].keys_values(final)[:, None])

    def kept(self, s: int, l: int, low: int, high: int) -> LayerMasks:
        """The random part of a diagonal: each chunk has that of its own pass."""
        if self.masks is None:
            return KEEP_ALL
        parts = [self.masks.at((s - c) * self.L + l, *self.chunks[c]) for c in range(low, high + 1)]

        def joined(name: str) -> Tensor | None:
            found = [getattr(part, name) for part in parts]
            return None if found[0] is None else torch.cat(found, -2)

        return LayerMasks(joined("attention"), joined("relu"), joined("cross"))

    def state_after(self) -> Any:
        core, state, start, T = self.core, self.state, self.start, self.x.shape[1]
        count, room = counts(state.count, state.room, start, self.age, state.slack)
        remembered = []
        for old, by_layer in zip(state.passes, self.inputs, strict=True):
            new = torch.stack([newest(parts, min(old.shape[1], T)) for parts in by_layer], 2)
            remembered.append(slide(old, new, count, start))
        cache = core.next_cache(state, self.cached, count, start)
        return replace(state, count=count, room=room, passes=tuple(remembered), cache=cache)


def newest(parts: list[Tensor], needed: int) -> Tensor:
    """The last `needed` tokens of parts (B, t, D) along time, without touching the others."""
    chosen: list[Tensor] = []
    for part in reversed(parts):
        if needed > 0:
            chosen.append(part[:, max(part.shape[1] - needed, 0) :])
            needed -= part.shape[1]
    return stack(chosen[::-1]) if chosen else parts[0][:, :0]
