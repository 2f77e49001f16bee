"""Interfaces of the training loop: it minimizes an objective over the batches of a source and runs validations.

    outcome = objective(batch);  (outcome.loss / terms).backward()

Streams of tokens (`streams.py`), pairs of texts (`pair_objective.py`) and agents (`rl/`) implement them.

Letters: B batch elements of a process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from stairwell.errors import UserError
from stairwell.state import State
from stairwell.tasks.base import Batch, BatchSource, Split


@dataclass(frozen=True)
class Outcome:
    """The result of an objective for one batch."""

    loss: Tensor  # summed over the terms of the batch
    metrics: dict[str, Tensor] = field(default_factory=dict)
    "Sums over the terms, with the same names for every batch. A curriculum needs `correct`."
    penalty: Tensor | None = None
    "Regularization that is added to the mean loss; in one part of a step only."


class Objective(nn.Module):
    """What is minimized. DistributedDataParallel wraps this module, so every parameter is used in its forward pass.

    It owns its states: kept between steps, made from the batch, or part of the batch. Only `forward` must be
    implemented. `model` is what is validated and saved."""

    model: nn.Module
    chance_loss: float = math.inf
    "Loss of a uniform prediction, in nats per term. A run with a much higher loss has diverged."
    skips_parameters: bool = False
    "Whether some parameters have no gradient in some steps."

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Outcome:
        raise NotImplementedError

    def init_states(self, batch: int, parts: int) -> None:
        """Start from initial states: `batch` elements in `parts` parts."""

    def resize(self, sizes: dict[str, int]) -> None:
        """Set the sizes of the core to those of the size schedule, or to its own if empty. States are not changed."""
        if sizes:
            raise UserError(f"train.size_schedule: {type(self).__name__} has no core that can be resized")

    def dry_run(self) -> None:
        """Run the smallest forward pass, without side effects, to find out whether the device supports it."""

    def after_step(self) -> None:
        """Project the parameters to their valid range."""

    def summary(self, sums: dict[str, float], terms: int) -> dict[str, float]:
        """Return metrics from their sums over several steps."""
        return {name: value / max(terms, 1) for name, value in sums.items()}

    def extra_metrics(self) -> dict[str, Any]:
        """Return what else a line of metrics has."""
        return {}

    def stream_state(self) -> State | None:
        """Return the state of this process's streams that the next step starts from, if there is one."""
        return None

    def load_stream_state(self, tensors: dict[str, Tensor], indices: range) -> None:
        """Load the elements `indices` of the state that was saved for the whole batch."""


class BrokenSource(UserError):
    """A batch source that cannot continue, for instance because an environment raised an exception. Its position is
    that before the failed read, so that a checkpoint can be saved."""


class Validation(Protocol):
    """Scores of a split. Models are compared by the primary metric, then by `loss`, if there is one. The loss must be
    finite unless nothing was `scored`."""

    @property
    def primary_metric(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    def __call__(self, model: Any, split: Split) -> dict[str, float]: ...


@dataclass(frozen=True)
class Phase:
    """The data of a phase of a run, and its validation."""

    batch_source: Callable[[range, int, int], BatchSource[Batch]]
    "Called with the batch elements of this process, the batch size and the seed."
    validation: Validation
