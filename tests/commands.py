"""Run commands as real processes without importing torch in each.

A server process imports everything and forks once per command. Each command has its own process id, output, exit status
and locks, and can be killed.
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

# Options of a small model and task that all cores have.
TINY = [
    "--core.width", "8", "--core.layers", "1", "--train.batch", "4", "--train.segment", "8", "--train.log_every", "3",
    "--train.validate_every", "10", "--train.checkpoint_every", "5", "--train.valid_batch", "2", "--train.warmup", "5",
    "--train.curriculum", "", "--task.valid_episodes", "4", "--task.test_episodes", "4", "--task.length", "8",
]  # fmt: skip
TIMEOUT = 120.0  # seconds until a command counts as stuck
VARYING = ("seconds", "tokens_per_second", "peak_memory")  # metrics that differ between equal runs


@dataclass(frozen=True)
class Completed:
    status: int  # the exit status, or minus the number of a signal
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The message of a user error: status 2, one line, no traceback, nothing on stdout."""
        assert self.status == 2, self
        assert self.out == "" and self.err.count("\n") == 1, self
        assert self.err.startswith("stairwell: ") and "Traceback" not in self.err, self
        return self.err.strip()


class Command:
    """A running command."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.folder = pid, folder

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self.release()

    def release(self) -> None:
        """Let a run continue that waits (TEST_WAIT_AT)."""
        (self.folder / f"{self.pid}.go").touch()

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition. Return false if the command ended before."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if server().send(action="poll", pid=self.pid) is not None:
                return False
            assert time.monotonic() < deadline, "timeout"
            time.sleep(0.002)
        return True

    def wait(self) -> Completed:
        deadline = time.monotonic() + TIMEOUT
        while (status := server().send(action="poll", pid=self.pid)) is None:
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.005)
        return Completed(status, *((self.folder / f"{self.pid}.{name}").read_text() for name in ("out", "err")))


def start_command(folder: Path, *arguments: object, **environment: str) -> Command:
    """Start `stairwell ARGUMENTS` in a folder."""
    texts = [str(argument) for argument in arguments]
    pid = server().send(action="start", folder=str(folder), arguments=texts, environment=environment)
    return Command(int(pid), folder)


def stairwell(folder: Path, *arguments: object, **environment: str) -> Completed:
    return start_command(folder, *arguments, **environment).wait()


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

    def send(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.communicate()  # closes its input, which ends it


@cache
def server() -> Server:
    return Server()


def serve() -> None:
    import torch

    import stairwell.cli
    import stairwell.cli.display
    import stairwell.runs.launch  # noqa: F401

    # The first optimizer imports much of torch.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    running: set[int] = set()
    ended: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["action"] == "start":
            response: int | None = os.fork()
            if response == 0:
                run_command(request)
            running.add(response or 0)
        else:
            pid = request["pid"]
            if pid not in ended:
                exited, status = os.waitpid(pid, os.WNOHANG)
                if exited:
                    running.discard(pid)
                    ended[pid] = os.waitstatus_to_exitcode(status)
            response = ended.get(pid)
        print(json.dumps(response), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def run_command(request: dict[str, Any]) -> None:
    """Run the command in the forked process and exit."""
    from stairwell import cli

    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["stairwell", *request["arguments"]]
    if suffix := os.environ.get("TEST_INTERRUPT_AT"):
        interrupt_at(suffix)
    for name in filter(None, os.environ.get("TEST_MISSING", "").split(",")):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError
    if step := os.environ.get("TEST_WAIT_AT"):
        wait_at(int(step))
    if limit := os.environ.get("TEST_FILE_LIMIT"):
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing more raises an error instead of a signal
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    # Tests that run in the background or with nohup inherit ignored signals.
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


def interrupt_at(suffix: str) -> None:
    """Send Ctrl-C when this process first opens or renames a file whose path has this suffix. This does not depend on
    the speed of the machine."""
    waiting = [suffix]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if waiting and event in ("open", "os.rename") and any(str(path).endswith(suffix) for path in arguments[:2]):
            waiting.clear()
            os.kill(os.getpid(), signal.SIGINT)

    sys.addaudithook(audit)


def wait_at(step: int) -> None:
    """Let a run wait after a step until it is released, so that it does not end before a signal arrives."""
    from stairwell.runs.run import Run

    add, release = Run.add_metrics, Path(f"{os.getpid()}.go").absolute()

    def add_and_wait(run: Run, record: dict[str, Any]) -> None:
        add(run, record)
        while record["step"] >= step and not release.exists():
            time.sleep(0.001)

    Run.add_metrics = add_and_wait  # type: ignore[method-assign]


def saved_tensors(run: Path) -> dict[str, Any]:
    """Return the tensors of the model and of the newest checkpoint."""
    from stairwell.tensor_files import load_tensors

    newest = max((run / "checkpoints").glob("step-*.safetensors"))
    model, _ = load_tensors(run / "model.safetensors")
    tensors, _ = load_tensors(newest)
    return {newest.name: None, **{f"best.{name}": tensor for name, tensor in model.items()}, **tensors}


def assert_same_tensors(ours: Path, theirs: Path) -> None:
    a, b = saved_tensors(ours), saved_tensors(theirs)
    assert a.keys() == b.keys()
    different = [name for name in a if a[name] is not None and not a[name].equal(b[name])]
    assert not different, different


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return metrics.jsonl without times and memory."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in VARYING} for line in lines]


def newest_step(run: Path) -> int:
    """Return the step of the newest line of metrics."""
    try:
        return int(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"])
    except (OSError, IndexError, json.JSONDecodeError):
        return 0


if __name__ == "__main__":
    serve()
