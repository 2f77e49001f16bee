"""A core as a recurrent memory for any RL library.

    lstm = MemoryLSTM(FeedbackConfig(...), 12)        output, (h, c) = lstm(x, (h, c), start), like torch.nn.LSTM
    gru = MemoryGRU(FeedbackConfig(...), 12)          output, h = gru(x, h, start), like torch.nn.GRU

    memory = Memory(FeedbackConfig(width=32, memory=8), features=12)
    y, state = memory(x, state, start)                x (B, T, features) -> (B, T, D); start (B, T) bool

`MemoryLSTM` and `MemoryGRU` are for libraries that store the recurrent state as vectors: the packed state is `h`, or
it is split into `h` and `c`. Zeros are the initial state, so a library that resets by multiplying with 0 works
unchanged. For a segment of several frames pass `start` instead of calling the layer for every frame: it resets a
stream where it is true, with the same result and many times faster.

The packed state of a Feedback memory of S positions has S * D + 6 numbers per stream: the memory, and two counts of
three digits each. Libraries store it once per frame: 1 KB for D = 32 and S = 8, four times that of an LSTM of the same
width. Keep it small. Our own rollouts store one state per segment instead.

Letters: B streams, T frames, S memory positions, D width, N size of a packed state.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import Config
from stairwell.cores import CORES, Core, build, name_of
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.fast import choose_engine
from stairwell.models import StartEmbedding
from stairwell.state import State


class Memory(nn.Module):
    """A core as a recurrent memory, whose state is an object: `y, state = memory(x, state, start)`.

    Args:
        core: Config of the core, such as `FeedbackConfig(width=32, heads=2, layers=1, memory=8)`.
        features: Number of features of the input; a linear layer projects them to the width of the core where it
            differs. None for the width itself.
        start_embedding: Add a learned embedding to the first frame of a stream.
        engine: `auto`, `fast` or `reference`."""

    def __init__(
        self, core: Config, features: int | None = None, start_embedding: bool = True, engine: str = "auto"
    ) -> None:
        super().__init__()
        config = check_core(core)
        D = config.width
        if features is not None and (type(features) is not int or features < 1):
            raise ValueError(f"features must be an integer of at least 1, not {features!r}")
        self.features, self.width = D if features is None else features, D
        self.core: Core = build(config)
        choose_engine(self.core, engine)
        self.input_projection = nn.Identity() if self.features == D else nn.Linear(self.features, D)
        self.start_embedding = StartEmbedding(D) if start_embedding else None
        self.norm = nn.LayerNorm(D) if self.core.final_norm else nn.Identity()

    def init_state(self, batch: int, max_crop: int = 0) -> State:
        """Return the initial state of `batch` streams."""
        return self.core.init_state(batch, max_crop)

    def unpack(self, vector: Tensor, max_crop: int = 0) -> State:
        """Return the state from `vector` (B, N), the result of `state.pack()`."""
        return self.core.unpack(vector, max_crop)

    def forward(self, x: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """Return outputs (B, T, D) and the next state. A stream is reset where `start` (B, T) is true.

        x (B, T, features)"""
        if x.dim() != 3 or x.shape[2] != self.features:
            raise ValueError(
                f"the input has shape {tuple(x.shape)}; it must be (batch, time, features) with {self.features} "
                "features"
            )
        start = None if start is None else as_start(start, (x.shape[0], x.shape[1]), "(batch, time)")
        x = self.embed(x, tokens_since_start(state.count, start, x.shape[1]))
        y, state = self.core(x, state, start)
        return self.norm(y), state

    def embed(self, x: Tensor, count: Tensor) -> Tensor:
        """Return the core's input (..., D). x (..., features); count (...), frames since the start of the stream"""
        x = self.input_projection(x)
        return x if self.start_embedding is None else self.start_embedding(x, count)


