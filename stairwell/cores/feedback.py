"""The Feedback Transformer (Fan et al., 2020, arXiv 2002.09402): every layer reads one memory of past thoughts.

    z_t^l = Attn(x_t^{l-1}, {m_{t-S}, ..., m_{t-1}})          every layer l = 1..L attends to the same memory
    x_t^l = FF(z_t^l)                                           as in any Transformer
    m_t   = sum_{l=0..L} softmax(w)_l x_t^l                     equation 1: all layers, token embedding included
    k_t   = W_k m_t,   v_t = W_v m_t                            shared by all layers, or one pair a layer

The memory's make-up is an option (figures 5 and 8): `all` as above; `average`; a number k, layer k alone (L is the
top); `recurrent`, where layer l attends to a learned mix of layers 0..l of the past, its own output included.
Letters: B rows, T tokens, S memory slots, D width, L layers, G memories (1; L for `recurrent`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from stairwell.cores.core import CoreState, Source, TransformerCore, WindowConfig, module_list
from stairwell.cores.time import KeysValues, after, ages, along_time, filled
from stairwell.field_types import SLOTS
from stairwell.layers import Layer, Masks, RelativePosition, Slots


@dataclass(frozen=True, kw_only=True)
class FeedbackConfig(WindowConfig):
    memory_composition: Literal["all", "average", "recurrent"] | int = "all"
    "what the memory is made of: all layers by learned weights, their average, recurrent, or the number of one layer"
    share_kv: bool = True
    "one pair of key and value projections for all layers instead of one pair a layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.memory_composition, int) and not 0 <= self.memory_composition <= self.layers:
            raise ValueError(
                f"memory_composition {self.memory_composition}: there are layers 0 (the embedding) to {self.layers} (the top)"
            )

    @property
    def memories(self) -> int:
        """How many vectors a slot holds (G)."""
        return self.layers if self.memory_composition == "recurrent" else 1


@dataclass(frozen=True, eq=False)
class FeedbackState(CoreState):
    memory: Tensor = field(metadata=SLOTS)  # (B, S + max_crop, G, D): m_t as it was made, before norm and projection


class Mix(nn.Module):
    """How much of each layer goes into each memory: softmax weights over layers 0..L for each of G memories."""

    def __init__(self, config: FeedbackConfig) -> None:
        super().__init__()
        L, G = config.layers, config.memories
        layer, memory = torch.arange(L + 1), torch.arange(G)
        # Recurrent memory l-1 serves layer l and mixes layers 0..l; every other memory mixes all layers.
        allowed = (
            layer <= memory[:, None] + 1 if config.memory_composition == "recurrent" else (layer >= 0).expand(G, L + 1)
        )
        if isinstance(config.memory_composition, int):
            allowed = (layer == config.memory_composition).expand(G, L + 1)
        self.register_buffer("allowed", allowed.clone(), persistent=False)
        learned = config.memory_composition in ("all", "recurrent")
        self.weights = nn.Parameter(torch.zeros(G, L + 1)) if learned else None

    def forward(self, like: Tensor) -> Tensor:
        """The mix (G, L + 1); each row adds up to 1."""
        allowed: Tensor = self.allowed  # type: ignore[assignment]
        weights = self.weights if self.weights is not None else like.new_zeros(allowed.shape)
        return weights.masked_fill(~allowed, -torch.inf).softmax(-1)


class Feedback(TransformerCore):
    state_type = FeedbackState

    def __init__(self, config: FeedbackConfig) -> None:
        super().__init__(config.width)
        self.config: FeedbackConfig = config
        self.window = config.window
        distances = self.window.distances
        self.layers = module_list(
            Layer(config, distances, owns_keys=l == 0 or not config.share_kv) for l in range(config.layers)
        )
        self.position = RelativePosition(config, distances)
        self.mix = Mix(config)

    def layer_weights(self) -> Tensor | None:
        return None if self.mix.weights is None else self.mix(self.mix.weights)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.config.memory + max_crop, self.config.memories, self.width)}

    def key_source(self, l: int) -> tuple[int, int]:
        """What the keys and values that layer l reads are made with and of: the layer whose norm and projections make
        them, and the memory. Where both are the same, layers share them."""
        return 0 if self.config.share_kv else l, min(l, self.config.memories - 1)

    def walk(
        self,
        x: Tensor,
        state: FeedbackState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, FeedbackState]:
        B, T, _ = x.shape
        S, L = self.config.memory, self.config.layers
        age = ages(state.count, start, T)
        mix = self.mix(x)  # (G, L + 1)
        sources = self.source_slots(source)
        reach = [self.reach(layer, S) for layer in self.layers]
        # All S slots are projected once; the max_crop beyond them is never read.
        past = {
            (projecting, g): KeysValues(self.layers[projecting].keys_values, state.memory[:, -S:, g])
            for projecting, g in dict.fromkeys(map(self.key_source, range(L)))
        }
        made: list[Tensor] = []
        outputs: list[Tensor] = []
        for t in range(T):
            x_t = [x[:, t : t + 1]]  # x_t^0, then x_t^1 ... x_t^L as they are computed
            for l, layer in enumerate(self.layers):
                slots = self.slots(x_t[l], past[self.key_source(l)], reach[l], age[:, t])
                x_t.append(self.apply_layer(layer, l, x_t[l], slots, sources[l], masks, t, t + 1))
            outputs.append(x_t[L])
            m_t = torch.einsum("gl,lbtd->btgd", mix, torch.stack(x_t))  # (B, 1, G, D)
            made.append(m_t)
            for (_, g), keys_values in past.items():
                keys_values.append(m_t[:, :, g])
        if self.seen is not None:
            self.seen.layer_weights = mix.detach()
        return along_time(outputs), after(state, along_time(made), age, start)

    def slots(self, x: Tensor, past: KeysValues, reach: int, age: Tensor) -> Slots:
        """What a layer sees of the past, and of itself if it may: the last `reach` slots that the row has filled."""
        keys, values = past.back(0, reach)
        if self.config.attend_to_current:
            own_key, own_value = past.project(x)
            keys, values = [*keys, own_key], [*values, own_value]
        distance = torch.arange(reach, self.window.first - 1, -1, device=x.device)
        return Slots(keys, values, distance[None], filled(distance, age[:, None])[:, None])
