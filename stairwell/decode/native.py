"""One token through all layers and the head in one native call: the native interpreter of a step description.

`NativeProgram` packs a model's matrices once (`packing.py`); sessions share them. `NativeSession` has the buffers of a
session's streams. The loops are in fast/csrc/decode.h.

Letters: B streams, D width, H heads, K head width, R slots of a ring, P distances, A layer applications, V vocabulary
size, n sources, J source tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from stairwell.cores.step import StepDescription
from stairwell.decode.packing import in_one_buffer, padded, panels
from stairwell.decode.rings import KeyRing, RawRing, log_ramp
from stairwell.decode.source import Sources
from stairwell.decode.weights import STORAGE_CODES, Weights, quantize_matrix
from stairwell.fast import native
from stairwell.layers import Layer


@dataclass(frozen=True)
class HeadMatrix:
    """The head as one matrix (V, D) with an optional bias."""

    weight: Tensor
    bias: Tensor | None

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]


@dataclass(frozen=True)
class Output:
    """The final norm and the head of a model, as far as native code computes them."""

    norm: nn.LayerNorm | None
    head: HeadMatrix | None


class NativeProgram:
    """A model's step in the native library: layers, position table (P, K), nearest distance first, and output."""

    def __init__(
        self, d: StepDescription, layers: Sequence[Layer], position: Tensor, output: Output, weights: Weights
    ) -> None:
        first, self.layers, self.weights, self.dtype = layers[0], layers, weights, position.dtype
        attention, P = first.attention, len(position)
        self.crossed = hasattr(first, "cross")
        self.V = 0 if output.head is None else output.head.out_features
        self.has_norm = output.norm is not None
        farthest_first = torch.arange(d.nearest + P - 1, d.nearest - 1, -1, device=position.device)
        mix = position.new_zeros(0, len(d.applications) + 1) if d.mix is None else d.mix.detach().contiguous()
        self.tensors: list[Tensor | None] = [position.flip(0).T.contiguous(), mix]
        self.sizes: list[int] = []
        self.matrices: list[int] = []  # the indices of packed matrices in `tensors`
        for layer in layers:
            self._add_layer(layer, P, farthest_first)
        self.tensors.extend((None, None) if output.norm is None else parameters_of(output.norm))
        self._add_matrix(output.head)
        for index, matrix in zip(self.matrices, in_one_buffer([cast(Tensor, self.tensors[i]) for i in self.matrices])):
            self.tensors[index] = matrix
        arguments = native.Arguments()
        arguments.add(native.BEST_INSTRUCTION_SET, attention.out.out_features, attention.H, attention.K)
        arguments.add(first.feed_forward.inner.out_features, P, self.V, d.nearest, d.chunk, d.mixes, int(first.pre))
        arguments.add(len(layers), len(d.applications), int(self.crossed), len(d.buffers), len(d.memories))
        arguments.add(float(first.attention_norm.eps), float(output.norm.eps) if output.norm is not None else 0.0)
        arguments.add(self.tensors)
        arguments.integers.extend(self.sizes)
        final_writes = set(d.final_writes)
        for r, buffer in enumerate(d.buffers):
            arguments.add(buffer.layer, buffer.vector, int(r in final_writes))
        for memory in d.memories:
            arguments.add(list(memory.vectors))
        for application in d.applications:
            write = 0 if application.write is None else application.write + 1
            arguments.add(application.layer, write, len(application.reads))
            for read in application.reads:
                arguments.add(read.buffer, int(read.chunks), read.first, -1 if read.last is None else read.last)
        self.program = native.DecodeProgram(arguments, position.dtype, self.tensors)

    def _add_layer(self, layer: Layer, P: int, distance: Tensor) -> None:
        """Append a layer's parameters to `tensors`, and the integers that describe them to `sizes`."""
        attention = layer.attention
        has_key = hasattr(attention, "key")
        self.sizes.append(P if layer.span is None else min(layer.span.max_span(), P))
        self.tensors.extend(parameters_of(layer.attention_norm))
        self.tensors.extend(parameters_of(layer.feed_forward_norm))
        self._add_matrix(attention.query)
        self.sizes.append(int(has_key))
        self._add_matrix(attention.key if has_key else None)
        self._add_matrix(attention.value if has_key else None)
        self._add_matrix(attention.out)
        self._add_matrix(layer.feed_forward.inner)
        self._add_matrix(layer.feed_forward.out)
        self.tensors.append(None if layer.span is None else log_ramp(layer.span, distance).contiguous())
        if self.crossed:
            self.tensors.extend(parameters_of(layer.cross_norm))
            self._add_matrix(layer.cross.query)
            self._add_matrix(layer.cross.out)

    def _add_matrix(self, linear: nn.Linear | HeadMatrix | None) -> None:
        weight, scale, bias = None, None, None
        if linear is not None:
            weight, scale = quantize_matrix(linear.weight.detach(), self.weights)
            weight, scale = panels(weight), None if scale is None else padded(scale)
            bias = None if linear.bias is None else padded(linear.bias.detach())
            self.matrices.append(len(self.tensors))
        self.sizes.append(STORAGE_CODES[self.weights])
        self.tensors.extend((weight, scale, bias))


def parameters_of(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return norm.weight.detach(), norm.bias.detach()


class NativeSession:
    """A session's buffers. `set_buffers` has to be called whenever one is replaced."""

    def __init__(self, program: NativeProgram) -> None:
        self.program, self.session = program, native.DecodeSession(program.program)

    def set_buffers(self, rings: Sequence[KeyRing], raw: Sequence[RawRing], sources: Sources | None) -> None:
        self.rings, self.raw = rings, raw
        tensors: list[Tensor | None] = [buffer for ring in rings for buffer in (ring.keys.all, ring.values.all)]
        tensors += [ring.all for ring in raw]
        self.source_index: Tensor | None = None
        if sources is not None:
            n, J = sources.mask.shape
            self.source_index = sources.source_index.contiguous()
            tensors.append(sources.mask.contiguous())
            for layer in self.program.layers:
                slots = sources.slots[layer]
                tensors += [slots.keys[0].contiguous(), slots.values[0].contiguous()]
        else:
            n, J = 0, 0
            tensors += [None] * (2 * len(self.program.layers) + 1)
        is_rounded = rings[0].keys.all.dtype == torch.bfloat16
        sizes = [*(ring.slots for ring in rings), *(ring.slots for ring in raw)]
        self.session.set_buffers(native.Arguments(rings[0].keys.all.shape[0], J, n, int(is_rounded), sizes, tensors))
        self.tensors = tensors  # the library keeps their addresses, so they must stay alive

    def step(self, x: Tensor, count: Tensor, logits: bool) -> tuple[Tensor, Tensor | None]:
        """Run one step. x (B, D), count (B,) -> the output of the core after the final norm (B, D), and the logits
        (B, V) if wanted"""
        x, B = x.contiguous(), len(x)
        hidden = torch.empty_like(x)
        scores = x.new_empty(B, self.program.V) if logits else None
        cursors = [*(ring.cursor for ring in self.rings), *(ring.cursor for ring in self.raw)]
        tensors = [count.contiguous(), self.source_index, x, hidden, scores]
        self.session.step(native.Arguments(B, int(logits), cursors, tensors))
        return hidden, scores
