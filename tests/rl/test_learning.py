"""Agents learn tasks that need memory. Tests that take minutes are marked slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from stairwell.rl.evaluation import EpisodeStats
from stairwell.rl.render import render_episodes
from stairwell.runs import preset
from stairwell.runs.launch import fit
from stairwell.runs.load import load


@pytest.mark.slow
def test_feedback_remembers_a_color_for_much_longer_than_its_memory_size(tmp_path: Path) -> None:
    """A corridor of 20 steps with a memory of 4 positions."""
    options = {"task.length": "20", "core.memory": "4", "train.steps": "1500"}
    scores = fit(preset("rl/feedback").with_options(options), tmp_path, "cpu")
    assert scores["valid_return"] >= 0.95


class RepeatNumber(gymnasium.Env[Any, Any]):
    """Repeat a number that is observed in the first of four frames only: memory with continuous actions. The reward is
    minus the squared distance; an agent without memory that always chooses 0 has a return of -4/3."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.number = 0, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.number, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        reward = -float(np.square(action - self.number).sum())
        return np.zeros(1, np.float32), reward, False, self.steps == 4, {}


gymnasium.register("RepeatNumber-v0", entry_point=f"{__name__}:RepeatNumber")


def test_an_agent_learns_continuous_actions_that_need_memory(tmp_path: Path) -> None:
    options = {
        "task.env": "RepeatNumber-v0", "core.width": 16, "core.layers": 1, "core.heads": 2, "core.memory": 4,
        "train.steps": 160, "train.batch": 64, "train.segment": 4, "train.learning_rate": 0.03, "train.warmup": 0,
        "train.ent_coef": 0, "train.minibatches": 1, "train.validate_every": 0,
    }  # fmt: skip
    config = preset("rl/feedback").with_options({name: str(value) for name, value in options.items()})
    assert fit(config, tmp_path, "cpu")["valid_return"] > -0.7
    agent, task = load(tmp_path, "cpu")
    stats = EpisodeStats()
    steps = list(render_episodes(agent, task, episodes=20, seed=1, deterministic=True, stats=stats))
    assert len(steps) == 80 and stats.scores()["return"] > -0.7
