"""Gated average: a linear recurrence whose gates can erase, keep or negate the state. See docs/extending.md.

    a_t = tanh(W_a u_t + b_a)                       one gate per head, u_t = norm(x_t)
    h_t = a_t h_{t-1} + (1 - |a_t|) W_v u_t         each gate applies to D / H dimensions
    y_t = x_t + W_o h_t

Letters: B batch size, T tokens, D width, H heads, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from stairwell.cores.core import Core, CoreState
from stairwell.cores.sliding_window import next_counts, slide, tokens_since_start
from stairwell.layers import CoreConfig
from stairwell.state import SLOTS


@dataclass(frozen=True, kw_only=True)
class GatedAverageConfig(CoreConfig):
    width: int = 64
    "Width of the model (D)."
    heads: int = 4
    "Number of gates per layer (H)."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")


@dataclass(frozen=True, eq=False)
class GatedAverageState(CoreState):
    # (B, 1 + max_crop, L, D): h of the last token, and of the tokens before it that `crop` may return to.
    hidden: Tensor = field(metadata=SLOTS)


class GatedLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, heads)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, is_start: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, D), last h (B, D), is_start (B, T, 1) -> y (B, T, D), all h (B, T, D)"""
        B, T, D = x.shape
        normed = self.norm(x)
        gate = self.gate(normed).tanh().repeat_interleave(D // self.gate.out_features, -1)  # (B, T, D)
        new = (1 - gate.abs()) * self.value(normed)
        all_hidden: list[Tensor] = []
        for t in range(T):
            # Reset the state at the first token of a stream.
            hidden = gate[:, t] * hidden.masked_fill(is_start[:, t], 0) + new[:, t]
            all_hidden.append(hidden)
        stacked = torch.stack(all_hidden, 1)
        return x + self.out(stacked), stacked


class GatedAverage(Core):
    state_type = GatedAverageState
    final_norm = True  # the output of the last layer is not normalized

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
        since_start = tokens_since_start(state.count, start, T)
        is_start = (since_start == 0)[:, :, None]
        hidden_per_layer: list[Tensor] = []
        for l, layer in enumerate(self.layers):
            x, hidden = layer(x, state.hidden[:, -1, l], is_start)
            hidden_per_layer.append(hidden)
        count, croppable = next_counts(state.count, state.croppable, start, since_start, state.max_crop)
        memory = slide(state.hidden, torch.stack(hidden_per_layer, 2), count, start)
        return x, replace(state, count=count, croppable=croppable, hidden=memory)
