"""Proof by training that agents learn and that memory carries a reward. What takes minutes is run by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from stairwell.rl.episodes import Played
from stairwell.rl.render import frames
from stairwell.runs import preset
from stairwell.runs.launch import fit, load


@pytest.mark.slow
def test_feedback_carries_a_color_much_farther_than_its_memory_is_long(tmp_path: Path) -> None:
    """A corridor of 20 steps, four slots of memory: `stairwell train rl/feedback --task.length 20 --core.memory 4`."""
    options = {"task.length": "20", "core.memory": "4", "train.steps": "1500"}
    scores = fit(preset("rl/feedback").with_options(options), tmp_path, "cpu")
    assert scores["valid_return"] >= 0.95


class Pointer(gymnasium.Env[Any, Any]):
    """Point at a place that is shown in the first of four frames only: memory and a Box of actions. A reward is minus
    the square of the distance; an agent that remembers nothing and always points at the middle earns -4/3."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.place, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.time += 1
        reward = -float(np.square(action - self.place).sum())
        return np.zeros(1, np.float32), reward, False, self.time == 4, {}


gymnasium.register("Pointer-v0", entry_point=f"{__name__}:Pointer")


def test_an_agent_learns_continuous_actions_that_need_memory(tmp_path: Path) -> None:
    options = {
        "task.env": "Pointer-v0", "core.width": 16, "core.layers": 1, "core.heads": 2, "core.memory": 4,
        "train.steps": 160, "train.batch": 64, "train.segment": 4, "train.learning_rate": 0.03, "train.warmup": 0,
        "train.ent_coef": 0, "train.minibatches": 1, "train.validate_every": 0,
    }  # fmt: skip
    made = preset("rl/feedback").with_options({name: str(value) for name, value in options.items()})
    assert fit(made, tmp_path, "cpu")["valid_return"] > -0.7
    agent, task = load(tmp_path, "cpu")
    played = Played()
    shown = list(frames(agent, task, episodes=20, seed=1, likeliest=True, played=played))
    assert len(shown) == 80 and played.scores()["return"] > -0.7
