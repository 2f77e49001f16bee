"""Protocols of tasks.

A `Task` has what every family needs. A `RestorableTask` does not follow from its config alone: what a trained model
needs of it (vocabularies, sizes, a description) is saved in the run folder as JSON (`saved_task.py`). Data is opened
when it is first read. A `StreamTask` gives batches of tokens and targets: an endless source for training, and splits
that are read once.

A task knows token ids and labels, but no model. Letters: B streams, T tokens per read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from stairwell.configs import Config
from stairwell.data.packed import IGNORE_INDEX
from stairwell.text import Vocabulary

Split = Literal["valid", "test"]
FamilyName = Literal["streams", "pairs", "rl"]


class Batch(Protocol):
    """The data of one step. The number of terms is known before the forward pass, so that gradients have the same
    scale with any number of parts and processes."""

    @property
    def terms(self) -> int:
        """Return the number of terms that the loss sums: scored tokens or frames."""

    @property
    def size(self) -> int:
        """Return the number of tokens or frames."""

    def parts(self, count: int) -> Sequence[Self]:
        """Split the batch for gradient accumulation."""

    def to(self, device: torch.device | str) -> Self: ...


BatchT = TypeVar("BatchT", bound=Batch, covariant=True)


class BatchSource(Protocol[BatchT]):
    """A source of batches: a stream of tokens, buckets of pairs, rollouts of environments. A batch element depends only
    on the seed and its own index, not on the batch size or the length of reads, so that the batch can be split among
    processes and a run resumes where it stopped."""

    def read(self, length: int) -> BatchT:
        """Return the next batch; of streams the next `length` tokens of each."""

    def change(self, **options: Any) -> None:
        """Change the difficulty (`length`, `variables`, ...), as a curriculum does. Part of the position."""

    def position(self) -> dict[str, Any]:
        """Return {"streams": [JSON per batch element], "tensors": {name: (B, ...)}, ...}. The tensors are optional; all
        other entries are JSON and the same on all processes."""

    def seek(self, position: dict[str, Any]) -> str | None:
        """Continue from a position. Return a warning if that is not exact."""


@dataclass(frozen=True)
class TokenBatch:
    """The next T tokens of B parallel streams."""

    tokens: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64, IGNORE_INDEX where nothing is scored
    start: Tensor | None = None  # (B, T) bool: the stream is reset before this token
    part: int = 0  # index of this part, if a batch is split for gradient accumulation

    @property
    def terms(self) -> int:
        return int((self.targets != IGNORE_INDEX).sum())

    @property
    def size(self) -> int:
        return self.tokens.numel()

    def parts(self, count: int) -> list[TokenBatch]:
        starts = [None] * count if self.start is None else self.start.chunk(count)
        parts = zip(self.tokens.chunk(count), self.targets.chunk(count), starts)
        return [TokenBatch(tokens, targets, start, part) for part, (tokens, targets, start) in enumerate(parts)]

    def to(self, device: torch.device | str) -> TokenBatch:
        start = None if self.start is None else self.start.to(device)
        return TokenBatch(self.tokens.to(device), self.targets.to(device), start, self.part)


class ScoreAccumulator(Protocol):
    """Accumulates the metrics of a split, segment by segment, in the order of `StreamTask.batches`."""

    def add(self, batch: TokenBatch, nll: Tensor, predictions: Tensor) -> None:
        """Add one segment. nll, predictions (B, T): the loss per token (0 where not scored), the most probable
        label."""

    def result(self) -> dict[str, float]:
        """Return metrics by name, always including `loss` (nats per scored token) and `scored` (their number)."""


@dataclass(frozen=True)
class SavedTask:
    """What a run saved about its training data."""

    vocabularies: Mapping[str, Vocabulary]
    description: str
    fingerprint: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """What tasks of all families have. Only `describe` of a new task opens files."""

    config_type: ClassVar[type[Any]]

    @property
    def family(self) -> FamilyName:
        """The family of the task, which determines its model, trainer and evaluation."""

    @property
    def config(self) -> Config: ...

    @property
    def primary_metric(self) -> str:
        """The metric that a run is judged by."""

    @property
    def higher_is_better(self) -> bool: ...

    def facts(self) -> Mapping[str, Any]:
        """Return what else determines the model: vocabulary sizes, or the spaces of an environment."""

    def describe(self) -> str:
        """Return one line about the data: what it is, its size, finite or endless."""

    def with_config(self, config: Any) -> Self:
        """Return a task with the same vocabulary and other options."""


@runtime_checkable
class RestorableTask(Protocol):
    """A task that does not follow from its config alone, such as one that reads files."""

    @classmethod
    def from_saved(cls, config: Any, saved: SavedTask) -> Self:
        """Return the task of a run from what it saved."""


class StreamTask(Task, Protocol):
    """A task of token streams: language modeling, state tracking."""

    @property
    def inputs(self) -> int:
        """The vocabulary size of the input."""

    @property
    def outputs(self) -> int:
        """The number of labels."""

    def score(self) -> ScoreAccumulator:
        """Return a new accumulator of the task's metrics."""

    def batch_source(self, streams: range, batch: int, seed: int) -> BatchSource[TokenBatch]:
        """Return the training streams with the indices `streams`, out of `batch` streams in total."""

    def batches(self, split: Split, batch: int, segment: int) -> Iterator[TokenBatch]:
        """Yield a whole split once, as `batch` parallel streams from initial states, `segment` tokens at a time."""
