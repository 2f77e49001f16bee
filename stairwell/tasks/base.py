"""Protocols of tasks.

A `Task` has what every family needs. The parts that a trained model needs without the data (vocabularies, sizes, a
description) are saved in the run folder as JSON (`saved_task.py`). Data is opened when it is first read. A `StreamTask`
also gives batches of tokens and targets: an endless source for training, and splits that are read once.

A task knows token ids and labels, but no model. Letters: B streams, T tokens per read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from stairwell.data.packed import IGNORE
from stairwell.text import Vocabulary

Split = Literal["valid", "test"]
FamilyName = Literal["streams", "pairs", "rl"]


@dataclass(frozen=True)
class Batch:
    """The next T tokens of B parallel streams."""

    tokens: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64, IGNORE where nothing is scored
    start: Tensor | None = None  # (B, T) bool: the stream is reset before this token
    part: int = 0  # index of this part, if a batch is split for gradient accumulation

    @property
    def terms(self) -> int:
        """Return the number of scored targets, which the loss is summed over."""
        return int((self.targets != IGNORE).sum())

    @property
    def size(self) -> int:
        return self.tokens.numel()

    def parts(self, count: int) -> list[Batch]:
        """Split the streams into `count` equal parts."""
        starts = [None] * count if self.start is None else self.start.chunk(count)
        parts = zip(self.tokens.chunk(count), self.targets.chunk(count), starts)
        return [Batch(tokens, targets, start, part) for part, (tokens, targets, start) in enumerate(parts)]

    def to(self, device: torch.device | str) -> Batch:
        start = None if self.start is None else self.start.to(device)
        return Batch(self.tokens.to(device), self.targets.to(device), start, self.part)


class BatchSource(Protocol):
    """Endless parallel streams of training data. A stream depends on the seed and its own index only, not on the batch
    size or the length of reads, so streams can be distributed among processes and a run resumes at the next token."""

    def read(self, length: int) -> Batch:
        """Return the next `length` tokens of every stream."""

    def change(self, **options: Any) -> None:
        """Change the difficulty (`length`, `variables`, ...), as a curriculum does. Part of the position."""

    def position(self) -> dict[str, Any]:
        """Return the position as JSON: {"streams": [one entry per stream], ...}. `seek` restores it."""

    def seek(self, position: dict[str, Any]) -> None: ...


class ScoreAccumulator(Protocol):
    """Accumulates the metrics of a split, segment by segment, in the order of `StreamTask.batches`."""

    def add(self, batch: Batch, nll: Tensor, predictions: Tensor) -> None:
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
    """What tasks of all families have. Only `fingerprint`, and `describe` of a new task, open files."""

    reads_files: ClassVar[bool]  # the run folder must save the task: it does not follow from the config

    @property
    def family(self) -> FamilyName:
        """The family of the task, which determines its model, trainer and evaluation."""

    @property
    def config(self) -> Any: ...

    @property
    def primary_metric(self) -> str:
        """The metric that a run is judged by."""

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def vocabularies(self) -> Mapping[str, Vocabulary]:
        """Vocabularies by name; empty unless the data is text."""

    def facts(self) -> Mapping[str, Any]:
        """Return what else determines the model: vocabulary sizes, or the spaces of an environment."""

    def describe(self) -> str:
        """Return one line about the data: what it is, its size, finite or endless."""

    def fingerprint(self) -> dict[str, str]:
        """Return a hash of each split's contents; empty if the data follows from the config."""

    @classmethod
    def from_saved(cls, config: Any, saved: SavedTask) -> Self:
        """Return the task of a run from what it saved."""

    def with_config(self, config: Any) -> Self:
        """Return a task with the same vocabulary and other options."""

    def with_data(self, path: str) -> Self:
        """Return a task with the same vocabulary and other data, for evaluation only."""


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

    def batch_source(self, streams: range, batch: int, seed: int) -> BatchSource:
        """Return the training streams with the indices `streams`, out of `batch` streams in total."""

    def batches(self, split: Split, batch: int, segment: int) -> Iterator[Batch]:
        """Yield a whole split once, as `batch` parallel streams from initial states, `segment` tokens at a time."""
