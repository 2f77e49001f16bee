"""One token through a core, for each kind of core: the maths of its walk over time with the past already projected.

    y = steps.step(x, count, youngest)         x, y (B, D), one token a row; count (B,) tokens read before

Feedback and Transformer-XL (Universal too, a pass is one more layer) read ring buffers, the Staircases as well (see
`staircase`); any other core carries its state from call to call.
Letters: B rows, S memory slots, D width, H heads, K head width, G memories a slot.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.cores.core import Core
from stairwell.cores.feedback import Feedback
from stairwell.cores.transformer_xl import TransformerXL
from stairwell.decode.rings import Dial, KeyRing, RawRing, Reader, Rows, Sight, log_ramp
from stairwell.layers import Layer
from stairwell.state import State

FAR = 1 << 40  # farther than any slot


class Steps(Protocol):
    """What a session needs of a core."""

    def step(self, x: Tensor, count: Tensor, youngest: int) -> Tensor:
        """x (B, D) -> (B, D); count (B,) tokens that each row has read before, `youngest` the least of them."""

    def load(self, first: int, state: Any) -> None:
        """The rows of a state become the rows from `first` on."""

    def select(self, rows: Tensor) -> None: ...

    def clear(self, rows: Tensor) -> None: ...

    def state(self, count: Tensor, room: Tensor) -> State: ...


def norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return torch.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T for (B, n) and a weight (m, n)."""
    # A CPU's product is at its worst for two to four rows; the other way round it is half as fast again.
    if 2 <= x.shape[0] <= 4 and x.device.type == "cpu":
        return torch.mm(weight, x.T).T.contiguous()
    return F.linear(x, weight)


class LayerStep:
    """A layer for one token a row. Weights that are always used together lie together."""

    def __init__(self, layer: Layer, distance: Tensor, fused: bool) -> None:
        attention = layer.attention
        self.layer, self.pre = layer, layer.pre
        self.out = attention.out.weight
        first, second = layer.feed_forward.inner, layer.feed_forward.out
        self.inner, self.inner_bias, self.outer, self.outer_bias = first.weight, first.bias, second.weight, second.bias
        self.query = attention.query.weight * attention.K**-0.5  # scores come out scaled
        if fused:
            self.query = torch.cat([self.query, attention.key.weight, attention.value.weight])
        self.ramp = log_ramp(layer.span, distance) if layer.span is not None else None
        self.reach = layer.span.reach() if layer.span is not None else FAR  # nearest distances that count

    def enter(self, x: Tensor) -> Tensor:
        """What the projections read."""
        return norm(self.layer.attention_norm, x) if self.pre else x

    def leave(self, x: Tensor, read: Tensor) -> Tensor:
        """From what attention has read to the layer's output. x (B, D), read (B, H * K) -> (B, D)"""
        layer = self.layer
        # A product and a sum are faster than their fusion: for one row that is a matrix times a vector.
        x = multiply(read, self.out).add_(x)
        if not self.pre:
            x = norm(layer.attention_norm, x)
        active = multiply(norm(layer.feed_forward_norm, x) if self.pre else x, self.inner).add_(self.inner_bias).relu_()
        y = multiply(active, self.outer).add_(self.outer_bias).add_(x)
        return y if self.pre else norm(layer.feed_forward_norm, y)


class RowSteps:
    """Buffers of rows that come, go and change places together."""

    def parts(self) -> list[Rows]:
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
            part.move(places, rows[places])
        self.fit(len(rows))

    def clear(self, rows: Tensor) -> None:
        for part in self.parts():
            part.clear(rows)


class RingSteps(RowSteps):
    """What Feedback and Transformer-XL share: rings of keys and values, a ring of raw memory, a dial."""

    core: Any

    def __init__(self, core: Any, capacity: int, slack: int, rings: int) -> None:
        config = core.config
        self.core, self.H, self.K, self.slack = core, config.heads, config.K, slack
        self.like = next(core.parameters()).detach()
        self.dial = Dial(core.position, config.memory)
        self.rings = [KeyRing(self.like, capacity, self.H, self.dial.R, self.K) for _ in range(rings)]
        self.raw = RawRing(self.like, capacity, *core.memory_shapes(slack)["memory"])  # (.., S + slack, vectors, D)

    def parts(self) -> list[Rows]:
        return [self.raw, *(rows for ring in self.rings for rows in (ring.keys, ring.values))]

    def fit(self, batch: int) -> None:
        for ring in self.rings:
            ring.fit(batch)
        self.batch = batch
        self.reader = Reader(self.like, batch, self.H, self.dial.R, self.K)

    def turn(self) -> None:
        self.dial.turn()
        self.raw.turn()

    def sources(self) -> list[tuple[Layer, int]]:
        """For each ring the layer that projects into it and which vector of the raw memory it projects."""
        raise NotImplementedError

    def load(self, first: int, state: Any) -> None:
        b, S = state.batch, self.core.config.memory
        self.make_room(first + b)
        self.raw.load(first, state.memory)
        filled = torch.arange(S, 0, -1, device=state.count.device) <= state.count[:, None]  # (b, S)
        for ring, (layer, vector) in zip(self.rings, self.sources(), strict=True):
            keys, values = layer.keys_values(state.memory[:, -S:, vector])
            ring.load(first, keys, values * filled[:, None, :, None], self.dial.oldest)
        self.fit(first + b)

    def state(self, count: Tensor, room: Tensor) -> State:
        return self.core.state_type(count, room, self.raw.memory(self.batch), slack=self.slack)


