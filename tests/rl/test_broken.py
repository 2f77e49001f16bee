"""An environment that is broken stops a training with a clear word, and everything that was learned is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from stairwell.errors import UserError
from stairwell.rl.rows import BrokenEnvironment, OwnRows
from stairwell.runs.launch import fit
from stairwell.train import Run
from stairwell.train.objective import BrokenSource
from tests.commands import stairwell
from tests.rl.test_rollouts import batch_source, experiment

WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "raises": (lambda step: 1 / 0, r"ZeroDivisionError: division by zero \(.*test_broken\.py:\d+\)"),
    "nan-reward": (lambda step: (step[0], float("nan"), *step[2:]), "the reward of row 0 is nan"),
    "no-reward": (lambda step: (step[0], None, *step[2:]), "the reward is None, not a number"),
    "wrong-shape": (lambda step: (np.zeros(3, np.float32), *step[1:]), r"not in the space .*: float32 of shape \(3,\)"),
    "wrong-type": (lambda step: (np.zeros(2, np.int64), *step[1:]), r"not in the space .*: int64 of shape \(2,\)"),
    "nan-seen": (lambda step: (np.full(2, np.nan, np.float32), *step[1:]), "not in the space"),
    "wrong-end": (lambda step: (*step[:2], "no", *step[3:]), "`terminated` is 'no', not true or false"),
    "never-ends": (lambda step: step, "has not ended after 50 steps; give the environment a limit"),
}


class Broken(gymnasium.Env[Any, Any]):
    """Well for 20 steps of its life, then in some way broken."""

    def __init__(self, way: str) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.way, self.steps = way, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        well = (np.zeros(2, np.float32), 1.0, self.way != "never-ends" and self.steps % 3 == 0, False, {})
        return WAYS[self.way][0](well) if self.steps > 20 else well


for _way in WAYS:
    gymnasium.register(f"Broken-{_way}-v0", entry_point=f"{__name__}:Broken", kwargs={"way": _way})


@pytest.mark.parametrize("way", list(WAYS))
def test_a_broken_environment_stops_a_training_with_a_word_and_a_checkpoint(way: str, tmp_path: Path) -> None:
    made = experiment(task__env=f"Broken-{way}-v0", task__length=None, task__longest=50, train__validate_every=0)
    with pytest.raises(UserError, match=WAYS[way][1]) as raised:
        fit(made, tmp_path, "cpu")
    told = str(raised.value)
    assert "\n" not in told and told.startswith("the environment is broken: ")
    updates = 8 if way == "never-ends" else 3
    assert f"stopped and saved at update {updates} of 12" in told
    assert Run(tmp_path).newest_step == updates
    # The training can be taken up: it stops again where the environment breaks again.
    with pytest.raises(BrokenSource):
        fit(made, tmp_path, "cpu")
    assert Run(tmp_path).newest_step > updates


def test_an_environment_that_breaks_in_a_validation_stops_a_training_too(tmp_path: Path) -> None:
    made = experiment(task__env="Broken-raises-v0", task__length=None, train__validate_every=2, task__valid_episodes=40)
    with pytest.raises(UserError, match=r"ZeroDivisionError.*; stopped and saved at update 2 of 12"):
        fit(made, tmp_path, "cpu")
    assert Run(tmp_path).newest_step == 2


def test_what_was_half_played_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an environment can be put back, a rollout that broke down leaves nothing behind."""
    whole, broken = batch_source(experiment()), batch_source(experiment())
    whole.read(6), broken.read(6)
    step, calls = OwnRows.step, []

    def failing(self: OwnRows, actions: Any) -> Any:
        calls.append(None)
        if len(calls) == 4:
            raise BrokenEnvironment("a cable is loose")
        return step(self, actions)

    monkeypatch.setattr(OwnRows, "step", failing)
    with pytest.raises(BrokenEnvironment, match="the environment is broken: a cable is loose"):
        broken.read(6)
    monkeypatch.undo()
    ours, theirs = broken.read(6).tensors(), whole.read(6).tensors()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    options = ["train", "rl/lstm", "--task.env", "tests.rl.test_broken:Broken-nan-reward-v0", "--quiet", "--out", "run"]
    options += ["--core.width", "8", "--core.layers", "1", "--train.batch", "4", "--train.segment", "6"]
    line = stairwell(tmp_path, *options).line
    assert "the reward of row 0 is nan; stopped and saved at update" in line
