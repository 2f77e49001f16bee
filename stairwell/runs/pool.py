"""Train several runs at once, each in its own process with its share of the threads.

Small models use two cores better with one process per core than with two threads per process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.runs.config import RunConfig
from stairwell.runs.run import FORMAT, Run
from stairwell.train import Callback, Interrupted, NotSaved
from stairwell.train.signals import PARENT, handle_signals

SAME_COMMAND = "the same command resumes"
POLL_SECONDS = 0.2
SAVED = 130  # exit status of a run that was interrupted and saved

Finish = Callable[[str, dict[str, Any]], None]  # called with a run's name and its result


class TrainingProcess:
    """`stairwell train` in its own process: it starts the run, or resumes it."""

    def __init__(self, name: str, config: RunConfig, run: Run, device: str, engine: str, threads: int) -> None:
        self.name, self.run, self.threads, self.reported = name, run, threads, 0
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        # A session of its own: otherwise Ctrl-C in a terminal reaches the process twice, which means "stop at once".
        self.process = subprocess.Popen(
            command(config, run, device, engine), env=environment(threads), stdout=self.output,
            stderr=self.errors, start_new_session=True,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        if self.running:
            self.process.send_signal(signal.SIGINT)

    def new_metrics(self) -> list[dict[str, Any]]:
        """Return the metrics written since the last call."""
        records = self.run.metrics()
        new, self.reported = records[self.reported :], max(self.reported, len(records))
        return new

    def result(self) -> dict[str, Any]:
        self.output.seek(0)
        return {**json.loads(self.output.read()), "threads": self.threads}

    def error(self) -> str:
        """Return the last line that the process wrote to stderr."""
        self.errors.seek(0)
        text = self.errors.read().strip()
        return text.splitlines()[-1] if text else "it failed without an error message"


def command(config: RunConfig, run: Run, device: str, engine: str) -> list[str]:
    """Return the command that trains or resumes a run and prints its result as JSON."""
    if run.exists:
        source = ["--resume"]
    else:
        path = run.path.parent / f".{run.path.name}.config.json"
        write_text(path, json.dumps({"format": FORMAT, **config.to_json()}))
        source = ["--config", str(path)]
    train = [sys.executable, "-m", "stairwell", "train", *source, "--out", str(run.path), "--quiet", "--json"]
    return [*train, "--device", device, "--engine", engine]


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a training process. It saves and ends when this process is killed."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), PARENT: str(os.getpid())}


class Pool:
    """Runs `jobs` training processes at a time. A slot is free when its run has ended and `finish` has returned."""

    def __init__(self, jobs: int, device: str, engine: str, callback: Callback, finish: Finish) -> None:
        self.jobs, self.device, self.engine, self.callback, self.finish = jobs, device, engine, callback, finish
        self.threads = max(1, torch.get_num_threads() // jobs)
        self.processes: list[TrainingProcess] = []
        self.ended: list[TrainingProcess] = []
        self.finishing: dict[str, Future[None]] = {}
        self.failed: TrainingProcess | None = None
        self.stopping = False  # no further run is started

    def train(self, runs: Mapping[str, tuple[RunConfig, Run]]) -> None:
        """Train all runs. If one fails, or on Ctrl-C, all stop and save."""
        waiting = list(runs.items())
        with ThreadPoolExecutor(self.jobs) as self.workers, handle_signals(self.interrupt):
            try:
                while (waiting and not self.stopping) or self.processes or self.finishing:
                    while waiting and not self.stopping and len(self.processes) + len(self.finishing) < self.jobs:
                        name, (config, run) = waiting.pop(0)
                        process = TrainingProcess(name, config, run, self.device, self.engine, self.threads)
                        self.processes.append(process)
                    time.sleep(POLL_SECONDS)
                    self.poll(len(waiting))
            finally:
                for process in self.processes:
                    process.stop()
                for process in self.processes:
                    process.process.wait()
        self.check()

    def poll(self, waiting: int) -> None:
        for process in [*self.processes]:
            ended = not process.running
            for record in process.new_metrics():
                self.callback({"event": "metrics", "model": process.name, **record})
            if ended:
                self.processes.remove(process)
                self.ended.append(process)
                if process.process.returncode == 0:
                    self.finishing[process.name] = self.workers.submit(self.finish_run, process)
                elif not self.stopping:
                    self.failed = process
                    self.stop()
        for name in [name for name, future in self.finishing.items() if future.done()]:
            self.finishing.pop(name).result()
            left = waiting + len(self.processes) + len(self.finishing)
            self.callback({"event": "finished", "model": name, "left": left})

    def finish_run(self, process: TrainingProcess) -> None:
        torch.set_num_threads(self.threads)  # the others are still training
        self.finish(process.name, process.result())

    def interrupt(self, number: int) -> None:
        self.callback({"event": "stopping"})
        self.stop()

    def stop(self) -> None:
        self.stopping = True
        for process in self.processes:
            process.stop()

    def check(self) -> None:
        """Raise what a single training would have raised."""
        if self.failed is not None:
            raise UserError(f"{self.failed.name}: {self.failed.error().removeprefix('stairwell: ')}")
        if stopped := sorted((p for p in self.ended if p.process.returncode), key=lambda process: process.name):
            messages = ", ".join(f"{process.name} {process.error().partition(';')[0]}" for process in stopped)
            saved = all(process.process.returncode == SAVED for process in stopped)
            raise (Interrupted if saved else NotSaved)(f"{messages}; {SAME_COMMAND}")
        if self.stopping:
            raise Interrupted(f"interrupted; {SAME_COMMAND}")
