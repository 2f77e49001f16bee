"""A core as a memory for other people's learners.

    memory = Memory(FeedbackConfig(width=32, memory=8), features=12)
    y, state = memory(x, state, start)                x (B, T, features) -> (B, T, D); start (B, T) bool

    gru = MemoryGRU(FeedbackConfig(...), 12)          output, h = gru(x, h), as torch.nn.GRU
    lstm = MemoryLSTM(FeedbackConfig(...), 12)        output, (h, c) = lstm(x, (h, c)), as torch.nn.LSTM

The last two are for libraries whose recurrent state is a vector a row: the whole state is packed into `h`, or one half
of it into `h` and the other into `c`. Zeros are a fresh memory, so that such a library begins an episode in its own
way, by multiplying with 0. A packed memory of S slots has about S D numbers a row (`hidden_size`), which is what
storing it at every frame costs: with D = 32 and S = 8 a kilobyte, where an LSTM of that width has a quarter. Keep it
small there; our own rollouts store one state a segment.

Letters: B rows, T frames, S slots, D width, N numbers of a packed state.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.cores import Core, build
from stairwell.cores.time import ages
from stairwell.fast import choose_engine
from stairwell.models import StartEmbedding
from stairwell.state import State


class Memory(nn.Module):
    """A core with what belongs around it: a projection where `features` is not its width, the vector that tells a row's
    first frame, the last norm."""

    def __init__(
        self, core: Any, features: int | None = None, start_embedding: bool = True, engine: str = "auto"
    ) -> None:
        super().__init__()
        D = core.width
        if features is not None and (type(features) is not int or features < 1):
            raise ValueError(f"features must be an integer of at least 1, not {features!r}")
        self.features, self.width = D if features is None else features, D
        self.core: Core = build(core)
        choose_engine(self.core, engine)
        self.enter = nn.Identity() if self.features == D else nn.Linear(self.features, D)
        self.start_embedding = StartEmbedding(D) if start_embedding else None
        self.norm = nn.LayerNorm(D) if self.core.final_norm else nn.Identity()

    def init_state(self, batch: int, max_crop: int = 0) -> State:
        return self.core.init_state(batch, max_crop)

    def unpack(self, vector: Tensor, max_crop: int = 0) -> State:
        """The state that `state.pack()` made `vector` (B, N) of."""
        return self.core.unpack(vector, max_crop)

    def forward(self, x: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """x (B, T, features) -> (B, T, D), the state after; a row begins anew where `start` (B, T) is true."""
        x = self.embed(x, ages(state.count, start, x.shape[1]))
        y, state = self.core(x, state, start)
        return self.norm(y), state

    def embed(self, x: Tensor, age: Tensor) -> Tensor:
        """What the core reads, also for a session: x (..., features), age (...) -> (..., D)"""
        x = self.enter(x)
        return x if self.start_embedding is None else self.start_embedding(x, age)


class Recurrent(nn.Module):
    """What the two forms share: the sizes that recurrent layers of torch have, and the order of rows and time."""

    num_layers, bidirectional, bias, dropout, proj_size = 1, False, True, 0.0, 0
    hidden_size: Any  # numbers of one state per batch element

    def __init__(self, core: Any, input_size: int, batch_first: bool = False, engine: str = "auto") -> None:
        super().__init__()
        self.memory = Memory(core, input_size, engine=engine)
        self.input_size, self.batch_first = input_size, batch_first
        self.output_size: int = core.width
        self.numbers = self.memory.init_state(1).pack().shape[1]  # N

    def walk(self, x: Tensor, packed: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """x as torch's layers take it, packed (B, N), start (B, T)"""
        rows = x if self.batch_first else x.transpose(0, 1)
        y, state = self.memory(rows, self.memory.unpack(packed), start)
        return (y if self.batch_first else y.transpose(0, 1)), state.pack()

    def check_states(self, x: Tensor, *states: Tensor) -> None:
        """Refuse states of another shape, which could be read as those of other rows."""
        wanted = (1, self.rows(x), self.hidden_size)
        for state in states:
            if tuple(state.shape) != wanted:
                raise ValueError(f"a state must be (1, batch, hidden_size) = {wanted}, not {tuple(state.shape)}")

    def rows(self, x: Tensor) -> int:
        if x.dim() != 3:
            raise ValueError(f"the input must have rows, time and {self.input_size} features, not {tuple(x.shape)}")
        return x.shape[0 if self.batch_first else 1]


class MemoryGRU(Recurrent):
    """Called as torch.nn.GRU: `h` (1, B, N) is the packed memory. The output is D wide, not N."""

    @property
    def hidden_size(self) -> int:
        return self.numbers

    def forward(self, x: Tensor, h: Tensor | None = None, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if h is not None:
            self.check_states(x, h)
        packed = x.new_zeros(self.rows(x), self.numbers) if h is None else h[0]
        y, packed = self.walk(x, packed, start)
        return y, packed[None]


class MemoryLSTM(Recurrent):
    """Called as torch.nn.LSTM: `h` and `c` (1, B, N / 2) are the two halves of the packed memory."""

    @property
    def hidden_size(self) -> int:
        return -(-self.numbers // 2)

    def forward(
        self, x: Tensor, states: tuple[Tensor, Tensor] | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if states is None:
            packed = x.new_zeros(self.rows(x), self.numbers)
        else:
            self.check_states(x, *states)
            packed = torch.cat([states[0][0], states[1][0]], 1)[:, : self.numbers]
        y, packed = self.walk(x, packed, start)
        h, c = F.pad(packed, (0, 2 * self.hidden_size - self.numbers)).chunk(2, 1)
        return y, (h[None], c[None])
