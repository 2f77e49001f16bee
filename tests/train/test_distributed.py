"""Several processes train as one: the same losses, checkpoints that any number of them can take up.

Dropout is off where losses are compared: its masks differ from process to process.
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

from stairwell.train.distributed import Distributed
from stairwell.train.run import Run, load_tensors
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

# Two processes add up gradients in another order than one: rounding, which grows from update to update.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
CORES = {
    "feedback": ["--core.heads", "2", "--core.memory", "6"],
    "global-cached-staircase": ["--core.heads", "2", "--core.chunk", "3"],
    "lstm": [],
}


def options(core: str) -> list[str]:
    return [f"parity/{core}", *TINY, *CORES[core], "--quiet", "--train.curriculum", "length=2..8",
            "--train.curriculum_accuracy", "10", "--train.log_every", "1"]  # fmt: skip


def begin_two(folder: Path, *arguments: object, **environment: str) -> list[Command]:
    """Two processes, told of each other as torchrun tells them."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        start_command(folder, *arguments, **shared, **environment, RANK=rank, LOCAL_RANK=rank) for rank in ("0", "1")
    ]


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def two(folder: Path, *arguments: object) -> Completed:
    first, second = [command.wait() for command in begin_two(folder, *arguments)]
    assert first.status == second.status == 0, (first, second)
    assert second.out == second.err == "", "only the first process speaks"
    return first


def assert_close_runs(ours: Path, theirs: Path) -> None:
    """The same losses, scores and weights, but for rounding."""
    for a, b in zip(read_metrics(ours), read_metrics(theirs), strict=True):
        assert a.keys() == b.keys()
        for name in {"loss", "gradient_norm"} & a.keys():
            assert a[name] == pytest.approx(b[name], rel=1e-4), (a, b)
        for name in {"step", "tokens", "stage"} & a.keys():
            assert a[name] == b[name]
    (a, _), (b, _) = load_tensors(ours / "model.safetensors"), load_tensors(theirs / "model.safetensors")
    torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("core", CORES)
def test_two_processes_equal_one_and_either_takes_up_what_the_other_began(core: str, tmp_path: Path) -> None:
    assert stairwell(tmp_path, "train", *options(core), "--steps", 24, "--out", "one").status == 0
    two(tmp_path, "train", *options(core), "--steps", 24, "--out", "two")
    assert_close_runs(tmp_path / "two", tmp_path / "one")
    # Begun by one, ended by two.
    assert stairwell(tmp_path, "train", *options(core), "--steps", 12, "--out", "one-two").status == 0
    two(tmp_path, "train", "--resume", "--quiet", "--steps", 24, "--out", "one-two")
    # Begun by two, ended by one.
    two(tmp_path, "train", *options(core), "--steps", 12, "--out", "two-one")
    assert stairwell(tmp_path, "train", "--resume", "--quiet", "--steps", 24, "--out", "two-one").status == 0
    for run in ("one-two", "two-one"):
        mixed, whole = (Run(tmp_path / name).load_checkpoint() for name in (run, "one"))
        assert mixed[1]["position"] == whole[1]["position"]
        tensors = {name: tensor for name, tensor in mixed[0].items() if not name.startswith("rng.")}
        torch.testing.assert_close(tensors, {name: whole[0][name] for name in tensors}, **CLOSE)


def test_two_processes_repeat_themselves_bit_for_bit_with_dropout_and_accumulation(tmp_path: Path) -> None:
    more = ["--model.embedding_dropout", "0.2", "--train.accumulate", "2"]
    for out in ("a", "b"):
        two(tmp_path, "train", *options("feedback"), *more, "--steps", 15, "--out", out)
    assert_same_tensors(tmp_path / "a", tmp_path / "b")
    interrupted = begin_two(
        tmp_path, "train", *options("feedback"), *more, "--steps", 15, "--out", "c", TEST_WAIT_AT="4"
    )
    assert interrupted[0].wait_until(lambda: newest_step(tmp_path / "c") >= 4)
    interrupted[1].kill(signal.SIGTERM)  # whoever is asked to stop, all stop and save
    interrupted[0].release()
    assert [command.wait().status for command in interrupted] == [130, 130]
    two(tmp_path, "train", "--resume", "--quiet", "--out", "c")
    assert_same_tensors(tmp_path / "a", tmp_path / "c")


def test_seeds_are_trained_by_all_processes_and_summed_up_by_the_first(tmp_path: Path) -> None:
    ended = two(tmp_path, "train", *options("lstm"), "--steps", 3, "--seeds", 4, "--out", "seeds")
    assert "mean" in ended.out
    assert all("null" not in path.read_text() for path in tmp_path.glob("seeds/*/result.json"))


def test_processes_meet_once_for_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meeting again at the same port, a quick process could find the meeting that a slow one has not yet left."""
    calls: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: calls[-1:] == ["meet"])
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, **options: calls.append("meet"))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: calls.append("part"))
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with Distributed.connect(torch.device("cpu")) as all_seeds:
        for _ in range(2):
            with Distributed.connect(torch.device("cpu")) as one_seed:
                assert (one_seed.rank, one_seed.size) == (all_seeds.rank, all_seeds.size) == (1, 2)
    assert calls == ["meet", "part"]


def test_processes_wait_for_a_long_validation_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own limits, 10 and 30 minutes, are shorter than the validation of a large split may take."""
    limits: list[timedelta] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, timeout: limits.append(timeout))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: None)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with Distributed.connect(torch.device("cpu")):
        pass
    assert limits and min(limits) >= timedelta(hours=12)


def test_rows_that_cannot_be_dealt_are_refused(tmp_path: Path) -> None:
    commands = begin_two(tmp_path, "train", *options("lstm"), "--train.batch", 5, "--out", "run")
    first, second = (command.wait() for command in commands)
    assert "2 processes cannot share 5 rows equally" in first.error_line
    assert (second.status, second.err) == (2, "")  # the first one speaks for both


def test_a_lost_process_ends_the_job_and_a_restart_goes_on(tmp_path: Path) -> None:
    """The real torchrun; one of its processes is killed in the middle."""
    two(tmp_path, "train", *options("feedback"), "--steps", 60, "--out", "whole")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
        "--master-port", free_port(), "-m", "stairwell", "train", *options("feedback"), "--steps", "60", "--out", "run",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    job = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        give_up = time.monotonic() + TIMEOUT
        while newest_step(tmp_path / "run") < 12:
            assert job.poll() is None and time.monotonic() < give_up
            time.sleep(0.002)
        ranks = children(job.pid)
        assert len(ranks) == 2
        os.kill(max(ranks), signal.SIGKILL)
        output = job.communicate(timeout=TIMEOUT)[0]
    finally:
        job.terminate()
    assert job.returncode != 0, output
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    reached = newest_step(tmp_path / "run")
    assert reached < 60
    two(tmp_path, "train", "--resume", "--quiet", "--out", "run")
    assert_same_tensors(tmp_path / "run", tmp_path / "whole")
    print(f"torchrun: a rank killed at update {reached}, the job ended with {job.returncode}; resumed, bit-identical")


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()]
