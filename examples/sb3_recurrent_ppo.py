"""A Feedback Transformer as the memory of sb3-contrib's RecurrentPPO.

    pip install ".[sb3]"
    python examples/sb3_recurrent_ppo.py

The agent observes a color, walks down a corridor and must take the door of that color. Without a memory it succeeds in
half of the episodes.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.wrappers import FlattenObservation
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import stairwell.rl.sb3  # noqa: F401  registers the names of the policies
from stairwell import FeedbackConfig


def train(frames: int = 60_000, length: int = 8) -> float:
    """Train for a number of frames and return the mean return of 100 episodes."""
    torch.manual_seed(0)
    make = {"env_id": "stairwell/Corridor-v0", "env_kwargs": {"length": length}, "wrapper_class": FlattenObservation}
    envs = make_vec_env(**make, n_envs=16, seed=0)
    core = FeedbackConfig(width=32, heads=2, layers=1, memory=4)
    model = RecurrentPPO(
        "MlpMemoryPolicy", envs, n_steps=32, batch_size=128, n_epochs=4, learning_rate=1e-3, ent_coef=0.01, seed=0,
        policy_kwargs={"core": core, "net_arch": []},
    )  # fmt: skip
    model.learn(frames)
    mean, _ = evaluate_policy(model, make_vec_env(**make, n_envs=10, seed=1), n_eval_episodes=100, deterministic=False)
    return float(np.mean(mean))


if __name__ == "__main__":
    print(f"mean return {train():.2f}")
