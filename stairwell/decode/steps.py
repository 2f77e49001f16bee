"""One token through a core, for each kind of core: the maths of its walk over time with the past already projected.

    y = steps.step(x, count, newest)         x, y (B, D), one token a row; count (B,) tokens read before
    y = steps.run(x, count, newest)          x, y (B, T, D), several tokens a row

Feedback and Transformer-XL (Universal too, a pass is one more layer) read ring buffers, the Staircases as well (see
`staircase`); any other core carries its state from call to call.
Letters: B rows, T tokens, S memory slots, D width, H heads, K head width, G memories a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from stairwell.cores.core import Core
from stairwell.cores.feedback import Feedback
from stairwell.cores.time import filled
from stairwell.cores.transformer_xl import TransformerXL
from stairwell.decode.native import Application, Entry, NativeStep, Read, StepDescription, supports
from stairwell.decode.products import plain
from stairwell.decode.rings import (
    KeyRing,
    RawRing,
    Reader,
    RingPosition,
    RingView,
    RowBuffer,
    RunView,
    log_ramp,
    longer,
)
from stairwell.decode.source import Sources
from stairwell.fast.products import PackedLinear
from stairwell.layers import Layer, ResidualLayer, Sublayer
from stairwell.state import State


class Steps(Protocol):
    """What a session needs of a core."""

    def step(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        """x (B, D) -> (B, D); count (B,) tokens that each row has read before, `newest` the least of them."""

    def run(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        """The same for several tokens a row, one after the other or at once. x (B, T, D) -> (B, T, D)"""

    def back(self, tokens: int) -> bool:
        """Take the last tokens of all rows back; false where the state has to be loaded instead."""

    def load(self, first: int, state: Any) -> None:
        """The rows of a state become the rows from `first` on."""

    def set_sources(self, sources: Sources) -> None:
        """What rows attend to besides; called again whenever rows or sentences have changed."""

    def select(self, rows: Tensor) -> None: ...

    def clear(self, rows: Tensor) -> None: ...

    def state(self, count: Tensor, croppable: Tensor) -> State: ...


class LayerStep(ResidualLayer):
    """A layer for one token a row. Weights that are always used together lie together, and norms are plain functions:
    at one row a module's call costs as much as its work."""

    def __init__(self, layer: Layer, distance: Tensor, fused: bool) -> None:
        """`distance` of the slots in the order of the tables; `fused`: keys and values are projected with queries."""
        self.layer, self.pre, self.residual_rate = layer, layer.pre, layer.residual_rate
        self.attention_norm, self.feed_forward_norm = plain(layer.attention_norm), plain(layer.feed_forward_norm)
        if hasattr(layer, "cross"):
            self.cross_norm = plain(layer.cross_norm)
        self.fused = fused
        self.place(distance)
        self.attend_source: Sublayer | None = None

    # Made when they are first used: the native interpreter reads the parameters themselves.
    @cached_property
    def query(self) -> PackedLinear:
        attention = self.layer.attention
        query = attention.query.weight * attention.K**-0.5  # scores come out scaled
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

    def place(self, distance: Tensor) -> None:
        """The distance of each slot."""
        span = self.layer.span
        self.ramp = log_ramp(span, distance) if span is not None else None
        # How many of the nearest slots count.
        self.reach = span.reach() if span is not None else len(distance)

    def __call__(self, x: Tensor, read: Sublayer) -> Tensor:
        """x (B, D) -> the layer's output (B, D); `read` is attention up to its last projection, (B, D) -> (B, H * K)"""
        return self.apply_sublayers(x, lambda normed: self.out(read(normed)), self.attend_source, self.feed)

    def feed(self, normed: Tensor) -> Tensor:
        """The feed-forward sublayer."""
        return self.outer(self.inner(normed, relu=True))


