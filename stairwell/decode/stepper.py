"""What a search needs of a model under way: rows that read tokens one by one, and change places.

A decoding session is one. `ModelStepper` calls the model itself with one token at a time: for models that no session
takes. Letters: B rows, T tokens, V output symbols.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from stairwell.decode.session import Session, outside_autograd
from stairwell.models.seq2seq import Seq2Seq
from stairwell.state import RowNumbers, State


class Stepper(Protocol):
    """Logits belong to whoever asked for them: a search writes into them."""

    @property
    def batch(self) -> int: ...

    def read(self, tokens: Tensor) -> Tensor:
        """Read many tokens a row; the logits for what follows. (B, T) -> (B, V)"""

    def step(self, tokens: Tensor) -> Tensor:
        """Read one token a row; the logits for what follows. (B,) -> (B, V)"""

    def select(self, rows: RowNumbers) -> None:
        """Go on with the given rows in the given order; a row may be taken several times, or left."""


class ModelStepper:
    def __init__(self, model: Any, state: State) -> None:
        self.model, self.state = model, state

    @property
    def batch(self) -> int:
        return self.state.batch

    @outside_autograd
    def read(self, tokens: Tensor) -> Tensor:
        x, self.state = self.model.hidden(tokens, self.state)
        return self.model.head(x[:, -1])

    def step(self, tokens: Tensor) -> Tensor:
        return self.read(tokens[:, None])

    @outside_autograd
    def select(self, rows: RowNumbers) -> None:
        self.state = self.state.select(rows)


def stepper(model: Any, state: State) -> Stepper:
    """The quickest way to go on from a state, one token at a time."""
    # The attention to a source that follows a core without one is in no session.
    if isinstance(model, Seq2Seq) and model.reader is not None:
        return ModelStepper(model, state)
    return Session(model, state)


@torch.no_grad()
def encoded(model: Any, source: Tensor, mask: Tensor) -> State:
    """A fresh state for sources (B, J), outside autograd."""
    state: State = model.init_state(source.shape[0], source, mask)
    return state
