"""The fast engine of the Staircases: the walk of `stairwell.cores.staircase` by diagonals, as the paper draws it.

    H_{s-E+1}^E, ..., H_{s-1}^2, H_s^1 = TC(H_{s-E+1}^{E-1}, ..., H_{s-1}^1, H_s^0)                 diagonal s

Chunk c is at pass n = s-c+1 on diagonal s. What it sees there, chunk c-d at pass n+d, lies on the same diagonal; what
it sees in the cache are the chunks just before. So a diagonal is a plain causal run of up to E*C tokens that goes
through the layers once, after slots that are already known:

    [ cached chunks s-N+1 .. s-E ] [ chunks before the call, from the state, at their passes ] [ this call's tokens ]

n chunks take n + E - 1 diagonals instead of n*E passes one by one. A call may begin and end inside a chunk: then the
first chunk's earlier tokens come from the state, and the last one is short. Keys and values are projected once for
each chunk, pass and layer. Rows must be at the same place of their chunks; otherwise the reference runs.
Where diagonals are short, PyTorch's calls would cost more than their work, and native loops run (`staircase_native`).
Letters: B rows, T tokens, C chunk, N chunks in sight, M cached after, E = max(M, 1) computed passes, L layers, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source, tell_once
from stairwell.cores.staircase import HostAges, Staircase
from stairwell.cores.time import GrowingSequence, Window, ages, along_time
from stairwell.fast import native
from stairwell.fast.banded import Band, BandedLayer
from stairwell.fast.engine import FastEngine
from stairwell.fast.staircase_diagonals import Diagonals
from stairwell.fast.staircase_native import NativeSteps
from stairwell.layers import Masks

SMALL = 32  # tokens on a diagonal up to which PyTorch's calls cost more than its larger products save


class StaircaseEngine(FastEngine):
    """The reference's walk, by diagonals where all rows can climb together."""

    def __call__(
        self,
        core: Staircase,
        x: Tensor,
        state: Any,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, Any]:
        age = ages(state.count, start, x.shape[1])
        known = HostAges.of(age, start, core.config.chunk)
        if not known.together:
            tell_once(
                "rows of this batch are at different places of their chunks, so they cannot climb together: "
                "the reference engine runs for such calls"
            )
            return core.walk(x, state, start, source, masks)
        # LayerDrop may leave nothing to compute; then a call of native loops would have no layers.
        empty = masks is not None and all(masks.dropped)
        steps = NativeSteps if self.in_native(core, x) and not empty else Wavefront
        return steps(core, x, state, start, age, source, masks, known).climb()

    def follows_autocast(self, core: Staircase, like: Tensor) -> bool:
        return not self.in_native(core, like)

    def in_native(self, core: Staircase, like: Tensor) -> bool:
        """Whether native loops are there, know everything that is asked for, and diagonals are short enough."""
        config = core.config
        short = config.chunk * config.computed <= SMALL
        return short and not config.cross and not config.residual_dropout and native.supports(like)


class Wavefront(Diagonals):
    """One call: what is known before it, and what the diagonals leave behind."""

    def __init__(self, *call: Any) -> None:
        super().__init__(*call)
        core, tokens = self.core, self.x.shape[0] * self.x.shape[1]
        sources = core.source_slots(self.source)
        self.layers = {l: BandedLayer(core.layers[l], sources[l], tokens) for l in self.alive}
        self.reach = {l: core.reach(core.layers[l], self.oldest + self.x.shape[1]) for l in self.alive}
        self.vectors = self.positions()
        self.ramps = {l: core.layers[l].ramp(self.vectors.shape[0]) for l in self.alive}
        # What the cache holds: raw, and as each layer sees it.
        self.cached_chunks: list[Tensor] = []
        self.cache_keys: dict[int, GrowingSequence] = {}
        if self.cache_sight is not None:
            memory = self.old_cache()
            self.cache_keys = {
                l: GrowingSequence(layer.keys_values(memory)[:, None]) for l, layer in self.layers.items()
            }
        self.inputs: list[list[list[Tensor]]] = [[[] for _ in range(self.L)] for _ in range(self.E)]  # by pass, layer

    def climb(self) -> tuple[Tensor, Any]:
        """All diagonals: at each the next chunk steps on, and the oldest steps off after its last pass."""
        n, E, M = len(self.chunks), self.E, self.core.config.M
        outputs: list[Tensor] = []
        h = self.x[:, :0]
        for s in range(self.steps):
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
        T = self.x.shape[1]
        new = [
            torch.stack([newest(parts, min(old.shape[1], T)) for parts in by_layer], 2)
            for old, by_layer in zip(self.state.passes, self.inputs, strict=True)
        ]
        return along_time(outputs), self.state_after(new, self.cached_chunks)

    def diagonal(self, s: int, h: Tensor) -> Tensor:
        """h (B, t, D): the chunks on diagonal s, oldest first, before their pass -> after it"""
        on = self.on(s)
        begin, end = self.chunks[on[0]][0], self.chunks[on[-1]][1]
        sizes = [self.chunks[c][1] - self.chunks[c][0] for c in on]
        before = self.old_inputs(s)
        for l in range(self.L):
            for c, part in zip(on, h.split(sizes, 1), strict=True):
                self.inputs[s - c][l].append(part)
            if l not in self.layers:
                continue
            olds = self.slots_before(s, l, along_time(before) if before else None)
            full = self.full(begin, sum(old.shape[1] for old in olds))
            kept = self.kept(s, l)
            age = None if full else self.age[:, begin:end]
            band = Band(self.core.config.heads, Window(0, self.reach[l]), age, kept.attention)
            h = self.layers[l](h, olds, self.vectors, self.ramps[l], band, kept)
        return h

    def slots_before(self, s: int, l: int, old: Tensor | None) -> list[Tensor]:
        """Keys and values of all that layer l sees before this call's tokens on diagonal s, in parts, oldest first."""
        most = self.reach[l]  # a layer whose span is short needs no keys from farther away
        if old is None:
            return self.cache_in_sight(s, l, most)
        near = old[:, max(old.shape[1] - most, 0) :, l]
        return [*self.cache_in_sight(s, l, most - near.shape[1]), self.layers[l].keys_values(near)]

    def cache_in_sight(self, s: int, l: int, most: int) -> list[Tensor]:
        """Keys and values of the cached chunks that diagonal s sees, oldest first, no more than the `most` newest."""
        low, high = self.cached(s)
        if low == high:
            return []
        end = max(high, 0)  # the cache ends with the newest chunk in sight, or with the call's beginning
        return [view[:, 0] for view in self.cache_keys[l].back(end - high, min(end - low, end - high + most))]

    def into_cache(self, c: int, final: Tensor) -> None:
        """Put chunk c into the cache as later chunks see it. final (B, t, D)"""
        if not self.core.config.caches:
            return
        self.cached_chunks.append(final)
        if c + 1 < len(self.chunks):  # nobody comes after the last chunk of a call
            for l, track in self.cache_keys.items():
                track.append(self.layers[l].keys_values(final)[:, None])


def newest(parts: list[Tensor], needed: int) -> Tensor:
    """The last `needed` tokens of parts (B, t, D) along time, without touching the others."""
    chosen: list[Tensor] = []
    for part in reversed(parts):
        if needed > 0:
            chosen.append(part[:, max(part.shape[1] - needed, 0) :])
            needed -= part.shape[1]
    return along_time(chosen[::-1]) if chosen else parts[0][:, :0]
