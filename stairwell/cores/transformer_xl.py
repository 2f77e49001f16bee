"""Transformer-XL (Dai et al., 2019), the papers' "Transformer": each layer attends to the layer below, S tokens back.

    z_t^l = Attn(x_t^{l-1}, {x_{t-S}^{l-1}, ..., x_{t-1}^{l-1}}),      x_t^l = FF(z_t^l)

Hidden states of the past are kept, so every token has the same S tokens of context wherever a segment begins.
Letters: B rows, T tokens, S memory slots, D width, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import CoreState, Source, TransformerCore, WindowConfig, module_list
from stairwell.cores.time import after, ages
from stairwell.field_types import SLOTS
from stairwell.layers import Layer, Masks, RelativePosition, Slots
from stairwell.state import State


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(WindowConfig):
    """Only what every core with a window has."""


@dataclass(frozen=True, eq=False)
class TransformerXLState(CoreState):
    memory: Tensor = field(metadata=SLOTS)  # (B, S + max_crop, L, D): the input x^{l-1} of every layer


class TransformerXL(TransformerCore):
    state_type: type[CoreState] = TransformerXLState

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config.width)
        self.config: TransformerXLConfig = config
        self.window = config.window
        distances = self.window.distances
        self.layers = module_list(Layer(config, distances) for _ in range(config.layers))
        self.position = RelativePosition(config, distances)

    def layer_sequence(self) -> list[Layer]:
        """The layers in the order in which a token goes through them."""
        return list(self.layers)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.config.memory + max_crop, self.depth(), self.width)}

    def walk(
        self,
        x: Tensor,
        state: Any,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        age = ages(state.count, start, T)
        sources = self.source_slots(source)
        inputs: list[Tensor] = []
        for l, layer in enumerate(self.layer_sequence()):
            inputs.append(x)
            slots = self.slots(layer, state.memory[:, :, l], x, age)
            x = self.apply_layer(layer, l, x, slots, sources[l % len(sources)], masks, 0, T)
        return x, after(state, torch.stack(inputs, 2), age, start)

    def slots(self, layer: Layer, memory: Tensor, x: Tensor, age: Tensor) -> Slots:
        """The last S inputs of this layer before each token (itself too, if it may), those of the memory first."""
        B, T, _ = x.shape
        reach = self.reach(layer, self.window.last)
        old_keys, old_values = layer.keys_values(memory[:, memory.shape[1] - reach :])
        new_keys, new_values = layer.keys_values(x)
        time = torch.arange(T, device=x.device)
        distance = time[:, None] - torch.arange(-reach, T, device=x.device)  # (T, reach + T)
        visible = self.window.sees(distance, age[:, :, None])
        return Slots([old_keys, new_keys], [old_values, new_values], distance, visible)
