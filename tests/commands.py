"""The command line as real processes, without waiting for torch to load in each.

One process loads everything and forks a copy of itself for each command. A copy is a process like any other: it has its
own number, output, exit status and locks, and can be killed.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# A small model of any kind, a small task, everything on: options that all cores know.
TINY = [
    "--core.width", "8", "--core.layers", "1", "--train.batch", "4", "--train.segment", "8", "--train.log_every", "3",
    "--train.validate_every", "10", "--train.checkpoint_every", "5", "--train.valid_batch", "2", "--train.warmup", "5",
    "--train.curriculum", "", "--task.valid_episodes", "4", "--task.test_episodes", "4", "--task.length", "8",
]  # fmt: skip
PATIENCE = 120.0  # seconds until a command counts as stuck
CHANGES = ("seconds", "tokens_per_second", "peak_memory")  # what no two trainings have in common


@dataclass(frozen=True)
class Ended:
    status: int  # the exit status; minus a signal's number
    out: str
    err: str

    @property
    def line(self) -> str:
        """What a person is told of a mistake: one line, no traceback, nothing on stdout."""
        assert self.status == 2, self
        assert self.out == "" and self.err.count("\n") == 1, self
        assert self.err.startswith("stairwell: ") and "Traceback" not in self.err, self
        return self.err.strip()


class Command:
    """A command under way."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.folder = pid, folder

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self.go()

    def go(self) -> None:
        """A training that waits (TEST_WAIT_AT) goes on."""
        (self.folder / f"{self.pid}.go").touch()

    def until(self, happened: Callable[[], bool]) -> bool:
        """Wait for something to happen; false if the command ended before."""
        give_up = time.monotonic() + PATIENCE
        while not happened():
            if server().ask(do="peek", pid=self.pid) is not None:
                return False
            assert time.monotonic() < give_up, "nothing happened"
            time.sleep(0.002)
        return True

    def end(self) -> Ended:
        give_up = time.monotonic() + PATIENCE
        while (status := server().ask(do="peek", pid=self.pid)) is None:
            if time.monotonic() > give_up:
                self.kill()
            time.sleep(0.005)
        return Ended(status, *((self.folder / f"{self.pid}.{name}").read_text() for name in ("out", "err")))


def begin(folder: Path, *arguments: object, **environment: str) -> Command:
    """Start `stairwell ARGUMENTS` in a folder."""
    given = [str(argument) for argument in arguments]
    pid = server().ask(do="begin", folder=str(folder), arguments=given, environment=environment)
    return Command(int(pid), folder)


def stairwell(folder: Path, *arguments: object, **environment: str) -> Ended:
    return begin(folder, *arguments, **environment).end()


class Server:
    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        atexit.register(self.stop)

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.communicate()  # its input ends, and so does it


@cache
def server() -> Server:
    return Server()


def serve() -> None:
    import torch

    import stairwell.cli
    import stairwell.cli.display
    import stairwell.runs.launch  # noqa: F401

    # Torch loads much of itself with the first optimizer.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    running: set[int] = set()
    ended: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "begin":
            answer: int | None = os.fork()
            if answer == 0:
                become(request)
            running.add(answer or 0)
        else:
            pid = request["pid"]
            if pid not in ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    running.discard(pid)
                    ended[pid] = os.waitstatus_to_exitcode(status)
            answer = ended.get(pid)
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def become(request: dict[str, Any]) -> None:
    """In the copy: be the command, to the end."""
    from stairwell import cli

    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["stairwell", *request["arguments"]]
    if place := os.environ.get("TEST_INTERRUPT_AT"):
        interrupt_at(place)
    if step := os.environ.get("TEST_WAIT_AT"):
        wait_at(int(step))
    if limit := os.environ.get("TEST_FILE_LIMIT"):
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing more becomes an error instead of the end
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    # Whoever runs the tests in the background, or with nohup, hands down signals that are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if ignored := os.environ.get("TEST_IGNORED_SIGNAL"):
        signal.signal(int(ignored), signal.SIG_IGN)
    status = 1
    try:
        cli.main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def interrupt_at(place: str) -> None:
    """Ctrl-C at the very moment when this process first opens or renames to a file whose path ends like that: the same
    moment on an idle machine and on a busy one."""
    waiting = [place]

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if waiting and event in ("open", "os.rename") and any(str(path).endswith(place) for path in arguments[:2]):
            waiting.clear()
            os.kill(os.getpid(), signal.SIGINT)

    sys.addaudithook(look)


def wait_at(step: int) -> None:
    """A training waits after that update until it is told to go on, so that none is over before its signal comes."""
    from stairwell.train import Run

    add, go = Run.add_metrics, Path(f"{os.getpid()}.go").absolute()

    def add_and_wait(run: Run, record: dict[str, Any]) -> None:
        add(run, record)
        while record["step"] >= step and not go.exists():
            time.sleep(0.001)

    Run.add_metrics = add_and_wait  # type: ignore[method-assign]


def weights(run: Path) -> dict[str, Any]:
    """Every number that a training ends with: the model to use and the newest checkpoint, without the note."""
    from stairwell.train.run import load_tensors

    newest = max((run / "checkpoints").glob("step-*.safetensors"))
    model, _ = load_tensors(run / "model.safetensors")
    tensors, _ = load_tensors(newest)
    return {newest.name: None, **{f"best.{name}": tensor for name, tensor in model.items()}, **tensors}


def assert_same_weights(ours: Path, theirs: Path) -> None:
    a, b = weights(ours), weights(theirs)
    assert a.keys() == b.keys()
    different = [name for name in a if a[name] is not None and not a[name].equal(b[name])]
    assert not different, different


def measured(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl, apart from times and memory."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in CHANGES} for line in lines]


def newest_step(run: Path) -> int:
    """How far a training has come, by its newest line of metrics."""
    try:
        return int(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"])
    except (OSError, IndexError, json.JSONDecodeError):
        return 0


if __name__ == "__main__":
    serve()
