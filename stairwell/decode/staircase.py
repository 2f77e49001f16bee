"""One token's step of a Staircase, with keys and values of every pass already projected.

`BaseStaircaseConfig.visible_ranges` states what a token attends to at pass n: for each d, C slots of the ring of pass
n+d or of the cache's ring; and the current chunk of its own pass, up to the token itself. A ring holds no more than is
ever visible: n*C tokens of pass n, the current one included, and N*C - 1 of the cache.
Letters: B streams, C chunk, N passes, M computed passes, L layers, H heads, K head width, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from stairwell.cores.staircase import Staircase, StaircaseState, VisibleRange
from stairwell.decode.native import LayerApplication, MemoryWrite, RingRead, StepDescription
from stairwell.decode.rings import BatchBuffer, KeyRing, RawRing, attend_parts, lowest
from stairwell.decode.steps import BufferedSteps, LayerStep
from stairwell.layers import Layer
from stairwell.state import State


class TimeRing(KeyRing):
    """A ring of R slots with its own cursor, addressed by how many tokens back a slot is: 0 for the last token read."""

    def __init__(self, like: Tensor, capacity: int, H: int, R: int, K: int) -> None:
        super().__init__(like, capacity, H, R, K)
        self.R, self.cursor = R, 0

    def advance(self) -> None:
        self.cursor = (self.cursor + 1) % max(1, self.R)

    def slots_back(self, near: int, far: int) -> Iterator[tuple[slice, int]]:
        """Yield the slots from `far` (exclusive) to `near` back, oldest first, as slices, each with how far back its
        oldest slot is. The current token, already written at the cursor, is -1 back."""
        first, size = (self.cursor - far) % self.R, far - near
        until_end = min(size, self.R - first)
        yield slice(first, first + until_end), far - 1
        if until_end < size:
            yield slice(0, size - until_end), far - 1 - until_end


class StaircaseSteps(BufferedSteps):
    def __init__(self, core: Staircase, capacity: int, max_crop: int) -> None:
        config = core.config
        self.core, self.H, self.K, self.max_crop = core, config.heads, config.K, max_crop
        self.like = like = next(core.parameters()).detach()
        C, computed = config.chunk, range(1, config.computed + 1)
        self.past = [[TimeRing(like, capacity, self.H, n * C, self.K) for _ in core.layers] for n in computed]
        cache_slots = core.memory_shapes(0)["cache"][0]
        self.cache = [TimeRing(like, capacity, self.H, cache_slots, self.K) for _ in core.layers if config.caches]
        shapes = core.memory_shapes(max_crop)
        self.raw_past = [RawRing(like, capacity, *shapes[f"passes.{n - 1}"]) for n in computed]
        self.raw_cache = RawRing(like, capacity, *shapes["cache"])
        # Slots are read oldest first, so the tables are in the same order.
        self.distances = core.position.distances
        self.embeddings = core.position.table(self.distances).detach().flip(0).T  # (K, distances)
        distance = torch.arange(self.distances - 1, -1, -1, device=like.device)
        self.layers = [LayerStep(layer, distance, fused=True) for layer in core.layers]
        self.use_native(like)

    def describe(self) -> StepDescription:
        """The rings are those of pass 1, one per layer, then of pass 2, ..., then the cache's."""
        config, L, passes = self.core.config, len(self.layers), range(1, len(self.past) + 1)
        cache = len(self.past) * L

        def reads(n: int, l: int) -> list[RingRead]:
            ranges = []
            for visible in config.visible_ranges(n):
                ring = cache + l if visible.pass_number is None else (visible.pass_number - 1) * L + l
                ranges.append(RingRead(ring, visible.nearest, visible.farthest, chunks=True))
            return ranges

        applications = [
            LayerApplication(l, reads(n, l), "before", (n - 1) * L + l, l) for n in passes for l in range(L)
        ]
        memory_writes = [MemoryWrite(cache + l, l, 0) for l, ring in enumerate(self.cache) if ring.R]
        mix = self.like.new_zeros(1, len(applications) + 1)
        mix[0, config.M * L] = 1  # the cache holds the output of pass M, or the input if M = 0
        table = self.core.position.table(self.distances).detach()
        return StepDescription(
            [*self.core.layers], applications, memory_writes, mix, table, 0, len(self.key_rings()), config.chunk
        )

    def key_rings(self) -> list[TimeRing]:
        return [ring for rings in (*self.past, self.cache) for ring in rings]

    def raw_rings(self) -> list[RawRing]:
        return [*self.raw_past, self.raw_cache]

    def buffers(self) -> list[BatchBuffer]:
        return [*self.raw_rings(), *(buffer for ring in self.key_rings() for buffer in (ring.keys, ring.values))]

    def set_batch(self, batch: int) -> None:
        self.batch = batch
        for ring in self.key_rings():
            ring.set_batch(batch)
        if self.native is not None:
            self.native.set_rings(self.key_rings(), batch, self.sources)

    def load(self, first: int, state: StaircaseState) -> None:
        self.reserve(first + state.batch)
        for raw, memory in zip(self.raw_rings(), (*state.passes, state.cache), strict=True):
            raw.load(first, memory, memory.shape[1])
        for n, (rings, memory) in enumerate(zip(self.past, state.passes, strict=True), 1):
            for l, ring in enumerate(rings):
                self.load_ring(ring, first, self.core.layers[l], memory[:, :, l], n * self.core.config.chunk - 1)
        for l, ring in enumerate(self.cache):
            self.load_ring(ring, first, self.core.layers[l], state.cache, ring.R)
        self.set_batch(first + state.batch)

    def load_ring(self, ring: TimeRing, first: int, layer: Layer, memory: Tensor, slots: int) -> None:
        """Load the newest `slots` of a memory (b, .., D); the newest goes to the slot before the cursor."""
        if slots:
            ring.load(first, *layer.keys_values(memory[:, -slots:]), ring.cursor - slots)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        passes = tuple(raw.memory(self.batch) for raw in self.raw_past)
        return StaircaseState(count, croppable, passes, self.raw_cache.memory(self.batch), max_crop=self.max_crop)

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        if self.native is not None:
            outputs, memory = self.native(x, count, [ring.cursor for ring in self.key_rings()])
            L = len(self.layers)
            for n, raw in enumerate(self.raw_past):
                if raw.length:
                    raw.slot(self.batch).copy_(outputs[n * L : (n + 1) * L].transpose(0, 1)[:, None])
            if self.core.config.caches and self.raw_cache.length:
                self.raw_cache.slot(self.batch).copy_(memory[0][:, None])
            self.advance()
            return outputs[-1].clone()
        M = self.core.config.M
        counts = count.tolist()
        cached = x
        for n, raw in enumerate(self.raw_past, 1):
            inputs = []
            for l, layer in enumerate(self.layers):
                inputs.append(x)
                x = layer(x, partial(self.write_and_attend, l, n, count, counts))
            if raw.length:
                raw.slot(self.batch).copy_(torch.stack(inputs, 1)[:, None])
            if n == M:
                cached = x
        if self.core.config.caches:
            self.write_cache(cached)
        self.advance()
        return x

    def advance(self) -> None:
        for ring in self.key_rings():
            ring.advance()
        for raw in self.raw_rings():
            raw.advance()

    def write_cache(self, cached: Tensor) -> None:
        """Write the state (B, D) that later tokens attend to into the cache."""
        if self.raw_cache.length:
            self.raw_cache.slot(self.batch).copy_(cached[:, None])
        for layer, ring in zip(self.layers, self.cache):
            if ring.R:
                _, keys, values = layer.query(layer.normed(cached)).chunk(3, 1)
                ring.write(ring.cursor, keys, values)

    def write_and_attend(self, l: int, n: int, count: Tensor, counts: list[int], normed: Tensor) -> Tensor:
        """Write the token's key and value to the ring of pass n and attend with layer l. (B, D) -> (B, H * K)"""
        layer, own = self.layers[l], self.past[n - 1][l]
        q, keys, values = layer.query(normed).chunk(3, 1)  # q already divided by sqrt(K)
        own.write(own.cursor, keys, values)
        q = q.reshape(self.batch * self.H, 1, self.K)
        by_distance = q @ self.embeddings  # (B * H, 1, distances)
        if layer.ramp is not None:
            by_distance.view(-1, self.H, self.distances).add_(layer.ramp)
        C = self.core.config.chunk
        phases = [tokens % C for tokens in counts]
        in_step = min(counts) == max(counts)
        scores, visible_values = [], []
        for visible in self.core.config.visible_ranges(n):
            ring = self.cache[l] if visible.pass_number is None else self.past[visible.pass_number - 1][l]
            near, far = visible.range_back((min(phases), max(phases)), max(counts), C)
            near, far = near if visible.nearest else -1, min(far, layer.span)  # the token itself is already in the ring
            if near >= far:
                continue
            for slots, oldest in ring.slots_back(near, far):
                size = slots.stop - slots.start
                start = self.distances - 2 - oldest  # the tables' index of distance oldest + 1
                part = torch.baddbmm(by_distance[:, :, start : start + size], q, ring.flat_keys[:, :, slots])
                if not in_step:
                    self.mask(part, visible, oldest, count)
                scores.append(part)
                visible_values.append(ring.flat_values[:, slots])
        return attend_parts(scores, visible_values).view(self.batch, self.H * self.K)

    def mask(self, scores: Tensor, visible: VisibleRange, oldest: int, count: Tensor) -> None:
        """Mask the slots that are not visible to all streams, in place. scores (B * H, 1, slots), the first of which is
        `oldest` back."""
        back = torch.arange(oldest, oldest - scores.shape[-1], -1, device=scores.device)
        hidden = ~visible.visible(back, count, self.core.config.chunk)  # (B, slots)
        scores.view(self.batch, self.H, -1).masked_fill_(hidden[:, None], lowest(scores.dtype))
