"""Gated average: a linear recurrence that forgets, keeps or flips, as a core of one file. See docs/extending.md.

    a_t = tanh(W_a u_t + b_a)                       one gate a head, u_t = norm(x_t)
    h_t = a_t h_{t-1} + (1 - |a_t|) W_v u_t         each head's share of the width has that head's gate
    y_t = x_t + W_o h_t

Letters: B rows, T tokens, D width, H heads, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from stairwell.cores.core import Core, CoreState
from stairwell.cores.time import next_counts, slide, tokens_since_start
from stairwell.state import SLOTS


@dataclass(frozen=True, kw_only=True)
class GatedAverageConfig:
    width: int = 64
    "width of the model (D)"
    layers: int = 2
    "number of layers (L)"
    heads: int = 4
    "number of gates in a layer (H)"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")


@dataclass(frozen=True, eq=False)
class GatedAverageState(CoreState):
    # (B, 1 + max_crop, L, D): h of the last token, and of those before it as far as they can be taken back.
    hidden: Tensor = field(metadata=SLOTS)


class GatedLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, heads)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, D), the h before (B, D), begins (B, T, 1) -> y (B, T, D), all h (B, T, D)"""
        B, T, D = x.shape
        normed = self.norm(x)
        gate = self.gate(normed).tanh().repeat_interleave(D // self.gate.out_features, -1)  # (B, T, D)
        new = (1 - gate.abs()) * self.value(normed)
        made: list[Tensor] = []
        for t in range(T):
            # A row that begins anew knows nothing of what came before.
            hidden = gate[:, t] * hidden.masked_fill(begins[:, t], 0) + new[:, t]
            made.append(hidden)
        walked = torch.stack(made, 1)
        return x + self.out(walked), walked


class GatedAverage(Core):
    state_type = GatedAverageState
    final_norm = True  # nothing has normalized the last layer's sum

    def __init__(self, config: GatedAverageConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(GatedLayer(config.width, config.heads) for _ in range(config.layers))

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        return {"hidden": (1 + max_crop, self.config.layers, self.width)}

    def reference(
        self,
        x: Tensor,
        state: GatedAverageState,
        start: Tensor | None = None,
    ) -> tuple[Tensor, GatedAverageState]:
        B, T, _ = x.shape
        age = tokens_since_start(state.count, start, T)
        begins = (age == 0)[:, :, None]
        made: list[Tensor] = []
        for l, layer in enumerate(self.layers):
            x, hidden = layer(x, state.hidden[:, -1, l], begins)
            made.append(hidden)
        count, croppable = next_counts(state.count, state.croppable, start, age, state.max_crop)
        memory = slide(state.hidden, torch.stack(made, 2), count, start)
        return x, replace(state, count=count, croppable=croppable, hidden=memory)