class FeedbackSteps(RingSteps):
    """Every layer reads the same ring, or one of its own where projections or memories are a layer's own."""

    def __init__(self, core: Feedback, capacity: int, slack: int) -> None:
        config = core.config
        self.one = config.share_kv and config.memories == 1
        super().__init__(core, capacity, slack, 1 if self.one else config.layers)
        self.layers = [LayerStep(layer, self.dial.distance, fused=False) for layer in core.layers]
        self.mix = core.mix(self.like)  # (G, L + 1)
        self.projections = {
            layer: torch.cat([layer.attention.key.weight, layer.attention.value.weight]) for layer, _ in self.sources()
        }

    def fit(self, batch: int) -> None:
        super().fit(batch)
        self.levels = self.like.new_empty(len(self.layers) + 1, batch, self.core.width)

    def sources(self) -> list[tuple[Layer, int]]:
        G = self.core.config.memories
        return [(self.core.projecting_layer(l), min(l, G - 1)) for l in range(len(self.rings))]

    def step(self, x: Tensor, count: Tensor, youngest: int) -> Tensor:
        B, D = x.shape
        sight = Sight.at(self.dial, count, youngest)
        levels = [x]  # x^0, then x^1 ... x^L
        for l, layer in enumerate(self.layers):
            ring = self.rings[0 if self.one else l]
            if self.core.config.sees_itself:
                self.write(ring, self.core.projecting_layer(l), levels[l])  # m_t takes its place below
            q = multiply(layer.enter(levels[l]), layer.query)
            read = self.reader(q, ring, sight, layer.ramp, layer.reach)
            levels.append(layer.leave(levels[l], read))
        made = torch.mm(self.mix, torch.stack(levels, out=self.levels).view(-1, B * D)).view(-1, B, D)  # (G, B, D)
        self.raw.slot(B).copy_(made.transpose(0, 1)[:, None])
        for ring, (projecting, g) in zip(self.rings, self.sources()):
            self.write(ring, projecting, made[g])
        self.turn()
        return levels[-1]

    def write(self, ring: KeyRing, layer: Layer, memory: Tensor) -> None:
        """memory (B, D) as keys and values at the hand."""
        both = multiply(norm(layer.attention_norm, memory) if layer.pre else memory, self.projections[layer])
        ring.write(self.dial.hand, *both.chunk(2, 1))


class TransformerXLSteps(RingSteps):
    """Each layer reads a ring of its own inputs."""

    def __init__(self, core: TransformerXL, capacity: int, slack: int) -> None:
        self.stack = core.stack()
        super().__init__(core, capacity, slack, len(self.stack))
        steps = {layer: LayerStep(layer, self.dial.distance, fused=True) for layer in core.layers}
        self.layers = [steps[layer] for layer in self.stack]

    def sources(self) -> list[tuple[Layer, int]]:
        return [(layer, l) for l, layer in enumerate(self.stack)]

    def step(self, x: Tensor, count: Tensor, youngest: int) -> Tensor:
        sight = Sight.at(self.dial, count, youngest)
        itself = self.core.config.sees_itself
        slot = self.raw.slot(self.batch)[:, 0]  # (B, layers, D)
        for l, (layer, ring) in enumerate(zip(self.layers, self.rings)):
            slot[:, l].copy_(x)
            q, keys, values = multiply(layer.enter(x), layer.query).chunk(3, 1)
            if itself:
                ring.write(self.dial.hand, keys, values)
            read = self.reader(q, ring, sight, layer.ramp, layer.reach)
            if not itself:  # until now the slot held the farthest token, which is in sight
                ring.write(self.dial.hand, keys, values)
            x = layer.leave(x, read)
        self.turn()
        return x


class CarriedSteps:
    """Any other core: its own walk, one token a call, from the state that the last call returned."""

    carried: State

    def __init__(self, core: Core) -> None:
        self.core = core

    def step(self, x: Tensor, count: Tensor, youngest: int) -> Tensor:
        y, self.carried = self.core(x[:, None], self.carried)
        return y[:, 0]

    def load(self, first: int, state: State) -> None:
        self.carried = type(state).join([self.carried.select(range(first)), state]) if first else state

    def select(self, rows: Tensor) -> None:
        self.carried = self.carried.select(rows)

    def clear(self, rows: Tensor) -> None:
        self.carried = self.carried.reset(rows)

    def state(self, count: Tensor, room: Tensor) -> State:
        return self.carried
