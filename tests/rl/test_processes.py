"""Training of agents in real processes: killed and resumed, and in two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stairwell.runs.run import Run
from tests.commands import assert_same_tensors, newest_step, stairwell, start_command
from tests.train.test_distributed import CLOSE, run_two

OPTIONS = [
    "rl/feedback", "--task.length", "3", "--task.valid_episodes", "4", "--core.width", "8", "--core.layers", "1",
    "--core.heads", "2", "--core.memory", "3", "--train.batch", "4", "--train.segment", "6", "--train.log_every", "1",
    "--train.validate_every", "10", "--train.checkpoint_every", "3", "--train.valid_batch", "2", "--quiet",
    "--model.last_action", "true", "--model.last_reward", "true",
]  # fmt: skip
A2C = ["--train.algorithm", "a2c", "--train.normalize_advantage", "false"]


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_a_killed_run_resumes_bit_for_bit(algorithm: str, tmp_path: Path) -> None:
    command = ["train", *OPTIONS, *(A2C if algorithm == "a2c" else []), "--steps", "40"]
    assert stairwell(tmp_path, *command, "--out", "whole").status == 0
    killed = start_command(tmp_path, *command, "--out", "run", TEST_WAIT_AT="7")
    assert killed.wait_until(lambda: newest_step(tmp_path / "run") >= 7)
    killed.kill()
    assert killed.wait().status == -9
    assert 0 < Run(tmp_path / "run").newest_step < 40
    assert stairwell(tmp_path, "train", "--resume", "--quiet", "--out", "run").status == 0
    assert_same_tensors(tmp_path / "run", tmp_path / "whole")


def test_two_processes_equal_one_and_one_resumes_a_run_of_two(tmp_path: Path) -> None:
    """With A2C, whose loss is a sum over environments. Only the episode statistics are those of the first process."""
    command = ["train", *OPTIONS, *A2C]
    assert stairwell(tmp_path, *command, "--steps", "12", "--out", "one").status == 0
    run_two(tmp_path, *command, "--steps", "12", "--out", "two")
    run_two(tmp_path, *command, "--steps", "6", "--out", "two-one")
    assert stairwell(tmp_path, "train", "--resume", "--quiet", "--steps", "12", "--out", "two-one").status == 0
    whole = Run(tmp_path / "one").load_checkpoint()[0]
    for name in ("two", "two-one"):
        tensors = Run(tmp_path / name).load_checkpoint()[0]
        keys = [key for key in whole if not key.startswith(("rng.", "objective."))]
        torch.testing.assert_close({key: tensors[key] for key in keys}, {key: whole[key] for key in keys}, **CLOSE)
