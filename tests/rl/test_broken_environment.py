"""An environment that fails stops training with an error in one line, and the run is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from stairwell.errors import UserError
from stairwell.rl.vector_env import BatchedVectorEnv, BrokenEnvironment
from stairwell.runs.launch import fit
from stairwell.runs.run import Run
from stairwell.train.objective import BrokenSource
from tests.commands import stairwell
from tests.rl.small_runs import rollout_source, run_config

FAILURES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "raises": (lambda step: 1 / 0, r"ZeroDivisionError: division by zero \(.*test_broken_environment\.py:\d+\)"),
    "nan-reward": (lambda step: (step[0], float("nan"), *step[2:]), "the reward of environment 0 is nan"),
    "no-reward": (lambda step: (step[0], None, *step[2:]), "the reward is None, not a number"),
    "wrong-shape": (lambda step: (np.zeros(3, np.float32), *step[1:]), r"not in the space .*: float32 of shape \(3,\)"),
    "wrong-dtype": (lambda step: (np.zeros(2, np.int64), *step[1:]), r"not in the space .*: int64 of shape \(2,\)"),
    "nan-observation": (
        lambda step: (np.full(2, np.nan, np.float32), *step[1:]),
        r"an observation contains NaN: \[nan nan\]",
    ),
    "out-of-range": (
        lambda step: (np.array([0, 2], np.float32), *step[1:]),
        r"not in the space .*: float32 of shape \(2,\) with values from 0 to 2",
    ),
    "no-bool": (lambda step: (*step[:2], "no", *step[3:]), "`terminated` is 'no', not a bool"),
    "endless": (lambda step: step, "has not ended after 50 steps; add a time limit to the environment"),
}


class Failing(gymnasium.Env[Any, Any]):
    """Fails after 20 steps."""

    def __init__(self, failure: str) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.failure, self.steps = failure, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        valid = (np.zeros(2, np.float32), 1.0, self.failure != "endless" and self.steps % 3 == 0, False, {})
        return FAILURES[self.failure][0](valid) if self.steps > 20 else valid


for _failure in FAILURES:
    gymnasium.register(f"Failing-{_failure}-v0", entry_point=f"{__name__}:Failing", kwargs={"failure": _failure})


@pytest.mark.parametrize("failure", list(FAILURES))
def test_a_failing_environment_stops_training_with_an_error_and_a_checkpoint(failure: str, tmp_path: Path) -> None:
    options = {"task__length": None, "task__max_episode_steps": 50, "train__validate_every": 0}
    config = run_config(task__env=f"Failing-{failure}-v0", **options)
    with pytest.raises(UserError, match=FAILURES[failure][1]) as raised:
        fit(config, tmp_path, "cpu")
    message = str(raised.value)
    assert "\n" not in message and message.startswith("the environment failed: ")
    steps = 8 if failure == "endless" else 3
    assert f"stopped and saved at step {steps} of 12" in message
    assert Run(tmp_path).newest_step == steps
    # The run can be resumed, and stops where the environment fails again.
    with pytest.raises(BrokenSource):
        fit(config, tmp_path, "cpu")
    assert Run(tmp_path).newest_step > steps


def test_an_environment_that_fails_in_validation_stops_training(tmp_path: Path) -> None:
    options = {"task__length": None, "train__validate_every": 2, "task__valid_episodes": 40}
    config = run_config(task__env="Failing-raises-v0", **options)
    with pytest.raises(UserError, match=r"ZeroDivisionError.*; stopped and saved at step 2 of 12"):
        fit(config, tmp_path, "cpu")
    assert Run(tmp_path).newest_step == 2


def test_a_failed_rollout_is_repeated_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment can restore its state."""
    source, failing = rollout_source(run_config()), rollout_source(run_config())
    source.read(6), failing.read(6)
    step, calls = BatchedVectorEnv.step, []

    def fail_at_4(self: BatchedVectorEnv, actions: Any) -> Any:
        calls.append(None)
        if len(calls) == 4:
            raise BrokenEnvironment("connection lost")
        return step(self, actions)

    monkeypatch.setattr(BatchedVectorEnv, "step", fail_at_4)
    with pytest.raises(BrokenEnvironment, match="the environment failed: connection lost"):
        failing.read(6)
    monkeypatch.undo()
    tensors, expected = failing.read(6).tensors(), source.read(6).tensors()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


def test_the_command_line_prints_the_error_in_one_line(tmp_path: Path) -> None:
    options = ["train", "rl/lstm", "--task.env", f"{__name__}:Failing-nan-reward-v0", "--quiet", "--out", "run"]
    options += ["--core.width", "8", "--core.layers", "1", "--train.batch", "4", "--train.segment", "6"]
    line = stairwell(tmp_path, *options).error_line
    assert "the reward of environment 0 is nan; stopped and saved at step" in line
