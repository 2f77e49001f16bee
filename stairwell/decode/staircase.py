"""One token up a staircase, with the past of every pass already projected.

What a token sees at pass n, `ClimbConfig.in_sight` says: for each d a stretch of C slots of the ring of pass n+d, or of
the cache's ring, and the open chunk, itself included, of its own pass. Each ring holds as much as is ever seen of it:
n*C tokens of pass n, the present one included, and N*C - 1 of the cache.
Letters: B rows, C chunk, N passes, M computed passes, L layers, H heads, K head width, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from stairwell.cores.staircase import Staircase, StaircaseState, VisibleRange
from stairwell.decode.native import Application, Entry, Read, StepDescription
from stairwell.decode.rings import KeyRing, RawRing, RowBuffer, lowest, read_parts
from stairwell.decode.steps import LayerStep, RowSteps
from stairwell.layers import Layer
from stairwell.state import State


class TimeRing(KeyRing):
    """A ring of R slots with a cursor of its own, read by how far back a slot lies: 0 for the last token."""

    def __init__(self, like: Tensor, capacity: int, H: int, R: int, K: int) -> None:
        super().__init__(like, capacity, H, R, K)
        self.R, self.cursor = R, 0

    def advance(self) -> None:
        self.cursor = (self.cursor + 1) % max(1, self.R)

    def stretches(self, near: int, far: int) -> Iterator[tuple[slice, int]]:
        """The slots from `far` (not included) to `near` back, oldest first, as ranges of slots, each with how far back
        its oldest lies. The token that has just been written at the cursor is -1 back."""
        first, size = (self.cursor - far) % self.R, far - near
        whole = min(size, self.R - first)
        yield slice(first, first + whole), far - 1
        if whole < size:
            yield slice(0, size - whole), far - 1 - whole


class StaircaseSteps(RowSteps):
    def __init__(self, core: Staircase, capacity: int, max_crop: int) -> None:
        config = core.config
        self.core, self.H, self.K, self.max_crop = core, config.heads, config.K, max_crop
        self.like = like = next(core.parameters()).detach()
        C, computed = config.chunk, range(1, config.computed + 1)
        self.past = [[TimeRing(like, capacity, self.H, n * C, self.K) for _ in core.layers] for n in computed]
        cached = core.cache_slots(0)
        self.cache = [TimeRing(like, capacity, self.H, cached, self.K) for _ in core.layers if config.caches]
        shapes = core.memory_shapes(max_crop)
        self.raw_past = [RawRing(like, capacity, *shapes[f"passes.{n - 1}"]) for n in computed]
        self.raw_cache = RawRing(like, capacity, *shapes["cache"])
        # Time goes from far to near, so do the tables.
        self.distances = core.position.distances
        self.vectors = core.position.table(self.distances).detach().flip(0).T  # (K, distances)
        distance = torch.arange(self.distances - 1, -1, -1, device=like.device)
        self.layers = [LayerStep(layer, distance, fused=True) for layer in core.layers]
        self.use_native(like)

    def describe(self) -> StepDescription:
        """The rings are those of pass 1, one per layer, then of pass 2, ..., then the cache's."""
        config, L, passes = self.core.config, len(self.layers), range(1, len(self.past) + 1)
        cache = len(self.past) * L

        def reads(n: int, l: int) -> list[Read]:
            found = []
            for sight in config.in_sight(n):
                ring = cache + l if sight.pass_number is None else (sight.pass_number - 1) * L + l
                found.append(Read(ring, sight.nearest, sight.farthest, chunks=True))
            return found

        applications = [Application(l, reads(n, l), "before", (n - 1) * L + l, l) for n in passes for l in range(L)]
        entries = [Entry(cache + l, l, 0) for l, ring in enumerate(self.cache) if ring.R]
        mix = self.like.new_zeros(1, len(applications) + 1)
        mix[0, config.M * L] = 1  # what the cache keeps: the output of pass M, the input for M = 0
        table = self.core.position.table(self.distances).detach()
        return StepDescription(
            [*self.core.layers], applications, entries, mix, table, 0, len(self.rings()), config.chunk
        )

    def key_rings(self) -> list[TimeRing]:
        return self.rings()

    def rings(self) -> list[TimeRing]:
        return [ring for rings in (*self.past, self.cache) for ring in rings]

    def raws(self) -> list[RawRing]:
        return [*self.raw_past, self.raw_cache]

    def parts(self) -> list[RowBuffer]:
        return [*self.raws(), *(rows for ring in self.rings() for rows in (ring.keys, ring.values))]

    def fit(self, batch: int) -> None:
        self.batch = batch
        for ring in self.rings():
            ring.fit(batch)
        if self.native is not None:
            self.native.set_rings(self.rings(), batch, self.sources)

    def load(self, first: int, state: StaircaseState) -> None:
        self.make_room(first + state.batch)
        for raw, memory in zip(self.raws(), (*state.passes, state.cache), strict=True):
            raw.load(first, memory, memory.shape[1])
        for n, (rings, memory) in enumerate(zip(self.past, state.passes, strict=True), 1):
            for l, ring in enumerate(rings):
                self.load_ring(ring, first, self.core.layers[l], memory[:, :, l], n * self.core.config.chunk - 1)
        for l, ring in enumerate(self.cache):
            self.load_ring(ring, first, self.core.layers[l], state.cache, ring.R)
        self.fit(first + state.batch)

    def load_ring(self, ring: TimeRing, first: int, layer: Layer, memory: Tensor, slots: int) -> None:
        """The newest `slots` of a memory (b, .., D), the last one just before the cursor."""
        if slots:
            ring.load(first, *layer.keys_values(memory[:, -slots:]), ring.cursor - slots)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        passes = tuple(raw.memory(self.batch) for raw in self.raw_past)
        return StaircaseState(count, croppable, passes, self.raw_cache.memory(self.batch), max_crop=self.max_crop)

    def step(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        if self.native is not None:
            outputs, memory = self.native(x, count, [ring.cursor for ring in self.rings()])
            L = len(self.layers)
            for n, raw in enumerate(self.raw_past):
                if raw.all.shape[1]:
                    raw.slot(self.batch).copy_(outputs[n * L : (n + 1) * L].transpose(0, 1)[:, None])
            if self.core.config.caches and self.raw_cache.all.shape[1]:
                self.raw_cache.slot(self.batch).copy_(memory[0][:, None])
            self.advance()
            return outputs[-1].clone()
        M = self.core.config.M
        ages = count.tolist()
        cached = x
        for n, raw in enumerate(self.raw_past, 1):
            inputs = []
            for l, layer in enumerate(self.layers):
                inputs.append(x)
                x = layer(x, partial(self.write_and_read, l, n, count, ages))
            if raw.all.shape[1]:
                raw.slot(self.batch).copy_(torch.stack(inputs, 1)[:, None])
            if n == M:
                cached = x
        if self.core.config.caches:
            self.keep(cached)
        self.advance()
        return x

    def advance(self) -> None:
        for ring in self.rings():
            ring.advance()
        for raw in self.raws():
            raw.advance()

    def keep(self, cached: Tensor) -> None:
        """Put the state that a token is seen in later, (B, D), into the cache."""
        if self.raw_cache.all.shape[1]:
            self.raw_cache.slot(self.batch).copy_(cached[:, None])
        for layer, ring in zip(self.layers, self.cache):
            if ring.R:
                _, keys, values = layer.query(layer.normed(cached)).chunk(3, 1)
                ring.write(ring.cursor, keys, values)

    def write_and_read(self, l: int, n: int, count: Tensor, ages: list[int], normed: Tensor) -> Tensor:
        """The token's key and value into its pass's ring, and what layer l reads at pass n. (B, D) -> (B, H * K)"""
        layer, own = self.layers[l], self.past[n - 1][l]
        q, keys, values = layer.query(normed).chunk(3, 1)  # q already divided by sqrt(K)
        own.write(own.cursor, keys, values)
        q = q.reshape(self.batch * self.H, 1, self.K)
        by_distance = q @ self.vectors  # (B * H, 1, distances)
        if layer.ramp is not None:
            by_distance.view(-1, self.H, self.distances).add_(layer.ramp)
        C = self.core.config.chunk
        phases = [age % C for age in ages]
        together = min(ages) == max(ages)
        scores, found = [], []
        for sight in self.core.config.in_sight(n):
            ring = self.cache[l] if sight.pass_number is None else self.past[sight.pass_number - 1][l]
            near, far = sight.range_back((min(phases), max(phases)), max(ages), C)
            near, far = near if sight.nearest else -1, min(far, layer.reach)  # the token itself is in the ring already
            if near >= far:
                continue
            for slots, oldest in ring.stretches(near, far):
                size = slots.stop - slots.start
                begin = self.distances - 2 - oldest  # the tables' place of distance oldest + 1
                part = torch.baddbmm(by_distance[:, :, begin : begin + size], q, ring.flat_keys[:, :, slots])
                if not together:
                    self.hide(part, sight, oldest, count)
                scores.append(part)
                found.append(ring.flat_values[:, slots])
        return read_parts(scores, found).view(self.batch, self.H * self.K)

    def hide(self, scores: Tensor, sight: VisibleRange, oldest: int, count: Tensor) -> None:
        """Hide what rows of another phase or age do not see. scores (B * H, 1, slots), the first `oldest` back."""
        back = torch.arange(oldest, oldest - scores.shape[-1], -1, device=scores.device)
        hidden = ~sight.sees(back, count, self.core.config.chunk)  # (B, slots)
        scores.view(self.batch, self.H, -1).masked_fill_(hidden[:, None], lowest(scores.dtype))
