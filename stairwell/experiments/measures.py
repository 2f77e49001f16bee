"""What a study measures on a finished training: scores, how far it reaches, what it had learned by some time, speed."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from stairwell import configs
from stairwell.decode import Session
from stairwell.runs import long_streams
from stairwell.runs.families import KINDS
from stairwell.runs.launch import load
from stairwell.runs.seq2seq import open_translator, tune
from stairwell.tasks import Split
from stairwell.tasks.pair_task import PairTask
from stairwell.train import Run, evaluate
from stairwell.train.pair_objective import evaluate_pairs
from stairwell.train.translator import SEARCH, search_of

ROWS = {False: 50, True: 16}  # parallel rows of an evaluation: of generated episodes, which no row cuts, and of files
AGENTS = 64  # that play beside each other


@dataclass(frozen=True)
class Metric:
    """A metric on a split, with the options the model was trained with or, in `task`, others."""

    title: str
    metric: str
    split: Split = "test"
    task: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False
    "of a translator: with the length penalty that is best on the validation set"

    def measure(self, run: Run, device: str, engine: str) -> float:
        if self.tuned and not (run.path / SEARCH).exists():
            tune(run.path, device=device, break_loops=False)
        model, task = load(run.path, device, engine)
        if self.task:
            changes = {name: str(value) for name, value in self.task.items()}
            task = task.with_config(configs.set_fields(task.config, changes, "task"))
        if isinstance(task, PairTask):
            # The published scores are those of beam search alone, loops included.
            search = search_of(run.path, task, break_loops=False)
            return float(evaluate_pairs(model, task, self.split, search)[self.metric])
        rows = AGENTS if task.kind == "agent" else ROWS[task.reads_files]
        scores = KINDS[task.kind].evaluate(model, task, self.split, rows, 128, None, run.path)
        return float(scores[self.metric])


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
class Faultless:
    """How many of so many streams without end have no mistake in their first tokens, in percent. Where mistakes came is
    kept in the run folder."""

    title: str
    tokens: int
    streams: int

    def measure(self, run: Run, device: str, engine: str) -> float:
        found = long_streams.measure(run.path, self.tokens, self.streams, device=device, engine=engine)
        if found["interrupted"]:
            raise KeyboardInterrupt
        return 100 * sum(stream["first_mistake"] is None for stream in found["streams"]) / self.streams


@dataclass(frozen=True)
class StillRight:
    """Right answers in the last nine tenths of the streams that `Faultless` has followed, in percent."""

    title: str

    def measure(self, run: Run, device: str, engine: str) -> float | None:
        found = long_streams.read(run.path)
        if found is None:
            return None
        late = [place >= found.tokens / 10 for place in found.places]
        asked = sum(number for number, counts in zip(found.asked, late) if counts)
        wrong = sum(number for number, counts in zip(found.wrong, late) if counts)
        return 100 - 100 * wrong / asked


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
class WritingSpeed:
    """Words a second that a translator writes for sentences of the test set, encoder and all; the best of some rounds,
    since whatever else the machine does only makes it slower."""

    title: str
    sentences: int = 300
    rounds: int = 3
    beam: int = 5

    def measure(self, run: Run, device: str, engine: str) -> float:
        translator = open_translator(run.path, None, device, beam=self.beam, break_loops=False)
        texts = [source for source, _ in islice(translator.task.texts("test"), self.sentences)]
        rates = []
        for _ in range(self.rounds):
            began = time.perf_counter()
            words = sum(len(found[0].text.split()) for found in translator.translate(texts))
            rates.append(words / (time.perf_counter() - began))
        return max(rates)


@dataclass(frozen=True)
class LastEpisodes:
    """The mean return of a training's last 500 episodes."""

    title: str

    def measure(self, run: Run, device: str, engine: str) -> float | None:
        returns = [record["return"] for record in run.metrics() if "return" in record]
        return returns[-1] if returns else None


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
