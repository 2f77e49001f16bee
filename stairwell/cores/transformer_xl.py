"""Transformer-XL (Dai et al., 2019), the papers' "Transformer": each layer attends to the outputs of the layer below.

    z_t^l = Attn(x_t^{l-1}, {x_{t-S}^{l-1}, ..., x_{t-1}^{l-1}}),      x_t^l = FF(z_t^l)

Hidden states of past segments are cached, so every token attends to the S tokens before it, wherever a segment
starts.
Letters: B batch size, T tokens, S memory slots, D width, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.cores.core import MemoryState, Source, TransformerCore, WindowConfig, module_list
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.cores.step import Application, Buffer, Read, StepDescription, StoredVectors
from stairwell.layers import Layer, Masks, RelativePosition, Slots


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(WindowConfig):
    """The options that all cores with an attention window share, and no others."""


@dataclass(frozen=True, eq=False)
class TransformerXLState(MemoryState):
    """memory (B, S + max_crop, L, D): the input x^{l-1} of every layer."""


class TransformerXL(TransformerCore[TransformerXLConfig, TransformerXLState]):
    state_type: type[TransformerXLState] = TransformerXLState

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.window = config.window
        distances = self.window.distances
        self.layers = module_list(Layer(config, distances) for _ in range(config.layers))
        self.position = RelativePosition(config, distances)

    def layer_sequence(self) -> list[Layer]:
        """Return the layers in the order in which they are applied."""
        return list(self.layers)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.config.memory + max_crop, self.depth(), self.width)}

    def describe_step(self) -> StepDescription:
        window, layers = self.window, list(self.layers)
        sequence = [layers.index(layer) for layer in self.layer_sequence()]
        return StepDescription(
            applications=tuple(
                Application(layer, (Read(depth, window.first, window.last),), write=depth)
                for depth, layer in enumerate(sequence)
            ),
            buffers=tuple(Buffer(layer, depth, "memory") for depth, layer in enumerate(sequence)),
            memories=(StoredVectors("memory", tuple(range(len(sequence)))),),
            nearest=window.first,
            distances=window.distances,
            cross=self.config.cross,
        )

    def reference(
        self,
        x: Tensor,
        state: TransformerXLState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, TransformerXLState]:
        B, T, _ = x.shape
        since_start = tokens_since_start(state.count, start, T)
        sources = self.source_slots(source)
        inputs: list[Tensor] = []
        for l, layer in enumerate(self.layer_sequence()):
            inputs.append(x)
            slots = self.slots(layer, state.memory[:, :, l], x, since_start)
            x = self.apply_layer(layer, l, x, slots, sources[l % len(sources)], masks, 0, T)
        return x, state.advance(torch.stack(inputs, 2), since_start, start)

    def slots(self, layer: Layer, memory: Tensor, x: Tensor, since_start: Tensor) -> Slots:
        """Return the keys and values of the memory and of the segment, visible within the window of each token."""
        B, T, _ = x.shape
        span = self.attention_span(layer, self.window.last)
        old_keys, old_values = layer.keys_values(memory[:, memory.shape[1] - span :])
        new_keys, new_values = layer.keys_values(x)
        t = torch.arange(T, device=x.device)
        distance = t[:, None] - torch.arange(-span, T, device=x.device)  # (T, span + T)
        visible = self.window.visible(distance, since_start[:, :, None])
        return Slots([old_keys, new_keys], [old_values, new_values], distance, visible)
