"""The Feedback Transformer (Fan et al., 2020, arXiv 2002.09402): all layers attend to one memory of past states.

    z_t^l = Attn(x_t^{l-1}, {m_{t-S}, ..., m_{t-1}})          every layer l = 1..L attends to the same memory
    x_t^l = FF(z_t^l)                                           as in any Transformer
    m_t   = sum_{l=0..L} softmax(w)_l x_t^l                     equation 1: all layers, token embedding included
    k_t   = W_k m_t,   v_t = W_v m_t                            shared by all layers, or one pair per layer

Memory composition (figures 5 and 8): `all` as above; `average`; a number k, layer k alone (L is the top); `recurrent`,
where layer l attends to a learned mix of layers 0..l of the past, its own output included.
Letters: B batch size, T tokens, S memory slots, D width, L layers, G memories (1; L for `recurrent`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from stairwell.cores.core import MemoryState, Source, TransformerCore, WindowConfig, module_list
from stairwell.cores.sliding_window import KeysValues, concat_time, filled, tokens_since_start
from stairwell.cores.step import Application, Buffer, Read, StepDescription, StoredVectors
from stairwell.layers import Layer, Masks, RelativePosition, Slots


@dataclass(frozen=True, kw_only=True)
class FeedbackConfig(WindowConfig):
    memory_composition: Literal["all", "average", "recurrent"] | int = "all"
    "Memory composition: all layers with learned weights, their average, recurrent, or the number of a single layer."
    share_kv: bool = True
    "One pair of key and value projections for all layers instead of one pair per layer."

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.memory_composition, int) and not 0 <= self.memory_composition <= self.layers:
            raise ValueError(
                f"memory_composition {self.memory_composition}: choose a layer from 0 (the embedding) to {self.layers} "
                "(the top)"
            )

    @property
    def memories(self) -> int:
        """Number of memory vectors per slot (G)."""
        return self.layers if self.memory_composition == "recurrent" else 1


@dataclass(frozen=True, eq=False)
class FeedbackState(MemoryState):
    """memory (B, S + max_crop, G, D): m_t before norm and projection."""


class Mix(nn.Module):
    """The share of each layer in each memory: softmax over layers 0..L for each of G memories."""

    allowed: Tensor

    def __init__(self, config: FeedbackConfig) -> None:
        super().__init__()
        L, G = config.layers, config.memories
        layer, memory = torch.arange(L + 1), torch.arange(G)
        allowed = torch.ones(G, L + 1, dtype=torch.bool)
        if config.memory_composition == "recurrent":
            allowed = layer <= memory[:, None] + 1  # memory l-1 is read by layer l and mixes layers 0..l
        elif isinstance(config.memory_composition, int):
            allowed = (layer == config.memory_composition)[None]
        self.register_buffer("allowed", allowed, persistent=False)
        learned = config.memory_composition in ("all", "recurrent")
        self.weights = nn.Parameter(torch.zeros(G, L + 1)) if learned else None

    def forward(self, like: Tensor) -> Tensor:
        """Return the shares (G, L + 1), each row with sum 1, with the device and dtype of `like`."""
        weights = self.weights if self.weights is not None else like.new_zeros(self.allowed.shape)
        return weights.masked_fill(~self.allowed, -torch.inf).softmax(-1)


class Feedback(TransformerCore[FeedbackConfig, FeedbackState]):
    state_type = FeedbackState
    kv_precision: Literal["float32", "bf16"] = "float32"  # how calls store keys and values of past tokens

    def __init__(self, config: FeedbackConfig) -> None:
        super().__init__(config)
        self.window = config.window
        distances = self.window.distances
        self.layers = module_list(
            Layer(config, distances, owns_keys=l == 0 or not config.share_kv) for l in range(config.layers)
        )
        self.position = RelativePosition(config, distances)
        self.mix = Mix(config)

    def layer_weights(self) -> Tensor | None:
        if self.mix.weights is None:
            return None
        shares: Tensor = self.mix(self.mix.weights)
        return shares

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.config.memory + max_crop, self.config.memories, self.width)}

    def key_source(self, l: int) -> tuple[int, int]:
        """Return the layer that projects the keys and values of layer l, and the memory that it projects. Layers with
        the same pair share keys and values."""
        return 0 if self.config.share_kv else l, min(l, self.config.memories - 1)

    def describe_step(self) -> StepDescription:
        L, window = self.config.layers, self.window
        sources = list(dict.fromkeys(map(self.key_source, range(L))))
        buffers = [sources.index(self.key_source(l)) for l in range(L)]
        return StepDescription(
            applications=tuple(
                Application(
                    l,
                    (Read(buffer, window.first, window.last),),
                    # The token's own key and value; m_t replaces them at the end of the step.
                    write=buffer if self.config.attend_to_current else None,
                )
                for l, buffer in enumerate(buffers)
            ),
            buffers=tuple(Buffer(layer, L + 1 + g, "memory") for layer, g in sources),
            memories=(StoredVectors("memory", tuple(range(L + 1, L + 1 + self.config.memories))),),
            nearest=window.first,
            distances=window.distances,
            cross=self.config.cross,
            mix=self.mix(next(self.parameters())),
        )

    def reference(
        self,
        x: Tensor,
        state: FeedbackState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, FeedbackState]:
        B, T, _ = x.shape
        S, L = self.config.memory, self.config.layers
        since_start = tokens_since_start(state.count, start, T)
        mix = self.mix(x)  # (G, L + 1)
        sources = self.source_slots(source)
        spans = [self.attention_span(layer, S) for layer in self.layers]
        # All S slots are projected once; the max_crop slots beyond them are never read.
        past = {
            (projecting, g): KeysValues(
                self.layers[projecting].keys_values, state.memory[:, -S:, g], rounds=self.kv_precision == "bf16"
            )
            for projecting, g in dict.fromkeys(map(self.key_source, range(L)))
        }
        memories: list[Tensor] = []
        outputs: list[Tensor] = []
        for t in range(T):
            x_t = [x[:, t : t + 1]]  # x_t^0, then x_t^1 ... x_t^L as they are computed
            for l, layer in enumerate(self.layers):
                slots = self.slots(x_t[l], past[self.key_source(l)], spans[l], since_start[:, t])
                x_t.append(self.apply_layer(layer, l, x_t[l], slots, sources[l], masks, t, t + 1))
            outputs.append(x_t[L])
            m_t = torch.einsum("gl,lbtd->btgd", mix, torch.stack(x_t))  # (B, 1, G, D)
            memories.append(m_t)
            for (_, g), keys_values in past.items():
                keys_values.append(m_t[:, :, g])
        if self.recorder is not None:
            self.recorder.layer_weights = mix.detach()
        return concat_time(outputs), state.advance(concat_time(memories), since_start, start)

    def slots(self, x: Tensor, past: KeysValues, span: int, since_start: Tensor) -> Slots:
        """Return the last `span` slots, visible where the stream has filled them, and the token itself if
        configured."""
        keys, values = past.slice_back(0, span)
        if self.config.attend_to_current:
            own_key, own_value = past.project(x)
            keys, values = [*keys, own_key], [*values, own_value]
        distance = torch.arange(span, self.window.first - 1, -1, device=x.device)
        return Slots(keys, values, distance[None], filled(distance, since_start[:, None])[:, None])
