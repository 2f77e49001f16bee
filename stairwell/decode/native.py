"""One token through all layers of a core in one native call, from the core's step description.

A description states, as data, what one token's step does: which layers run in which order, which ring each one writes,
which rings it reads over which distances, and how memory entries are formed. `steps` and `staircase` describe their
cores and own the rings; the loops are in fast/csrc/decode.h. Parameters are read in place, without a copy.

Letters: B streams, D width, H heads, K head width, R slots of a ring, P distances, A layer applications, G memory
entries, n sources, J source tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from stairwell.decode.rings import KeyRing, log_ramp
from stairwell.decode.source import Sources
from stairwell.fast import native
from stairwell.layers import Layer

WriteTime = Literal["never", "before", "after"]
WRITE_CODES: dict[WriteTime, int] = {"never": 0, "before": 1, "after": 2}
SAME_DTYPE = 0  # the parameter has the dtype of the computation


@dataclass(frozen=True)
class RingRead:
    """Positions that a layer attends to: distances first..last of a ring or, with `chunks`, the chunks i-first to
    i-last, where i is the token's own chunk (last None: back to the start of the stream)."""

    ring: int
    first: int
    last: int | None
    chunks: bool = False


@dataclass(frozen=True)
class LayerApplication:
    """One application of a layer. Its input, projected to a key and a value by the layer `projection`, may be written
    to a ring before or after the layer attends."""

    layer: int
    reads: Sequence[RingRead]
    write: WriteTime
    ring: int
    projection: int


@dataclass(frozen=True)
class MemoryWrite:
    """A memory entry, projected to a key and a value by a layer and written to a ring at the end of the step."""

    ring: int
    layer: int
    memory: int


@dataclass(frozen=True)
class StepDescription:
    """What one token's step does. `mix` (G, A + 1) gives each memory entry as a weighted sum of the step's input and
    the outputs of all applications."""

    layers: Sequence[Layer]
    applications: Sequence[LayerApplication]
    memory_writes: Sequence[MemoryWrite]
    mix: Tensor
    position: Tensor  # (P, K), nearest distance first
    nearest: int  # the nearest distance
    rings: int
    chunk: int = 1


class NativeStep:
    """The native interpreter of a step description."""

    def __init__(self, description: StepDescription) -> None:
        d, first = description, description.layers[0]
        attention, P = first.attention, len(description.position)
        self.description, self.like = d, d.position
        self.crossed = hasattr(first, "cross")
        farthest_first = torch.arange(d.nearest + P - 1, d.nearest - 1, -1, device=d.position.device)
        tensors: list[Tensor | None] = [d.position.flip(0).T.contiguous(), d.mix.detach().contiguous()]
        arguments = native.Arguments()
        arguments.add(native.BEST_INSTRUCTION_SET, attention.out.out_features, attention.H, attention.K)
        arguments.add(first.feed_forward.inner.out_features, P, d.nearest, d.chunk, len(d.mix), int(first.pre))
        arguments.add(len(d.layers), len(d.applications), len(d.memory_writes), int(self.crossed), d.rings)
        arguments.add(float(first.attention_norm.eps))
        sizes: list[int] = []
        for layer in d.layers:
            sizes += self._add_layer(layer, P, farthest_first, tensors)
        arguments.add(tensors)
        arguments.integers.extend(sizes)
        for application in d.applications:
            arguments.add(application.layer, WRITE_CODES[application.write], application.ring, application.projection)
            arguments.add(len(application.reads))
            for read in application.reads:
                arguments.add(read.ring, int(read.chunks), read.first, -1 if read.last is None else read.last)
        for write in d.memory_writes:
            arguments.add(write.ring, write.layer, write.memory)
        self.decoder = native.Decoder(arguments, d.position.dtype, tensors)

    def _add_layer(self, layer: Layer, P: int, distance: Tensor, tensors: list[Tensor | None]) -> list[int]:
        """Append a layer's parameters to `tensors`; return the integers that describe them."""
        attention, inner, outer = layer.attention, layer.feed_forward.inner, layer.feed_forward.out
        has_key = hasattr(attention, "key")
        integers = [P if layer.span is None else min(layer.span.max_span(), P)]

        def norm(norm: nn.LayerNorm) -> None:
            tensors.extend((norm.weight.detach(), norm.bias.detach()))

        def matrix(linear: nn.Linear | None) -> None:
            integers.append(SAME_DTYPE)
            weight = None if linear is None else linear.weight.detach().contiguous()
            bias = None if linear is None or linear.bias is None else linear.bias.detach()
            tensors.extend((weight, None, bias))

        norm(layer.attention_norm)
        norm(layer.feed_forward_norm)
        matrix(attention.query)
        integers.append(int(has_key))
        matrix(attention.key if has_key else None)
        matrix(attention.value if has_key else None)
        matrix(attention.out)
        matrix(inner)
        matrix(outer)
        tensors.append(None if layer.span is None else log_ramp(layer.span, distance).contiguous())
        if self.crossed:
            norm(layer.cross_norm)
            matrix(layer.cross.query)
            matrix(layer.cross.out)
        return integers

    def set_rings(self, rings: Sequence[KeyRing], batch: int, sources: Sources | None) -> None:
        """Pass the buffers of the rings and of the sources to the library. Call it whenever one is replaced."""
        buffers: list[Tensor | None] = [buffer for ring in rings for buffer in (ring.keys.all, ring.values.all)]
        arguments = native.Arguments(rings[0].keys.all.shape[0])
        self.sources: list[Tensor | None] = [None]
        self.source_index: Tensor | None = None
        if sources is not None:
            n, J = sources.mask.shape
            arguments.add(J, n)
            self.source_index = sources.source_index.contiguous()
            self.sources = [sources.mask.contiguous()]
            for layer in self.description.layers:
                slots = sources.slots[layer]
                self.sources += [slots.keys[0].contiguous(), slots.values[0].contiguous()]
        else:
            arguments.add(0, 0)
            self.sources += [None] * (2 * len(self.description.layers))
        arguments.integers.extend(ring.keys.all.shape[-1] for ring in rings)
        arguments.add([*buffers, *self.sources])
        self.decoder.set_rings(arguments)
        self.buffers = buffers  # the library keeps their addresses, so they must stay alive
        A, D = len(self.description.applications), self.description.layers[0].attention.out.out_features
        self.outputs = self.like.new_empty(A + 1, batch, D)
        self.memory = self.like.new_empty(len(self.description.mix), batch, D)

    def __call__(self, x: Tensor, count: Tensor, cursors: list[int]) -> tuple[Tensor, Tensor]:
        """Run one step. x (B, D), count (B,), the slot that each ring writes -> the input and the outputs of all
        applications (A + 1, B, D), the memory entries (G, B, D). Both are buffers that the next step overwrites."""
        self.outputs[0].copy_(x)
        buffers = [count.contiguous(), self.source_index, self.outputs, self.memory]
        self.decoder.step(native.Arguments(x.shape[0], cursors, buffers))
        return self.outputs, self.memory
