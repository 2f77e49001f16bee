"""What every task is: a Spec, which a run keeps, and Data, which is opened when it is first read.

The Spec is all that a trained model needs to be used: its symbols, how it is scored, a line for people. It goes into
the run folder as JSON and comes back without the data (`spec.py`). The Data gives batches: training feeds that can be
put down and taken up again, and splits that are read exactly once.

A task speaks of token ids and labels only; it knows no model. Letters: B rows, T tokens of one read.
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
Kind = Literal["language", "seq2seq", "agent"]  # of model


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


class BatchSource(Protocol):
    """Parallel rows of training data without end. A row depends on the seed and its own number only, never on how
    many rows are read beside it or in how large bites, so rows can be dealt among processes and a stopped training
    goes on with the very next token."""

    def read(self, length: int) -> Batch:
        """The next `length` tokens of every row."""

    def change(self, **options: Any) -> None:
        """Go on with other difficulty (`length`, `variables`, ...): what a curriculum turns. Part of the position."""

    def position(self) -> dict[str, Any]:
        """Where the rows stand, as plain JSON: {"rows": [one entry a row], ...}. `seek` takes it up again."""

    def seek(self, position: dict[str, Any]) -> None: ...


class Score(Protocol):
    """Gathers what a model did on a split, segment by segment, in the order of `Data.batches`."""

    def add(self, batch: Batch, nll: Tensor, predictions: Tensor) -> None:
        """nll, predictions (B, T): the loss of each token (0 where not scored), the likeliest label."""

    def result(self) -> dict[str, float]:
        """Metric names and values; `loss` (nats per scored token) and `scored` (how many) are always there."""


class Spec(Protocol):
    """What is known without any data, or kept from when there was some. Nothing here opens a file."""

    @property
    def kind(self) -> Kind:
        """The kind of model that it takes."""

    @property
    def config(self) -> Any: ...

    @property
    def inputs(self) -> int:
        """How many input symbols there are."""

    @property
    def outputs(self) -> int:
        """How many labels there are."""

    @property
    def primary_metric(self) -> str:
        """The metric a run is judged by, a name in `Score.result()`."""

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def vocabularies(self) -> Mapping[str, Vocabulary]:
        """Symbols and ids by name, where they come from the data: `text`, `symbols`."""

    def facts(self) -> Mapping[str, Any]:
        """What else a model needs to know: numbers of symbols, an agent's spaces."""

    def score(self) -> Score: ...

    def describe(self) -> str:
        """One line for people: what the data is, its size, finite or endless."""


class Data(Protocol):
    """What the task reads or makes. Files are opened by the first call, and refused if they have changed."""

    def batch_source(self, rows: range, batch: int, seed: int) -> BatchSource:
        """The training rows `rows` of `batch` rows in all."""

    def batches(self, split: Split, rows: int, segment: int) -> Iterator[Batch]:
        """A whole split once, in `rows` parallel rows (each from a fresh state), `segment` tokens at a time."""

    def fingerprint(self) -> dict[str, str]:
        """A hash of what each split holds; empty where everything follows from the config."""


@dataclass(frozen=True)
class Known:
    """What a run has kept of the data that it was trained on."""

    vocabularies: Mapping[str, Vocabulary]
    about: str
    fingerprint: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    "what else a model needs to know: numbers of symbols, an agent's spaces"


class Task(Spec, Data, Protocol):
    """Both in one: what callers see. The data is opened by whoever reads it first."""

    reads_files: ClassVar[bool]  # a run must keep what is known of the data: it does not follow from the config

    @classmethod
    def kept(cls, config: Any, known: Known) -> Self:
        """The task of a run, from what it kept."""

    def with_config(self, config: Any) -> Self:
        """The same symbols with other options."""

    def with_data(self, path: str) -> Self:
        """The same symbols on other data, for evaluation only."""
