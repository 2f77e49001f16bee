"""The LSTM (Hochreiter & Schmidhuber, 1997), the recurrent baseline: `torch.nn.LSTM` as a core.

    i, f, g, o = W x_t + U h_{t-1} + b
    c_t = sigmoid(f) * c_{t-1} + sigmoid(i) * tanh(g),      h_t = sigmoid(o) * tanh(c_t)

Letters: B batch size, T tokens, D width, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from stairwell.configs import check_probabilities
from stairwell.cores.core import Core, CoreState
from stairwell.cores.sliding_window import next_counts, tokens_since_start
from stairwell.layers import CoreConfig
from stairwell.state import CARRY


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(CoreConfig):
    width: int = 256
    "Width of the model and of the hidden state (D)."
    dropout: float = 0.0
    "Dropout rate between the layers."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probabilities(self, "dropout")


@dataclass(frozen=True, eq=False)
class LSTMState(CoreState):
    hidden: Tensor = field(metadata=CARRY)  # (B, L, D)
    cell: Tensor = field(metadata=CARRY)  # (B, L, D)


class LSTM(Core[LSTMConfig, LSTMState]):
    state_type = LSTMState

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        dropout = config.dropout if config.layers > 1 else 0.0  # torch warns about dropout with a single layer
        self.lstm = nn.LSTM(config.width, config.width, config.layers, batch_first=True, dropout=dropout)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        if max_crop:
            raise ValueError("LSTM does not support crop; use max_crop=0")
        shape = (self.config.layers, self.width)
        return {"hidden": shape, "cell": shape}

    def reference(self, x: Tensor, state: LSTMState, start: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        B, T, _ = x.shape
        resets = [] if start is None else start.any(0).nonzero().flatten().tolist()
        hidden, cell = state.hidden.transpose(0, 1), state.cell.transpose(0, 1)  # (L, B, D)
        outputs: list[Tensor] = []
        # Call torch's LSTM once per segment; a new segment starts where any stream of the batch is reset.
        for first, last in zip([0, *resets], [*resets, T], strict=True):
            if start is not None:
                reset = start[:, first : first + 1]
                hidden, cell = hidden.masked_fill(reset, 0), cell.masked_fill(reset, 0)
            if first < last:
                y, (hidden, cell) = self.lstm(x[:, first:last], (hidden.contiguous(), cell.contiguous()))
                outputs.append(y)
        since_start = tokens_since_start(state.count, start, T)
        count, croppable = next_counts(state.count, state.croppable, start, since_start, 0)
        # Under autocast torch returns a lower-precision dtype; the state keeps the dtype of the parameters.
        hidden, cell = (tensor.transpose(0, 1).to(state.hidden.dtype).contiguous() for tensor in (hidden, cell))
        return torch.cat(outputs, 1), replace(state, count=count, croppable=croppable, hidden=hidden, cell=cell)
