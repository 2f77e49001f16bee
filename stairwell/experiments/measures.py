"""The measurements of experiments on finished runs: scores, lengths, scores by time, speed."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import torch

from stairwell import configs
from stairwell.decode import Session
from stairwell.runs import long_streams
from stairwell.runs.families import FAMILIES, EvalOptions
from stairwell.runs.load import load
from stairwell.runs.pair_runs import open_translator, tune
from stairwell.runs.run import Run
from stairwell.tasks import Split, StreamTask
from stairwell.tasks.file_task import FileTask
from stairwell.tasks.pair_task import PairTask
from stairwell.train import evaluate
from stairwell.train.pair_objective import evaluate_pairs
from stairwell.train.translator import SEARCH, load_search

# Parallel streams of an evaluation: of generated episodes, which are never cut, and of files.
STREAMS = {False: 50, True: 16}
AGENTS = 64  # environments at a time


@dataclass(frozen=True)
class Metric:
    """A metric on a split, with the run's task options or, in `task`, others."""

    title: str
    metric: str
    split: Split = "test"
    task: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False
    "Translators: use the length penalty that is best on the validation set."

    def measure(self, run: Run, device: str, engine: str) -> float:
        if self.tuned and not (run.path / SEARCH).exists():
            tune(run.path, device=device, break_loops=False)
        model, task = load(run.path, device, engine)
        if self.task:
            changes = {name: str(value) for name, value in self.task.items()}
            task = task.with_config(configs.set_fields(task.config, changes, "task"))
        if isinstance(task, PairTask):
            # Published scores are of plain beam search, without removal of repetition loops.
            search = load_search(run.path, task, break_loops=False)
            return float(evaluate_pairs(model, task, self.split, search)[self.metric])
        if task.family == "rl":
            options = EvalOptions(streams=AGENTS)
        else:
            options = EvalOptions(streams=STREAMS[isinstance(task, FileTask)], segment=128)
        scores = FAMILIES[task.family].evaluate(model, task, self.split, run.path, options)
        return float(scores[self.metric])


@dataclass(frozen=True)
class LargestSolved:
    """The largest value of a task's option up to which a metric stays at or above a threshold; 0 if none."""

    title: str
    option: str
    values: tuple[int, ...]
    metric: str = "accuracy"
    threshold: float = 90.0
    episodes: int = 200

    def measure(self, run: Run, device: str, engine: str) -> float:
        largest = 0
        for value in self.values:
            options = {self.option: value, "test_episodes": self.episodes}
            if Metric("", self.metric, "test", options).measure(run, device, engine) < self.threshold:
                break
            largest = value
        return largest


@dataclass(frozen=True)
class ErrorFreeStreams:
    """The percentage of endless streams without a mistake in their first tokens. The positions of mistakes are
    written to the run folder."""

    title: str
    tokens: int
    streams: int

    def measure(self, run: Run, device: str, engine: str) -> float:
        result = long_streams.measure(run.path, self.tokens, self.streams, device=device, engine=engine)
        if result["interrupted"]:
            raise KeyboardInterrupt
        return 100 * sum(stream["first_mistake"] is None for stream in result["streams"]) / self.streams


@dataclass(frozen=True)
class LateAccuracy:
    """The accuracy in percent over the last nine tenths of the streams that `ErrorFreeStreams` has read."""

    title: str

    def measure(self, run: Run, device: str, engine: str) -> float | None:
        horizon = long_streams.read(run.path)
        if horizon is None:
            return None
        late = [position >= horizon.tokens / 10 for position in horizon.positions]
        scored = sum(number for number, is_late in zip(horizon.scored, late) if is_late)
        wrong = sum(number for number, is_late in zip(horizon.wrong, late) if is_late)
        return 100 - 100 * wrong / scored


@dataclass(frozen=True)
class ByTime:
    """The last validation score within some minutes of training."""

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
    """Tokens per second: the median over the logged metrics."""

    title: str

    def measure(self, run: Run, device: str, engine: str) -> float:
        return statistics.median(record["tokens_per_second"] for record in run.metrics() if "loss" in record)


@dataclass(frozen=True)
class DecodingSpeed:
    """Tokens per second of a decoding session with as many streams as fit into a state of `state_bytes`."""

    title: str
    state_bytes: int
    steps: int = 20

    def measure(self, run: Run, device: str, engine: str) -> float:
        model, task = load(run.path, device, engine)
        streams = max(1, self.state_bytes // model.init_state(1).nbytes)
        session = Session(model, model.init_state(streams))
        tokens = torch.zeros(streams, dtype=torch.int64, device=next(model.parameters()).device)
        for _ in range(3):
            session.step(tokens)
        began = time.perf_counter()
        for _ in range(self.steps):
            session.step(tokens).sum().item()  # wait for the device
        return streams * self.steps / (time.perf_counter() - began)


@dataclass(frozen=True)
class TranslationSpeed:
    """Words per second of a translator on sentences of the test set, including the encoder. The fastest round counts:
    other processes only make it slower."""

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
            words = sum(len(hypotheses[0].text.split()) for hypotheses in translator.translate(texts))
            rates.append(words / (time.perf_counter() - began))
        return max(rates)


@dataclass(frozen=True)
class LastEpisodes:
    """The mean return of the last 500 training episodes."""

    title: str

    def measure(self, run: Run, device: str, engine: str) -> float | None:
        returns = [record["return"] for record in run.metrics() if "return" in record]
        return returns[-1] if returns else None


@dataclass(frozen=True)
class PartialMetric:
    """A metric on about `tokens` tokens of a text's split, read from 16 positions: for texts whose evaluation would
    take longer than training."""

    title: str
    metric: str
    split: Split
    tokens: int

    def measure(self, run: Run, device: str, engine: str) -> float:
        model, task = load(run.path, device, engine)
        scores = evaluate(model, cast(StreamTask, task), self.split, STREAMS[True], segment=128, tokens=self.tokens)
        return scores[self.metric]
