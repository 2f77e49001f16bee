"""What every task is: training streams that can be put down and taken up again, splits read exactly once, scores.

A task speaks of token ids and labels only; it knows no model. Letters: B rows, T tokens of one read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

IGNORE = -100  # a target that is not scored; the number that torch's cross entropy ignores

Split = Literal["valid", "test"]


@dataclass(frozen=True)
class Batch:
    """The next T tokens of B parallel rows."""

    tokens: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64, IGNORE where nothing is scored
    start: Tensor | None = None  # (B, T) bool: the row begins anew before this token
    part: int = 0  # which part of an update's rows this is, where they are taken through in several

    @property
    def terms(self) -> int:
        """How many targets are scored: what the loss is a sum over."""
        return int((self.targets != IGNORE).sum())

    @property
    def size(self) -> int:
        return self.tokens.numel()

    def parts(self, count: int) -> list[Batch]:
        """The rows in `count` equal parts."""
        starts = [None] * count if self.start is None else self.start.chunk(count)
        rows = zip(self.tokens.chunk(count), self.targets.chunk(count), starts)
        return [Batch(tokens, targets, start, part) for part, (tokens, targets, start) in enumerate(rows)]

    def to(self, device: torch.device | str) -> Batch:
        start = None if self.start is None else self.start.to(device)
        return Batch(self.tokens.to(device), self.targets.to(device), start, self.part)


class Stream(Protocol):
    """Parallel rows of training data without end. A row depends on the seed and its own number only, never on how
    many rows are read beside it or in how large bites, so rows can be dealt among processes and a stopped training
    goes on with the very next token."""

    def read(self, length: int) -> Batch:
        """The next `length` tokens of every row."""

    def position(self) -> dict[str, Any]:
        """Where the rows stand, as plain JSON: {"rows": [one entry a row], ...}. `seek` takes it up again."""

    def seek(self, position: dict[str, Any]) -> None: ...

    def change(self, **options: Any) -> None:
        """Go on with other difficulty (`length`, `variables`, ...): what a curriculum turns. Part of the position."""


class Score(Protocol):
    """Gathers what a model did on a split, segment by segment, in the order of `Task.batches`."""

    def add(self, batch: Batch, nll: Tensor, predictions: Tensor) -> None:
        """nll, predictions (B, T): the loss of each token (0 where not scored), the likeliest label."""

    def result(self) -> dict[str, float]:
        """Metric names and values; `loss` (nats per scored token) and `scored` (how many) are always there."""


class Task(Protocol):
    inputs: int  # how many input symbols there are
    outputs: int  # how many labels there are
    headline: str  # the metric a run is judged by, a name in `Score.result()`
    higher_is_better: bool

    def stream(self, rows: range, batch: int, seed: int) -> Stream:
        """The training rows `rows` of `batch` rows in all."""

    def batches(self, split: Split, rows: int, segment: int) -> Iterator[Batch]:
        """A whole split once, in `rows` parallel rows (each from a fresh state), `segment` tokens at a time."""

    def score(self) -> Score: ...

    def describe(self) -> str:
        """One line for people: what the data is, its size, finite or endless."""
