"""The LSTM (Hochreiter & Schmidhuber, 1997), `torch.nn.LSTM` behind the same contract: the recurrent baseline."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from stairwell.configs import Config, check_at_least, check_rates
from stairwell.cores.core import Core, CoreState, Source
from stairwell.cores.time import ages, counts
from stairwell.field_types import CARRY
from stairwell.layers import Masks


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(Config):
    width: int = 256
    "width of the model and of the hidden state (D)"
    layers: int = 2
    "number of layers (L)"
    dropout: float = 0.0
    "dropout rate between the layers"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "width", "layers")
        check_rates(self, "dropout")


@dataclass(frozen=True, eq=False)
class LSTMState(CoreState):
    hidden: Tensor = field(metadata=CARRY)  # (B, L, D)
    cell: Tensor = field(metadata=CARRY)  # (B, L, D)


class LSTM(Core):
    state_type = LSTMState

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config.width)
        self.config = config
        dropout = config.dropout if config.layers > 1 else 0.0  # there is nothing between the layers of one layer
        self.lstm = nn.LSTM(config.width, config.width, config.layers, batch_first=True, dropout=dropout)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        if max_crop:
            raise ValueError("an LSTM cannot take tokens back, so it has no max_crop; use max_crop=0")
        shape = (self.config.layers, self.width)
        return {"hidden": shape, "cell": shape}

    def walk(
        self,
        x: Tensor,
        state: LSTMState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, LSTMState]:
        B, T, _ = x.shape
        edges = [] if start is None else start.any(0).nonzero().flatten().tolist()
        hidden, cell = state.hidden.transpose(0, 1), state.cell.transpose(0, 1)  # (L, B, D)
        outputs: list[Tensor] = []
        # torch's LSTM runs through a piece in one go; pieces end where any row begins anew.
        for first, last in zip([0, *edges], [*edges, T], strict=True):
            if start is not None:
                begins = start[:, first : first + 1]
                hidden, cell = hidden.masked_fill(begins, 0), cell.masked_fill(begins, 0)
            if first < last:
                y, (hidden, cell) = self.lstm(x[:, first:last], (hidden.contiguous(), cell.contiguous()))
                outputs.append(y)
        count, croppable = counts(state.count, state.croppable, start, ages(state.count, start, T), 0)
        # Under autocast torch gives the carry back in a narrower type; the state keeps the weights' own.
        hidden, cell = (part.transpose(0, 1).to(state.hidden.dtype).contiguous() for part in (hidden, cell))
        return torch.cat(outputs, 1), replace(state, count=count, croppable=croppable, hidden=hidden, cell=cell)
