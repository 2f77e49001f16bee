"""Trainings beside each other, each in a process of its own with its share of the threads: small models use two cores
better one each than two together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.runs.config import RunConfig
from stairwell.train import Interrupted, NotSaved, Run, Watch
from stairwell.train.signals import PARENT, on_signals

ONWARDS = "the same command again goes on from there"
PAUSE = 0.2  # seconds between two looks at what was measured
SAVED = 130  # exit status of a training that was interrupted


def command(experiment: RunConfig, run: Run, device: str, engine: str) -> list[str]:
    """What trains an experiment into a run folder, or goes on with what is there; its result comes as JSON."""
    if run.exists:
        asked = ["--resume"]
    else:
        config = run.path.parent / f".{run.path.name}.config.json"
        write_text(config, json.dumps({"format": 1, **experiment.to_json()}))
        asked = ["--config", str(config)]
    begin = [sys.executable, "-m", "stairwell", "train", *asked, "--out", str(run.path), "--quiet", "--json"]
    return [*begin, "--device", device, "--engine", engine]


def environment(threads: int) -> dict[str, str]:
    """Of a training that ends, saved, if this process is killed."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        PARENT: str(os.getpid()),
    }


class Beside:
    """A training in a process of its own."""

    def __init__(self, name: str, experiment: RunConfig, run: Run, device: str, engine: str, threads: int) -> None:
        self.name, self.run, self.threads, self.told = name, run, threads, 0
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        # A session of its own: a terminal's Ctrl-C would reach it a second time, which means to stop at once.
        self.process = subprocess.Popen(
            command(experiment, run, device, engine), env=environment(threads), stdout=self.output,
            stderr=self.errors, start_new_session=True,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        if self.running:
            self.process.send_signal(signal.SIGINT)

    def news(self) -> list[dict[str, Any]]:
        """What was measured since the last call."""
        records = self.run.metrics()
        new, self.told = records[self.told :], max(self.told, len(records))
        return new

    def result(self) -> dict[str, Any]:
        self.output.seek(0)
        return {**json.loads(self.output.read()), "threads": self.threads}

    def last_word(self) -> str:
        self.errors.seek(0)
        said = self.errors.read().strip()
        return said.splitlines()[-1] if said else "it failed without a word"


def train_together(trainings: Sequence[Beside], watch: Watch) -> None:
    """Wait until all have ended, and tell `watch` what they measure. Who wants an end wants that of all: they save. If
    one fails the others stop too, and save."""
    asked = 0

    def ask(number: int) -> None:
        nonlocal asked
        asked += 1
        for training in trainings:
            training.stop()

    failed: Beside | None = None
    told = False
    try:
        with on_signals(ask):
            while any(training.running for training in trainings):
                time.sleep(PAUSE)
                tell(trainings, watch)
                if asked and not told:
                    told = True
                    watch({"event": "stopping"})
                if not asked and failed is None:
                    failed = next((training for training in trainings if training.process.poll()), None)
                    for training in trainings if failed is not None else ():
                        training.stop()
    finally:
        for training in trainings:
            training.stop()
        for training in trainings:
            training.process.wait()
    tell(trainings, watch)
    if failed is not None:
        raise UserError(f"{failed.name}: {failed.last_word().removeprefix('stairwell: ')}")
    check_ended(trainings)


def tell(trainings: Sequence[Beside], watch: Watch) -> None:
    for training in trainings:
        for record in training.news():
            watch({"event": "metrics", "model": training.name, **record})


def check_ended(trainings: Sequence[Beside]) -> None:
    """Raise what a training alone would have raised, if someone wanted an end."""
    cut = [training for training in trainings if training.process.returncode]
    if cut:
        words = ", ".join(f"{training.name} {training.last_word().partition(';')[0]}" for training in cut)
        saved = all(training.process.returncode == SAVED for training in cut)
        raise (Interrupted if saved else NotSaved)(f"{words}; {ONWARDS}")