class RowSteps:
    """Buffers of rows that come, go and change places together."""

    layers: Sequence[LayerStep]
    batch: int
    native: NativeStep | None = None
    sources: Sources | None = None

    def step(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        raise NotImplementedError

    def describe(self) -> StepDescription:
        """What one token's step does."""
        raise NotImplementedError

    def key_rings(self) -> Sequence[KeyRing]:
        raise NotImplementedError

    def use_native(self, like: Tensor) -> None:
        """Let the native interpreter do the steps, where it runs."""
        if supports(None, like):
            self.native = NativeStep(self.describe())

    def run(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        return torch.stack([self.step(x[:, t], count + t, newest + t) for t in range(x.shape[1])], 1)

    def back(self, tokens: int) -> bool:
        return False

    def set_sources(self, sources: Sources) -> None:
        self.sources = sources
        if self.native is not None:
            self.native.set_rings(self.key_rings(), self.batch, sources)
        for layer in self.layers:
            layer.attend_source = sources.attend(layer.layer)

    def parts(self) -> list[RowBuffer]:
        raise NotImplementedError

    def fit(self, batch: int) -> None:
        """Make what a step of so many rows needs."""
        raise NotImplementedError

    def make_room(self, batch: int) -> None:
        capacity = self.parts()[0].all.shape[0]
        if batch > capacity:
            for part in self.parts():
                part.grow(max(batch, 2 * capacity))  # doubling: many joins cost as much as a few

    def select(self, rows: Tensor) -> None:
        self.make_room(len(rows))
        # In a beam most rows go on where they are; only the others are copied.
        places = (rows != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
        for part in self.parts():
            part.move(rows, places)
        self.fit(len(rows))

    def clear(self, rows: Tensor) -> None:
        for part in self.parts():
            part.clear(rows)


class RingSteps(RowSteps):
    """What Feedback and Transformer-XL share: rings of keys and values, and a ring of raw memory."""

    core: Any

    def __init__(self, core: Any, capacity: int, max_crop: int, rings: int) -> None:
        config = core.config
        self.core, self.H, self.K, self.max_crop = core, config.heads, config.K, max_crop
        self.like = next(core.parameters()).detach()
        self.R = core.window.distances + max_crop  # slots that the rings have at most
        self.position = RingPosition(core.position, core.window, longer(0, 0, self.R))
        self.rings = [KeyRing(self.like, capacity, self.H, self.position.R, self.K) for _ in range(rings)]
        self.raw = RawRing(
            self.like, capacity, *core.memory_shapes(max_crop)["memory"]
        )  # (.., S + max_crop, vectors, D)

    def parts(self) -> list[RowBuffer]:
        return [self.raw, *(rows for ring in self.rings for rows in (ring.keys, ring.values))]

    def fit(self, batch: int) -> None:
        for ring in self.rings:
            ring.fit(batch)
        self.batch = batch
        if self.native is not None:
            self.native.set_rings(self.rings, batch, self.sources)
        self.reader = Reader(self.like, batch, self.H, self.position.R, self.K)

    def lengthen(self, needed: int) -> None:
        """Have room for so many tokens, or for as many as are ever in sight."""
        R = self.position.R
        if min(needed, self.R) <= R:
            return
        cursor, more = self.position.cursor, longer(R, needed, self.R)
        for ring in self.rings:
            ring.lengthen(more, cursor)
        self.position = RingPosition(self.core.position, self.core.window, more, R)
        for layer in self.layers:
            layer.place(self.position.distance)
        self.fit(self.batch)

    def key_rings(self) -> Sequence[KeyRing]:
        return self.rings

    def window_read(self, ring: int) -> Read:
        return Read(ring, self.core.window.first, self.core.window.last)

    def description(
        self, applications: Sequence[Application], entries: Sequence[Entry], mix: Tensor
    ) -> StepDescription:
        table = self.position.nearest_first
        return StepDescription(
            [*self.core.layers], applications, entries, mix, table, self.core.window.first, len(self.rings)
        )

    def native_step(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        assert self.native is not None
        self.lengthen(self.raw.filled + 1)
        return self.native(x, count, [self.position.cursor] * len(self.rings))

    def view(self, count: Tensor, newest: int) -> RingView:
        """What the layers have in common at the next step, once there is a slot for it."""
        self.lengthen(self.raw.filled + 1)
        return RingView.at(self.position, count, newest)

    def advance(self, tokens: int = 1) -> None:
        self.position.advance(tokens)
        self.raw.advance(tokens)

    def back(self, tokens: int) -> bool:
        self.position.advance(-tokens)
        self.raw.back(tokens)
        for ring in self.rings:
            ring.empty(self.position.next_slots(tokens))
        return True

    def projected(self) -> list[tuple[Layer, int]]:
        """For each ring the layer that projects into it and which vector of the raw memory it projects."""
        raise NotImplementedError

    def load(self, first: int, state: Any) -> None:
        b, slots = state.memory.shape[:2]  # S and the max_crop
        oldest = int(state.count.max()) if b else 0
        self.batch = first + b
        self.make_room(self.batch)
        self.raw.load(first, state.memory, oldest)
        self.lengthen(self.raw.filled + 1)
        n = min(slots, oldest)  # nothing is in the others
        there = filled(torch.arange(n, 0, -1, device=state.count.device), state.count[:, None])  # (b, n)
        for ring, (layer, vector) in zip(self.rings, self.projected(), strict=True):
            keys, values = layer.keys_values(state.memory[:, slots - n :, vector])
            ring.load(first, keys, values * there[:, None, :, None], self.position.slot(n))
        self.fit(self.batch)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        return self.core.state_type(count, croppable, self.raw.memory(self.batch), max_crop=self.max_crop)


class FeedbackSteps(RingSteps):
    """Every layer reads the same ring, or one of its own where projections or memories are a layer's own."""

    def __init__(self, core: Feedback, capacity: int, max_crop: int) -> None:
        sources = [core.key_source(l) for l in range(len(core.layers))]
        self.key_sources = list(dict.fromkeys(sources))  # of each ring, as in the core
        self.ring_of = [self.key_sources.index(source) for source in sources]  # of each layer
        super().__init__(core, capacity, max_crop, len(self.key_sources))
        self.layers = [LayerStep(layer, self.position.distance, fused=False) for layer in core.layers]
        self.mix = core.mix(self.like)  # (G, L + 1)
        self.use_native(self.like)

    @cached_property
    def projections(self) -> dict[int, PackedLinear]:
        attention = {l: self.core.layers[l].attention for l, _ in self.key_sources}
        return {l: PackedLinear(torch.cat([a.key.weight, a.value.weight])) for l, a in attention.items()}

    def describe(self) -> StepDescription:
        write: Any = "before" if self.core.config.attend_to_current else "never"
        applications = [
            Application(l, [self.window_read(ring)], write, ring, self.key_sources[ring][0])
            for l, ring in enumerate(self.ring_of)
        ]
        entries = [Entry(r, l, g) for r, (l, g) in enumerate(self.key_sources)]
        return self.description(applications, entries, self.mix)

    def fit(self, batch: int) -> None:
        super().fit(batch)
        self.levels = self.like.new_empty(len(self.layers) + 1, batch, self.core.width)

    def projected(self) -> list[tuple[Layer, int]]:
        return [(self.core.layers[l], g) for l, g in self.key_sources]

    def step(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        B, D = x.shape
        if self.native is not None:
            outputs, memory = self.native_step(x, count)
            self.raw.slot(B).copy_(memory.transpose(0, 1)[:, None])
            self.advance()
            return outputs[-1].clone()
        view = self.view(count, newest)
        levels = [x]  # x^0, then x^1 ... x^L
        for l, layer in enumerate(self.layers):
            own = self.ring_of[l]
            if self.core.config.attend_to_current:
                self.write(own, levels[l])  # m_t takes its place below
            levels.append(layer(levels[l], partial(self.read, layer, self.rings[own], view)))
        made = torch.mm(self.mix, torch.stack(levels, out=self.levels).view(-1, B * D)).view(-1, B, D)  # (G, B, D)
        self.raw.slot(B).copy_(made.transpose(0, 1)[:, None])
        for r, (_, g) in enumerate(self.key_sources):
            self.write(r, made[g])
        self.advance()
        return levels[-1]

    def read(self, layer: LayerStep, ring: KeyRing, view: RingView, normed: Tensor) -> Tensor:
        """What a layer reads from a ring. (B, D) -> (B, H * K)"""
        return self.reader(layer.query(normed), ring, view, layer.ramp, layer.reach)

    def write(self, r: int, memory: Tensor) -> None:
        """memory (B, D) as keys and values of ring r, at the cursor."""
        l, _ = self.key_sources[r]
        both = self.projections[l](self.layers[l].normed(memory))
        self.rings[r].write(self.position.cursor, *both.chunk(2, 1))


class TransformerXLSteps(RingSteps):
    """Each layer reads a ring of its own inputs."""

    def __init__(self, core: TransformerXL, capacity: int, max_crop: int) -> None:
        sequence = core.layer_sequence()
        super().__init__(core, capacity, max_crop, len(sequence))
        steps = {layer: LayerStep(layer, self.position.distance, fused=True) for layer in core.layers}
        self.layers = [steps[layer] for layer in sequence]
        self.use_native(self.like)

    def describe(self) -> StepDescription:
        write: Any = "before" if self.core.config.attend_to_current else "after"
        layers = [*self.core.layers]
        indices = [layers.index(step.layer) for step in self.layers]
        applications = [
            Application(layer, [self.window_read(ring)], write, ring, layer) for ring, layer in enumerate(indices)
        ]
        return self.description(applications, [], self.like.new_empty(0, len(indices) + 1))

    def projected(self) -> list[tuple[Layer, int]]:
        return [(step.layer, l) for l, step in enumerate(self.layers)]

    def step(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        if self.native is not None:
            outputs, _ = self.native_step(x, count)
            self.raw.slot(self.batch).copy_(outputs[:-1].transpose(0, 1)[:, None])
            self.advance()
            return outputs[-1].clone()
        view = self.view(count, newest)
        slot = self.raw.slot(self.batch)[:, 0]  # (B, layers, D)
        for l, (layer, ring) in enumerate(zip(self.layers, self.rings)):
            slot[:, l].copy_(x)
            x = layer(x, partial(self.write_and_read, layer, ring, view))
        self.advance()
        return x

    def run(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        """Tokens of a call do not wait for each other here, so parameters are read once for all of them. A ring has
        room for as many as fit besides the first one's window."""
        most = self.R - self.core.window.last
        if most < 2 or self.layers[0].attend_source is not None:
            return super().run(x, count, newest)
        self.lengthen(self.R)
        parts, done = [], 0
        for part in x.split(most, 1):
            parts.append(self.run_together(part, count + done, newest + done))
            done += part.shape[1]
        return torch.cat(parts, 1)

    def run_together(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        B, T, D = x.shape
        view = RunView.at(self.position, count, newest, T)
        slots = self.position.next_slots(T)
        raw, flat = self.raw.slots(T), x.reshape(B * T, D)
        for l, (layer, ring) in enumerate(zip(self.layers, self.rings)):
            self.raw.all[:B, raw, l] = flat.view(B, T, D)
            flat = layer(flat, partial(self.write_and_read_run, layer, ring, slots, view))
        self.advance(T)
        return flat.view(B, T, D)

    def write_and_read_run(
        self, layer: LayerStep, ring: KeyRing, slots: Tensor, view: RunView, normed: Tensor
    ) -> Tensor:
        """The same as below for T tokens a row. (B * T, D) -> (B * T, H * K)"""
        q, keys, values = layer.query(normed).chunk(3, 1)
        ring.write_run(slots, keys, values)
        return view.read(q, ring, self.position, layer.ramp)

    def write_and_read(self, layer: LayerStep, ring: KeyRing, view: RingView, normed: Tensor) -> Tensor:
        """The token's key and value into the ring, and what the layer reads from it. (B, D) -> (B, H * K)"""
        q, keys, values = layer.query(normed).chunk(3, 1)
        if self.core.config.attend_to_current:
            ring.write(self.position.cursor, keys, values)
            return self.reader(q, ring, view, layer.ramp, layer.reach)
        read = self.reader(q, ring, view, layer.ramp, layer.reach)
        # Until now the slot held the farthest token, which is in the window.
        ring.write(self.position.cursor, keys, values)
        return read


class CarriedSteps:
    """Any other core: its own walk, one token a call, from the state that the last call returned."""

    carried: State

    def __init__(self, core: Core) -> None:
        self.core = core
        self.source: tuple[Tensor, Tensor] | tuple[()] = ()

    def set_sources(self, sources: Sources) -> None:
        self.source = sources.by_row()

    def step(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        y, self.carried = self.core(x[:, None], self.carried, None, *self.source)
        return y[:, 0]

    def run(self, x: Tensor, count: Tensor, newest: int) -> Tensor:
        y, self.carried = self.core(x, self.carried, None, *self.source)
        return y

    def back(self, tokens: int) -> bool:
        self.carried = self.carried.crop(tokens)
        return True

    def load(self, first: int, state: State) -> None:
        self.carried = type(state).join([self.carried.select(range(first)), state]) if first else state

    def select(self, rows: Tensor) -> None:
        self.carried = self.carried.select(rows)

    def clear(self, rows: Tensor) -> None:
        self.carried = self.carried.reset(rows)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        return self.carried
