"""One token through a core, for each type of core, with keys and values of the past already projected.

    y = steps.step(x, count, min_count)             x, y (B, D), one token per stream; count (B,) tokens read before
    y = steps.step_segment(x, count, min_count)     x, y (B, T, D), several tokens per stream

Feedback and Transformer-XL (and Universal, whose passes are further layers) read ring buffers, as do the Staircases
(`staircase`); any other core carries its state from call to call.
Letters: B streams, T tokens, S memory slots, D width, H heads, K head width, G memory vectors per slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stairwell.cores.core import Core
from stairwell.cores.feedback import Feedback
from stairwell.cores.time import filled
from stairwell.cores.transformer_xl import TransformerXL
from stairwell.decode.native import (
    LayerApplication,
    MemoryWrite,
    NativeStep,
    RingRead,
    StepDescription,
    WriteTime,
)
from stairwell.decode.rings import (
    BatchBuffer,
    KeyRing,
    RawRing,
    RingAttention,
    RingPosition,
    RingView,
    SegmentView,
    grown_length,
    log_ramp,
)
from stairwell.decode.source import Sources
from stairwell.fast import native
from stairwell.fast.linear import PackedLinear
from stairwell.layers import Layer, ResidualLayer, Sublayer
from stairwell.state import State


class Steps(Protocol):
    """What a session requires of a core."""

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """x (B, D) -> (B, D); count (B,) tokens that each stream has read before, `min_count` the smallest of them"""

    def step_segment(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """Process several tokens per stream. x (B, T, D) -> (B, T, D)"""

    def crop(self, tokens: int) -> bool:
        """Remove the last tokens of all streams; return False if a cropped state has to be loaded instead."""

    def load(self, first: int, state: Any) -> None:
        """Replace the streams from `first` on by those of a state."""

    def set_sources(self, sources: Sources) -> None:
        """Set what the streams cross-attend to; called again whenever streams or sources change."""

    def select(self, index: Tensor) -> None: ...

    def reset(self, index: Tensor) -> None: ...

    def state(self, count: Tensor, croppable: Tensor) -> State: ...


class LayerStep(ResidualLayer):
    """A layer for one token per stream. Parameters that are used together are concatenated and norms are plain
    functions: with one stream, the call of a module takes as long as its work."""

    def __init__(self, layer: Layer, distance: Tensor, fused: bool) -> None:
        """`distance`: of the slots, in the order of the tables; `fused`: project keys and values with the queries."""
        self.layer, self.pre = layer, layer.pre
        self.attention_norm = norm_function(layer.attention_norm)
        self.feed_forward_norm = norm_function(layer.feed_forward_norm)
        if hasattr(layer, "cross"):
            self.cross_norm = norm_function(layer.cross_norm)
        self.fused = fused
        self.set_distances(distance)
        self.attend_source: Sublayer | None = None

    # Built on first use: the native interpreter reads the parameters themselves.
    @cached_property
    def query(self) -> PackedLinear:
        attention = self.layer.attention
        query = attention.query.weight * attention.K**-0.5  # includes the scale of the scores
        if self.fused:
            query = torch.cat([query, attention.key.weight, attention.value.weight])
        return PackedLinear(query)

    @cached_property
    def out(self) -> PackedLinear:
        return PackedLinear(self.layer.attention.out.weight)

    @cached_property
    def inner(self) -> PackedLinear:
        linear = self.layer.feed_forward.inner
        return PackedLinear(linear.weight, linear.bias)

    @cached_property
    def outer(self) -> PackedLinear:
        linear = self.layer.feed_forward.out
        return PackedLinear(linear.weight, linear.bias)

    def set_distances(self, distance: Tensor) -> None:
        """Set the distance of each slot."""
        span = self.layer.span
        self.ramp = log_ramp(span, distance) if span is not None else None
        self.span: int = span.max_span() if span is not None else len(distance)  # nearest slots to attend to

    def __call__(self, x: Tensor, attend: Sublayer) -> Tensor:
        """x (B, D) -> (B, D); `attend` is attention without its output projection, (B, D) -> (B, H * K)"""
        return self.apply_sublayers(x, lambda normed: self.out(attend(normed)), self.attend_source, self.feed_forward)

    def feed_forward(self, normed: Tensor) -> Tensor:
        return self.outer(self.inner(normed, relu=True))


def norm_function(norm: nn.LayerNorm) -> Sublayer:
    """Return a norm as a plain function."""
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class BufferedSteps:
    """Steps whose streams are kept in preallocated buffers."""

    layers: Sequence[LayerStep]
    batch: int
    native: NativeStep | None = None
    sources: Sources | None = None

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        raise NotImplementedError

    def describe(self) -> StepDescription:
        """Return what one token's step does."""
        raise NotImplementedError

    def key_rings(self) -> Sequence[KeyRing]:
        raise NotImplementedError

    def buffers(self) -> list[BatchBuffer]:
        raise NotImplementedError

    def set_batch(self, batch: int) -> None:
        """Create what a step of this batch size uses."""
        raise NotImplementedError

    def use_native(self, like: Tensor) -> None:
        """Use the native interpreter if it supports the parameters."""
        if native.supports(like) and not torch.compiler.is_compiling():
            self.native = NativeStep(self.describe())

    def step_segment(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        return torch.stack([self.step(x[:, t], count + t, min_count + t) for t in range(x.shape[1])], 1)

    def crop(self, tokens: int) -> bool:
        return False

    def set_sources(self, sources: Sources) -> None:
        self.sources = sources
        if self.native is not None:
            self.native.set_rings(self.key_rings(), self.batch, sources)
        for layer in self.layers:
            layer.attend_source = sources.attend(layer.layer)

    def reserve(self, batch: int) -> None:
        """Make room for this many streams."""
        capacity = self.buffers()[0].all.shape[0]
        if batch > capacity:
            for buffer in self.buffers():
                buffer.grow(max(batch, 2 * capacity))  # doubling keeps the total cost of many joins linear

    def select(self, index: Tensor) -> None:
        self.reserve(len(index))
        # In beam search most streams keep their index; only the others are copied.
        changed = (index != torch.arange(len(index), device=index.device)).nonzero().flatten()
        for buffer in self.buffers():
            buffer.select(index, changed)
        self.set_batch(len(index))

    def reset(self, index: Tensor) -> None:
        for buffer in self.buffers():
            buffer.reset(index)


class RingSteps(BufferedSteps):
    """What Feedback and Transformer-XL share: rings of keys and values, and a ring of raw memory."""

    core: Any

    def __init__(self, core: Any, capacity: int, max_crop: int, rings: int) -> None:
        config = core.config
        self.core, self.H, self.K, self.max_crop = core, config.heads, config.K, max_crop
        self.like = next(core.parameters()).detach()
        self.max_slots: int = core.window.distances + max_crop
        self.position = RingPosition(core.position, core.window, grown_length(0, 0, self.max_slots))
        self.rings = [KeyRing(self.like, capacity, self.H, self.position.R, self.K) for _ in range(rings)]
        # (capacity, S + max_crop, vectors, D)
        self.raw = RawRing(self.like, capacity, *core.memory_shapes(max_crop)["memory"])

    def buffers(self) -> list[BatchBuffer]:
        return [self.raw, *(buffer for ring in self.rings for buffer in (ring.keys, ring.values))]

    def set_batch(self, batch: int) -> None:
        for ring in self.rings:
            ring.set_batch(batch)
        self.batch = batch
        if self.native is not None:
            self.native.set_rings(self.rings, batch, self.sources)
        self.attention = RingAttention(self.like, batch, self.H, self.position.R, self.K)

    def lengthen(self, needed: int) -> None:
        """Make room for `needed` tokens, or for as many as are ever visible."""
        R = self.position.R
        if min(needed, self.max_slots) <= R:
            return
        cursor, length = self.position.cursor, grown_length(R, needed, self.max_slots)
        for ring in self.rings:
            ring.lengthen(length, cursor)
        self.position = RingPosition(self.core.position, self.core.window, length, R)
        for layer in self.layers:
            layer.set_distances(self.position.distance)
        self.set_batch(self.batch)

    def key_rings(self) -> Sequence[KeyRing]:
        return self.rings

    def window_read(self, ring: int) -> RingRead:
        return RingRead(ring, self.core.window.first, self.core.window.last)

    def description(
        self, applications: Sequence[LayerApplication], memory_writes: Sequence[MemoryWrite], mix: Tensor
    ) -> StepDescription:
        table = self.position.nearest_first
        return StepDescription(
            [*self.core.layers], applications, memory_writes, mix, table, self.core.window.first, len(self.rings)
        )

    def native_step(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        assert self.native is not None
        self.lengthen(self.raw.filled + 1)
        return self.native(x, count, [self.position.cursor] * len(self.rings))

    def view(self, count: Tensor, min_count: int) -> RingView:
        """Return what the layers share in the next step, after making room for it."""
        self.lengthen(self.raw.filled + 1)
        return RingView.at(self.position, count, min_count)

    def advance(self, tokens: int = 1) -> None:
        self.position.advance(tokens)
        self.raw.advance(tokens)

    def crop(self, tokens: int) -> bool:
        self.position.advance(-tokens)
        self.raw.crop(tokens)
        for ring in self.rings:
            ring.clear(self.position.next_slots(tokens))
        return True

    def projections_of_rings(self) -> list[tuple[Layer, int]]:
        """Return, for each ring, the layer that projects into it and which vector of the raw memory it projects."""
        raise NotImplementedError

    def load(self, first: int, state: Any) -> None:
        b, slots = state.memory.shape[:2]  # S + max_crop
        max_count = int(state.count.max()) if b else 0
        self.batch = first + b
        self.reserve(self.batch)
        self.raw.load(first, state.memory, max_count)
        self.lengthen(self.raw.filled + 1)
        n = min(slots, max_count)  # the other slots are empty
        is_filled = filled(torch.arange(n, 0, -1, device=state.count.device), state.count[:, None])  # (b, n)
        for ring, (layer, vector) in zip(self.rings, self.projections_of_rings(), strict=True):
            keys, values = layer.keys_values(state.memory[:, slots - n :, vector])
            ring.load(first, keys, values * is_filled[:, None, :, None], self.position.slot(n))
        self.set_batch(self.batch)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        state: State = self.core.state_type(count, croppable, self.raw.memory(self.batch), max_crop=self.max_crop)
        return state


class FeedbackSteps(RingSteps):
    """All layers read one ring, or each its own if projections or memories are per layer."""

    def __init__(self, core: Feedback, capacity: int, max_crop: int) -> None:
        sources = [core.key_source(l) for l in range(len(core.layers))]
        self.key_sources = list(dict.fromkeys(sources))  # of each ring, as in the core
        self.ring_of_layer = [self.key_sources.index(source) for source in sources]
        super().__init__(core, capacity, max_crop, len(self.key_sources))
        self.layers = [LayerStep(layer, self.position.distance, fused=False) for layer in core.layers]
        self.mix = core.mix(self.like)  # (G, L + 1)
        self.use_native(self.like)

    @cached_property
    def projections(self) -> dict[int, PackedLinear]:
        attention = {l: self.core.layers[l].attention for l, _ in self.key_sources}
        return {l: PackedLinear(torch.cat([a.key.weight, a.value.weight])) for l, a in attention.items()}

    def describe(self) -> StepDescription:
        write: WriteTime = "before" if self.core.config.attend_to_current else "never"
        applications = [
            LayerApplication(l, [self.window_read(ring)], write, ring, self.key_sources[ring][0])
            for l, ring in enumerate(self.ring_of_layer)
        ]
        memory_writes = [MemoryWrite(r, l, g) for r, (l, g) in enumerate(self.key_sources)]
        return self.description(applications, memory_writes, self.mix)

    def set_batch(self, batch: int) -> None:
        super().set_batch(batch)
        self.outputs = self.like.new_empty(len(self.layers) + 1, batch, self.core.width)

    def projections_of_rings(self) -> list[tuple[Layer, int]]:
        return [(self.core.layers[l], g) for l, g in self.key_sources]

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        B, D = x.shape
        if self.native is not None:
            native_outputs, native_memory = self.native_step(x, count)
            self.raw.slot(B).copy_(native_memory.transpose(0, 1)[:, None])
            self.advance()
            return native_outputs[-1].clone()
        view = self.view(count, min_count)
        outputs = [x]  # x^0, then x^1 ... x^L
        for l, layer in enumerate(self.layers):
            ring = self.ring_of_layer[l]
            if self.core.config.attend_to_current:
                self.write(ring, outputs[l])  # overwritten by m_t below
            outputs.append(layer(outputs[l], partial(self.attend, layer, self.rings[ring], view)))
        memory = torch.mm(self.mix, torch.stack(outputs, out=self.outputs).view(-1, B * D)).view(-1, B, D)  # (G, B, D)
        self.raw.slot(B).copy_(memory.transpose(0, 1)[:, None])
        for r, (_, g) in enumerate(self.key_sources):
            self.write(r, memory[g])
        self.advance()
        return outputs[-1]

    def attend(self, layer: LayerStep, ring: KeyRing, view: RingView, normed: Tensor) -> Tensor:
        """Attend to a ring. (B, D) -> (B, H * K)"""
        return self.attention(layer.query(normed), ring, view, layer.ramp, layer.span)

    def write(self, r: int, memory: Tensor) -> None:
        """Write memory (B, D), as keys and values, to ring r at the cursor."""
        l, _ = self.key_sources[r]
        keys_values = self.projections[l](self.layers[l].normed(memory))
        self.rings[r].write(self.position.cursor, *keys_values.chunk(2, 1))


class TransformerXLSteps(RingSteps):
    """Each layer reads a ring of its own inputs."""

    def __init__(self, core: TransformerXL, capacity: int, max_crop: int) -> None:
        sequence = core.layer_sequence()
        super().__init__(core, capacity, max_crop, len(sequence))
        steps = {layer: LayerStep(layer, self.position.distance, fused=True) for layer in core.layers}
        self.layers = [steps[layer] for layer in sequence]
        self.use_native(self.like)

    def describe(self) -> StepDescription:
        write: WriteTime = "before" if self.core.config.attend_to_current else "after"
        layers = [*self.core.layers]
        indices = [layers.index(step.layer) for step in self.layers]
        applications = [
            LayerApplication(layer, [self.window_read(ring)], write, ring, layer) for ring, layer in enumerate(indices)
        ]
        return self.description(applications, [], self.like.new_empty(0, len(indices) + 1))

    def projections_of_rings(self) -> list[tuple[Layer, int]]:
        return [(step.layer, l) for l, step in enumerate(self.layers)]

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        if self.native is not None:
            outputs, _ = self.native_step(x, count)
            self.raw.slot(self.batch).copy_(outputs[:-1].transpose(0, 1)[:, None])
            self.advance()
            return outputs[-1].clone()
        view = self.view(count, min_count)
        slot = self.raw.slot(self.batch)[:, 0]  # (B, layers, D)
        for l, (layer, ring) in enumerate(zip(self.layers, self.rings)):
            slot[:, l].copy_(x)
            x = layer(x, partial(self.write_and_attend, layer, ring, view))
        self.advance()
        return x

    def step_segment(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """Process the tokens of a call in parallel, so that parameters are read once for all of them, as far as the
        rings have slots besides the first token's window."""
        max_tokens = self.max_slots - self.core.window.last
        if max_tokens < 2 or self.layers[0].attend_source is not None:
            return super().step_segment(x, count, min_count)
        self.lengthen(self.max_slots)
        outputs, done = [], 0
        for part in torch.split(x, max_tokens, 1):
            outputs.append(self.step_parallel(part, count + done, min_count + done))
            done += part.shape[1]
        return torch.cat(outputs, 1)

    def step_parallel(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        B, T, D = x.shape
        view = SegmentView.at(self.position, count, min_count, T)
        slots = self.position.next_slots(T)
        raw_slots, flat = self.raw.next_slots(T), x.reshape(B * T, D)
        for l, (layer, ring) in enumerate(zip(self.layers, self.rings)):
            self.raw.all[:B, raw_slots, l] = flat.view(B, T, D)
            flat = layer(flat, partial(self.write_and_attend_segment, layer, ring, slots, view))
        self.advance(T)
        return flat.view(B, T, D)

    def write_and_attend_segment(
        self, layer: LayerStep, ring: KeyRing, slots: Tensor, view: SegmentView, normed: Tensor
    ) -> Tensor:
        """Write the keys and values of T tokens per stream and attend. (B * T, D) -> (B * T, H * K)"""
        q, keys, values = layer.query(normed).chunk(3, 1)
        ring.write_segment(slots, keys, values)
        return view.attend(q, ring, self.position, layer.ramp)

    def write_and_attend(self, layer: LayerStep, ring: KeyRing, view: RingView, normed: Tensor) -> Tensor:
        """Write the key and value of one token per stream and attend. (B, D) -> (B, H * K)"""
        q, keys, values = layer.query(normed).chunk(3, 1)
        if self.core.config.attend_to_current:
            ring.write(self.position.cursor, keys, values)
            return self.attention(q, ring, view, layer.ramp, layer.span)
        z = self.attention(q, ring, view, layer.ramp, layer.span)
        # The slot held the farthest token of the window until now.
        ring.write(self.position.cursor, keys, values)
        return z


class CarriedSteps:
    """Any other core: its reference forward, one token per call, from the state that the last call returned."""

    carried: State

    def __init__(self, core: Core[Any, Any]) -> None:
        self.core = core
        self.source: tuple[Tensor, Tensor] | tuple[()] = ()

    def set_sources(self, sources: Sources) -> None:
        self.source = sources.per_stream()

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        return self.step_segment(x[:, None], count, min_count)[:, 0]

    def step_segment(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        y: Tensor
        y, self.carried = self.core(x, self.carried, None, *self.source)
        return y

    def crop(self, tokens: int) -> bool:
        self.carried = self.carried.crop(tokens)
        return True

    def load(self, first: int, state: State) -> None:
        self.carried = type(state).join([self.carried.select(range(first)), state]) if first else state

    def select(self, index: Tensor) -> None:
        self.carried = self.carried.select(index)

    def reset(self, index: Tensor) -> None:
        self.carried = self.carried.reset(index)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        return self.carried
