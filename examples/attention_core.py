"""An attention core with a step description. See docs/extending.md.

    x_t^l = Layer(x_t^{l-1}, {x_{t-S}^{l-1}, ..., x_{t-1}^{l-1}} and {x_{t-S}^L, ..., x_{t-1}^L})

Each layer attends to its own past inputs, as in Transformer-XL, and to past outputs of the top layer, as in Feedback.
Letters: B batch size, T tokens, S memory slots, D width, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.cores.core import MemoryState, Source, TransformerCore, WindowConfig, module_list
from stairwell.cores.sliding_window import KeysValues, filled, tokens_since_start
from stairwell.cores.step import Application, Buffer, Read, StepDescription, StoredVectors
from stairwell.layers import Layer, Masks, RelativePosition, Slots


@dataclass(frozen=True, kw_only=True)
class TopDownConfig(WindowConfig):
    """The options that all cores with an attention window share, and no others."""


@dataclass(frozen=True, eq=False)
class TopDownState(MemoryState):
    """memory (B, S + max_crop, L + 1, D): the input of every layer and the output of the top layer."""


class TopDown(TransformerCore):
    state_type = TopDownState

    def __init__(self, config: TopDownConfig) -> None:
        super().__init__(config)
        self.window = config.window
        self.layers = module_list(Layer(config, self.window.distances) for _ in range(config.layers))
        self.position = RelativePosition(config, self.window.distances)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.config.memory + max_crop, self.config.layers + 1, self.width)}

    def describe_step(self) -> StepDescription:
        S, L = self.config.memory, self.config.layers
        return StepDescription(
            # Layer l attends to buffer l, its own past inputs, and to buffer L + l, past outputs of the top layer.
            applications=tuple(Application(l, (Read(l, 1, S), Read(L + l, 1, S)), write=l) for l in range(L)),
            # Vector l is the input of layer l, vector L the output of the top layer.
            buffers=(
                *(Buffer(layer=l, vector=l, memory="memory") for l in range(L)),
                *(Buffer(layer=l, vector=L, memory="memory") for l in range(L)),
            ),
            memories=(StoredVectors("memory", tuple(range(L + 1))),),
            nearest=1,
            distances=self.window.distances,
        )

    def reference(
        self,
        x: Tensor,
        state: TopDownState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, TopDownState]:
        S, L = self.config.memory, self.config.layers
        since_start = tokens_since_start(state.count, start, x.shape[1])
        sources = self.source_slots(source)
        spans = [self.attention_span(layer, S) for layer in self.layers]

        memory = state.memory[:, -S:]
        own = [KeysValues(layer.keys_values, memory[:, :, l]) for l, layer in enumerate(self.layers)]
        top = [KeysValues(layer.keys_values, memory[:, :, L]) for layer in self.layers]
        new: list[Tensor] = []
        for t in range(x.shape[1]):
            vectors = [x[:, t : t + 1]]
            for l, layer in enumerate(self.layers):
                distance = torch.arange(spans[l], 0, -1, device=x.device)
                visible = filled(distance, since_start[:, t, None])
                own_keys, own_values = own[l].slice_back(0, spans[l])
                top_keys, top_values = top[l].slice_back(0, spans[l])
                slots = Slots(
                    [*own_keys, *top_keys],
                    [*own_values, *top_values],
                    torch.cat([distance, distance])[None],
                    torch.cat([visible, visible], 1)[:, None],
                )
                vectors.append(self.apply_layer(layer, l, vectors[l], slots, sources[l], masks, t, t + 1))
            for l in range(L):
                own[l].append(vectors[l])
                top[l].append(vectors[L])
            new.append(torch.stack(vectors, 2))
        added = torch.cat(new, 1)  # (B, T, L + 1, D)
        return added[:, :, L], state.advance(added, since_start, start)
