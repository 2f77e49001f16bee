"""What a study measures on a finished training: scores, how far it reaches, what it had learned by some time, speed."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from stairwell import configs
from stairwell.decode import Session
from stairwell.runs.trainings import load
from stairwell.tasks import Split
from stairwell.train import Run, evaluate

ROWS = {False: 50, True: 16}  # parallel rows of an evaluation: of generated episodes, which no row cuts, and of files


@dataclass(frozen=True)
class Metric:
    """A metric on a split, with the options the model was trained with or, in `task`, others."""

    title: str
    metric: str
    split: Split = "test"
    task: dict[str, Any] = field(default_factory=dict)

    def measure(self, run: Run, device: str, engine: str) -> float:
        model, task = load(run.path, device, engine)
        if self.task:
            changes = {name: str(value) for name, value in self.task.items()}
            task = task.with_config(configs.set_fields(task.config, changes, "task"))
        rows = ROWS[task.reads_files]
        return evaluate(model, task, self.split, rows, segment=128)[self.metric]


@dataclass(frozen=True)
class Reach:
    """The largest value of a task's option up to which, from the smallest on, a metric stays at or above a bar; 0 where
    not even the smallest does."""

    title: str
    option: str
    values: tuple[int, ...]
    metric: str = "accuracy"
    bar: float = 90.0
    episodes: int = 200

    def measure(self, run: Run, device: str, engine: str) -> float:
        reached = 0
        for value in self.values:
            options = {self.option: value, "test_episodes": self.episodes}
            if Metric("", self.metric, "test", options).measure(run, device, engine) < self.bar:
                break
            reached = value
        return reached


@dataclass(frozen=True)
class ByTime:
    """The last validation within so many minutes of training."""

    title: str
    metric: str
    minutes: float

    def measure(self, run: Run, device: str, engine: str) -> float | None:
        scores = [
            record["valid"][self.metric]
            for record in run.metrics()
            if "valid" in record and record["seconds"] <= 60 * self.minutes
        ]
        return scores[-1] if scores else None


@dataclass(frozen=True)
class TrainingSpeed:
    """Tokens a second, the median over the lines of metrics."""

    title: str

    def measure(self, run: Run, device: str, engine: str) -> float:
        return statistics.median(record["tokens_per_second"] for record in run.metrics() if "loss" in record)


@dataclass(frozen=True)
class DecodingSpeed:
    """Tokens a second of a decoding session with as many rows as have a state of so many bytes."""

    title: str
    state_bytes: int
    steps: int = 20

    def measure(self, run: Run, device: str, engine: str) -> float:
        model, task = load(run.path, device, engine)
        rows = max(1, self.state_bytes // model.init_state(1).nbytes)
        session = Session(model, model.init_state(rows))
        tokens = torch.zeros(rows, dtype=torch.int64, device=next(model.parameters()).device)
        for _ in range(3):
            session.step(tokens)
        began = time.perf_counter()
        for _ in range(self.steps):
            session.step(tokens).sum().item()  # wait for the device
        return rows * self.steps / (time.perf_counter() - began)


@dataclass(frozen=True)
class Sample:
    """A metric on about so many tokens of a text's split, read on from 16 places: where all of it would take longer
    than the training."""

    title: str
    metric: str
    split: Split
    tokens: int

    def measure(self, run: Run, device: str, engine: str) -> float:
        model, task = load(run.path, device, engine)
        return evaluate(model, task, self.split, ROWS[True], segment=128, tokens=self.tokens)[self.metric]
