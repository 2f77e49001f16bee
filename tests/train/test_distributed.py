"""Data-parallel training: losses equal those of one process, and any number of processes can resume a checkpoint.

Dropout is off where losses are compared, because its masks differ between processes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.runs.run import Run
from stairwell.tensor_files import load_tensors
from stairwell.train.distributed import Distributed
from tests.commands import (
    TIMEOUT,
    TINY,
    Command,
    Completed,
    assert_same_tensors,
    newest_step,
    read_metrics,
    stairwell,
    start_command,
)

# Two processes sum gradients in another order than one, so rounding differs and grows with the steps.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
CORES = {
    "feedback": ["--core.heads", "2", "--core.memory", "6"],
    "global-cached-staircase": ["--core.heads", "2", "--core.chunk", "3"],
    "lstm": [],
}


def options(core: str) -> list[str]:
    return [f"parity/{core}", *TINY, *CORES[core], "--quiet", "--train.curriculum", "length=2..8",
            "--train.curriculum_accuracy", "10", "--train.log_every", "1"]  # fmt: skip


def start_two(folder: Path, *arguments: object, **environment: str) -> list[Command]:
    """Start two processes with the environment of torchrun."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        start_command(folder, *arguments, **shared, **environment, RANK=rank, LOCAL_RANK=rank) for rank in ("0", "1")
    ]


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def run_two(folder: Path, *arguments: object) -> Completed:
    first, second = [command.wait() for command in start_two(folder, *arguments)]
    assert first.status == second.status == 0, (first, second)
    assert second.out == second.err == "", "only the main process prints"
    return first


def assert_close_runs(ours: Path, theirs: Path) -> None:
    """Assert that losses, scores and parameters are equal except for rounding."""
    for a, b in zip(read_metrics(ours), read_metrics(theirs), strict=True):
        assert a.keys() == b.keys()
        for name in {"loss", "gradient_norm"} & a.keys():
            assert a[name] == pytest.approx(b[name], rel=1e-4), (a, b)
        for name in {"step", "tokens", "stage"} & a.keys():
            assert a[name] == b[name]
    (a, _), (b, _) = load_tensors(ours / "model.safetensors"), load_tensors(theirs / "model.safetensors")
    torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("core", CORES)
def test_two_processes_equal_one_and_each_can_resume_the_other(core: str, tmp_path: Path) -> None:
    assert stairwell(tmp_path, "train", *options(core), "--steps", 24, "--out", "one").status == 0
    run_two(tmp_path, "train", *options(core), "--steps", 24, "--out", "two")
    assert_close_runs(tmp_path / "two", tmp_path / "one")
    # Started by one process, resumed by two.
    assert stairwell(tmp_path, "train", *options(core), "--steps", 12, "--out", "one-two").status == 0
    run_two(tmp_path, "train", "--resume", "--quiet", "--steps", 24, "--out", "one-two")
    # Started by two processes, resumed by one.
    run_two(tmp_path, "train", *options(core), "--steps", 12, "--out", "two-one")
    assert stairwell(tmp_path, "train", "--resume", "--quiet", "--steps", 24, "--out", "two-one").status == 0
    for run in ("one-two", "two-one"):
        mixed, whole = (Run(tmp_path / name).load_checkpoint() for name in (run, "one"))
        assert mixed[1]["position"] == whole[1]["position"]
        tensors = {name: tensor for name, tensor in mixed[0].items() if not name.startswith("rng.")}
        torch.testing.assert_close(tensors, {name: whole[0][name] for name in tensors}, **CLOSE)


def test_two_processes_are_deterministic_with_dropout_and_accumulation(tmp_path: Path) -> None:
    more = ["--model.embedding_dropout", "0.2", "--train.accumulate", "2"]
    for out in ("a", "b"):
        run_two(tmp_path, "train", *options("feedback"), *more, "--steps", 15, "--out", out)
    assert_same_tensors(tmp_path / "a", tmp_path / "b")
    interrupted = start_two(
        tmp_path, "train", *options("feedback"), *more, "--steps", 15, "--out", "c", TEST_WAIT_AT="4"
    )
    assert interrupted[0].wait_until(lambda: newest_step(tmp_path / "c") >= 4)
    interrupted[1].kill(signal.SIGTERM)  # a signal to one process stops all, and the run is saved
    interrupted[0].release()
    assert [command.wait().status for command in interrupted] == [130, 130]
    run_two(tmp_path, "train", "--resume", "--quiet", "--out", "c")
    assert_same_tensors(tmp_path / "a", tmp_path / "c")


def test_seeds_are_trained_by_all_processes_and_summarized_by_the_main_one(tmp_path: Path) -> None:
    ended = run_two(tmp_path, "train", *options("lstm"), "--steps", 3, "--seeds", 4, "--out", "seeds")
    assert "mean" in ended.out
    assert all("null" not in path.read_text() for path in tmp_path.glob("seeds/*/result.json"))


def test_processes_connect_once_for_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a fast process could connect to the group that a slow one has not left yet."""
    calls: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: calls[-1:] == ["connect"])
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, **options: calls.append("connect"))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: calls.append("disconnect"))
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with Distributed.connect(torch.device("cpu")) as all_seeds:
        for _ in range(2):
            with Distributed.connect(torch.device("cpu")) as one_seed:
                assert (one_seed.rank, one_seed.size) == (all_seeds.rank, all_seeds.size) == (1, 2)
    assert calls == ["connect", "disconnect"]


def test_processes_wait_for_a_long_validation_of_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own timeouts of 10 and 30 minutes are too short for the validation of a large split."""
    timeouts: list[timedelta] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, timeout: timeouts.append(timeout))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: None)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with Distributed.connect(torch.device("cpu")):
        pass
    assert timeouts and min(timeouts) >= timedelta(hours=12)


def test_a_batch_that_cannot_be_shared_equally_is_rejected(tmp_path: Path) -> None:
    commands = start_two(tmp_path, "train", *options("lstm"), "--train.batch", 5, "--out", "run")
    first, second = (command.wait() for command in commands)
    assert "2 processes cannot share a batch of 5 equally" in first.error_line
    assert (second.status, second.err) == (2, "")  # only the main process prints


def test_a_killed_process_ends_the_job_and_a_restart_resumes(tmp_path: Path) -> None:
    """Run torchrun and kill one of its processes."""
    run_two(tmp_path, "train", *options("feedback"), "--steps", 60, "--out", "whole")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
        "--master-port", free_port(), "-m", "stairwell", "train", *options("feedback"), "--steps", "60", "--out", "run",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    job = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + TIMEOUT
        while newest_step(tmp_path / "run") < 12:
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        ranks = children(job.pid)
        assert len(ranks) == 2
        os.kill(max(ranks), signal.SIGKILL)
        output = job.communicate(timeout=TIMEOUT)[0]
    finally:
        job.terminate()
    assert job.returncode != 0, output
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert newest_step(tmp_path / "run") < 60
    run_two(tmp_path, "train", "--resume", "--quiet", "--out", "run")
    assert_same_tensors(tmp_path / "run", tmp_path / "whole")


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_single_process_is_on_the_cpu_by_default() -> None:
    assert Distributed().device == torch.device("cpu")
    assert Distributed(device=torch.device("meta")).device == torch.device("meta")
