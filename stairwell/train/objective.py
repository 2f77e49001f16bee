"""What the loop knows of a training: an objective is minimized over the batches of a feed and judged by validations.

    outcome = objective(batch);  (outcome.loss / terms).backward()

Streams of tokens are the first of each kind (`streams.py`); pairs of sentences or the rollouts of an agent are others.
Letters: B rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stairwell.errors import UserError
from stairwell.state import State
from stairwell.tasks.base import Split


class Batch(Protocol):
    """What one update reads. Its number of terms is known before the call, so that the scale of a gradient is fixed
    beforehand over parts and processes."""

    @property
    def terms(self) -> int:
        """How many terms the loss is a sum over: scored tokens, frames."""

    @property
    def size(self) -> int:
        """How many tokens or frames are read."""

    def parts(self, count: int) -> Sequence[Batch]:
        """The same rows in `count` parts, to be taken through one after the other."""

    def to(self, device: torch.device | str) -> Batch: ...


@dataclass(frozen=True)
class Outcome:
    """What an objective says of a batch."""

    loss: Tensor  # summed over the batch's terms
    metrics: dict[str, Tensor] = field(default_factory=dict)
    "sums over the terms, the same names in every batch; `right`, how many terms went well, drives a curriculum"
    penalty: Tensor | None = None
    "added to the mean loss as it is: in one part of an update only"


class Objective(nn.Module):
    """What is minimized. The module that DistributedDataParallel wraps: every parameter is used inside its call.

    It owns its states: carried from call to call, made from the batch, or brought by it. Only `forward` must be
    written; `model` is what is validated and kept."""

    model: nn.Module
    chance: float = math.inf
    "the loss a term of someone who knows nothing; a training far above it has diverged"
    skips_parameters: bool = False
    "whether some parameters have no gradient in some updates"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Outcome:
        raise NotImplementedError

    def begin(self, rows: int, parts: int) -> None:
        """A new feed begins: `rows` rows, which come in `parts` parts."""

    def resize(self, sizes: dict[str, int]) -> None:
        """Other sizes of the model's core from now on, as `growth` has them; none: its own. States that are carried are
        left as they are."""
        if sizes:
            raise UserError(f"train.size_schedule: {type(self).__name__} does not say how its model grows")

    def rehearse(self) -> None:
        """A call as small as can be, to find out whether this device can do it; without side effects."""

    def after_update(self) -> None:
        """Bring parameters back to where they may be."""

    def summary(self, sums: dict[str, float], terms: int) -> dict[str, float]:
        """Metrics for people, from their sums over several updates."""
        return {name: value / max(terms, 1) for name, value in sums.items()}

    def inside(self) -> dict[str, Any]:
        """What else belongs in a line of metrics."""
        return {}

    def carried(self) -> State | None:
        """The state of this process's rows that the next call begins from, if the objective carries one."""
        return None

    def carry(self, tensors: dict[str, Tensor], rows: range) -> None:
        """Go on from the tensors of all processes' `carried`, with these rows of them."""


class BrokenSource(UserError):
    """What a feed reads from cannot go on: an environment that raises, say. The feed stands where it stood before the
    read, so that all that was learned can be saved."""


class BatchSource(Protocol):
    """Where batches come from: a stream of tokens, buckets of pairs, rollouts of environments. Rows depend on the seed
    and their own number only, so they can be dealt among processes and a stopped training goes on with the next one."""

    def read(self, length: int) -> Batch:
        """The next batch; of streams the next `length` tokens of every row."""

    def change(self, **options: Any) -> None:
        """Go on with other difficulty: what a curriculum turns. Part of the position."""

    def position(self) -> dict[str, Any]:
        """Where the feed stands: {"rows": [plain JSON, one entry a row], "tensors": {name: (B, ...)}, ...}. The tensors
        may be left out; anything else is plain JSON and the same on all processes."""

    def seek(self, position: dict[str, Any]) -> str | None:
        """Go on from there; a word for people where that is not possible bit for bit."""


class Validation(Protocol):
    """Scores of a split. One of them is the primary_metric, by which models are chosen; `loss`, if there is one, decides
    between equal ones, and must be finite unless nothing was `scored`."""

    @property
    def primary_metric(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    def __call__(self, model: Any, split: Split) -> dict[str, float]: ...


@dataclass(frozen=True)
class Phase:
    """What is read in a phase of a training, and how the model is judged there."""

    batch_source: Callable[[range, int, int], BatchSource]
    "from the rows of this process, the rows in all, and the seed"
    validation: Validation