class RecurrentLayer(nn.Module):
    """Attributes of torch's recurrent layers, and the order of the batch and time dimensions."""

    num_layers, bidirectional, bias, dropout, proj_size = 1, False, True, 0.0, 0
    hidden_size: Any
    "Size of one state vector per stream."
    output_size: int
    "Number of features of the output, the width of the core."

    def __init__(self, core: Config, input_size: int, batch_first: bool = False, engine: str = "auto") -> None:
        super().__init__()
        self.memory = Memory(core, input_size, engine=engine)
        self.input_size, self.batch_first = input_size, batch_first
        self.output_size = self.memory.width
        self.packed_size = self.memory.init_state(1).pack().shape[1]  # N

    def flatten_parameters(self) -> None:
        """Do nothing. torch's layers move their parameters into one block here; code written for them calls it."""

    def run(self, x: Tensor, packed: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return outputs and the next packed state. x and start in the layout of `batch_first`, packed (B, N)"""
        if start is not None:
            start = as_start(start, (x.shape[0], x.shape[1]), self.layout)
        if not self.batch_first:
            x, start = x.transpose(0, 1), None if start is None else start.T
        y, state = self.memory(x, self.memory.unpack(packed), start)
        return (y if self.batch_first else y.transpose(0, 1)), state.pack()

    @property
    def layout(self) -> str:
        return "(batch, time)" if self.batch_first else "(time, batch)"

    def check_states(self, x: Tensor, *states: Tensor) -> None:
        """Raise on states of a wrong shape, which could otherwise be read as those of other streams."""
        expected = (1, self.batch_size(x), self.hidden_size)
        for state in states:
            if not isinstance(state, Tensor):
                raise TypeError(f"the state must be a tensor (1, batch, hidden_size), not a {type(state).__name__}")
            if tuple(state.shape) != expected:
                raise ValueError(
                    f"the state has shape {tuple(state.shape)}; it must be (1, batch, hidden_size) = {expected}"
                )

    def batch_size(self, x: Tensor) -> int:
        if x.dim() != 3 or x.shape[2] != self.input_size:
            layout = self.layout.replace(")", ", features)")
            raise ValueError(
                f"the input has shape {tuple(x.shape)}; it must be {layout} with {self.input_size} features"
            )
        return x.shape[0 if self.batch_first else 1]


class MemoryGRU(RecurrentLayer):
    """A core with the interface of torch.nn.GRU. `h` (1, B, hidden_size) is the packed state.

    Args:
        core: Config of the core, such as `FeedbackConfig(width=32, heads=2, layers=1, memory=8)`.
        input_size: Number of features of the input.
        batch_first: The input is (batch, time, features) instead of (time, batch, features).
        engine: `auto`, `fast` or `reference`.

    The output has `output_size` features, the width of the core; `hidden_size` is the size of the state. Parameters
    must be float32 or float64, because a packed state contains counts."""

    def __init__(self, core: Config, input_size: int, batch_first: bool = False, engine: str = "auto") -> None:
        super().__init__(core, input_size, batch_first, engine)

    @property
    def hidden_size(self) -> int:
        return self.packed_size

    def forward(self, x: Tensor, h: Tensor | None = None, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output and the next `h`. A stream is reset where `start` is true.

        start (T, B), or (B, T) with `batch_first`, bool or 0 and 1"""
        batch = self.batch_size(x)
        if h is not None:
            self.check_states(x, h)
        packed = x.new_zeros(batch, self.packed_size) if h is None else h[0]
        y, packed = self.run(x, packed, start)
        return y, packed[None]


class MemoryLSTM(RecurrentLayer):
    """A core with the interface of torch.nn.LSTM. `h` and `c` (1, B, hidden_size) are the halves of the packed state.

    Args:
        core: Config of the core, such as `FeedbackConfig(width=32, heads=2, layers=1, memory=8)`.
        input_size: Number of features of the input.
        batch_first: The input is (batch, time, features) instead of (time, batch, features).
        engine: `auto`, `fast` or `reference`.

    The output has `output_size` features, the width of the core; `hidden_size` is the size of `h` and of `c`.
    Parameters must be float32 or float64, because a packed state contains counts."""

    def __init__(self, core: Config, input_size: int, batch_first: bool = False, engine: str = "auto") -> None:
        super().__init__(core, input_size, batch_first, engine)

    @property
    def hidden_size(self) -> int:
        return -(-self.packed_size // 2)

    def forward(
        self, x: Tensor, states: tuple[Tensor, Tensor] | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the output and the next `(h, c)`. A stream is reset where `start` is true.

        start (T, B), or (B, T) with `batch_first`, bool or 0 and 1"""
        batch = self.batch_size(x)
        if states is None:
            packed = x.new_zeros(batch, self.packed_size)
        else:
            if not isinstance(states, tuple | list) or len(states) != 2:
                raise TypeError("the state must be the pair (h, c), as in torch.nn.LSTM")
            self.check_states(x, *states)
            packed = torch.cat([states[0][0], states[1][0]], 1)[:, : self.packed_size]
        y, packed = self.run(x, packed, start)
        h, c = F.pad(packed, (0, 2 * self.hidden_size - self.packed_size)).chunk(2, 1)
        return y, (h[None], c[None])


def check_core(core: Any) -> Any:
    """Return the config of a core; raise on anything else."""
    if name_of(core) is None:
        configs = ", ".join(sorted({entry.config.__name__ for entry in CORES.values()}))
        raise TypeError(
            f"core must be the config of a core, such as FeedbackConfig(width=32, memory=4), not {core!r}; the configs "
            f"are {configs}"
        )
    return core


def as_start(start: Tensor, shape: tuple[int, int], layout: str) -> Tensor:
    """Return `start` as a bool tensor; raise if it has another shape, or values other than 0 and 1."""
    if not isinstance(start, Tensor) or tuple(start.shape) != shape:
        got = f"shape {tuple(start.shape)}" if isinstance(start, Tensor) else f"type {type(start).__name__}"
        raise ValueError(f"start has {got}; it must be a tensor {layout} = {shape} like the input")
    if start.dtype == torch.bool:
        return start
    if not ((start == 0) | (start == 1)).all():
        raise ValueError("start must contain 1 (or true) where a stream is reset and 0 elsewhere")
    return start != 0
