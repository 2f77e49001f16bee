"""What a search requires of a model: streams that read tokens and can be selected.

A decoding session is a stepper. `ModelStepper` calls the model with one token at a time, for models that a session does
not support. Letters: B streams, T tokens, J source tokens, V vocabulary size.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stairwell.decode.session import Session, outside_autograd
from stairwell.errors import UserError
from stairwell.layers import is_finite
from stairwell.models.seq2seq import Seq2Seq
from stairwell.state import BatchIndices, State


class Stepper(Protocol):
    """The caller owns the returned logits and may change them in place."""

    @property
    def batch(self) -> int: ...

    def read(self, tokens: Tensor) -> Tensor:
        """Read many tokens per stream; return the logits after the last one. (B, T) -> (B, V)"""

    def step(self, tokens: Tensor) -> Tensor:
        """Read one token per stream; return the logits after it. (B,) -> (B, V)"""

    def select(self, streams: BatchIndices) -> None:
        """Continue with the given streams, in the given order. A stream may be repeated or left out."""


class ModelStepper:
    def __init__(self, model: Any, state: State) -> None:
        self.model, self.state = model, state

    @property
    def batch(self) -> int:
        return self.state.batch

    @outside_autograd
    def read(self, tokens: Tensor) -> Tensor:
        x, self.state = self.model.hidden(tokens, self.state)
        logits: Tensor = self.model.head(x[:, -1])
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        return self.read(tokens[:, None])

    @outside_autograd
    def select(self, streams: BatchIndices) -> None:
        self.state = self.state.select(streams)


def make_stepper(model: Any, state: State) -> Stepper:
    """Return the fastest stepper of a model."""
    return Session(model, state) if session_supports(model) else ModelStepper(model, state)


def session_supports(model: Any) -> bool:
    """Return whether a session runs the whole model: not the cross-attention that follows a core without its own."""
    return not isinstance(model, Seq2Seq) or model.reader is None


def check_parameters(model: nn.Module) -> None:
    """Raise an error if a parameter is not finite."""
    for name, parameter in model.named_parameters():
        if not is_finite(parameter):
            raise UserError(f"the parameter '{name}' contains NaN or infinity. Restore model.safetensors or retrain.")


@torch.no_grad()
def encode_source(model: Any, source: Tensor, mask: Tensor) -> State:
    """Return the initial state for sources (B, J), outside autograd."""
    state: State = model.init_state(source.shape[0], source, mask)
    return state
