"""A Feedback Transformer as the memory of sb3-contrib's RecurrentPPO.

    pip install 'stairwell[rl]' sb3-contrib
    python examples/sb3_recurrent_ppo.py

The agent observes a color, walks down a corridor and must take the door of that color. Without a memory it succeeds in
half of the episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.wrappers import FlattenObservation
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import Tensor

from stairwell import FeedbackConfig
from stairwell.rl import MemoryLSTM


class MemoryPolicy(RecurrentActorCriticPolicy):
    """The policy of RecurrentPPO with a stairwell core instead of its LSTM, shared by actor and critic."""

    def __init__(self, *arguments: Any, core: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, lstm_hidden_size=core.width, shared_lstm=True, enable_critic_lstm=False)
        self.lstm_actor = MemoryLSTM(core, self.features_dim)
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        # The base class made the optimizer for the parameters of its LSTM.
        learning_rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer = self.optimizer_class(self.parameters(), lr=learning_rate, **self.optimizer_kwargs)

    @staticmethod
    def _process_sequence(features: Tensor, lstm_states: Any, episode_starts: Tensor, lstm: Any) -> Any:
        """Process all frames in one call: `start` resets the state, instead of a loop over time."""
        B = lstm_states[0].shape[1]
        x = features.reshape(B, -1, lstm.input_size)
        start = episode_starts.reshape(B, -1) > 0.5
        output, states = lstm(x.transpose(0, 1), lstm_states, start)
        return output.transpose(0, 1).flatten(0, 1), states


def train(frames: int = 60_000, length: int = 8) -> float:
    """Train for a number of frames and return the mean return of 100 episodes."""
    torch.manual_seed(0)
    make = {"env_id": "stairwell/Corridor-v0", "env_kwargs": {"length": length}, "wrapper_class": FlattenObservation}
    envs = make_vec_env(**make, n_envs=16, seed=0)
    core = FeedbackConfig(width=32, heads=2, layers=1, memory=4)
    model = RecurrentPPO(
        MemoryPolicy, envs, n_steps=32, batch_size=128, n_epochs=4, learning_rate=1e-3, ent_coef=0.01, seed=0,
        policy_kwargs={"core": core, "net_arch": []},
    )  # fmt: skip
    model.learn(frames)
    mean, _ = evaluate_policy(model, make_vec_env(**make, n_envs=10, seed=1), n_eval_episodes=100, deterministic=False)
    return float(np.mean(mean))


if __name__ == "__main__":
    print(f"mean return {train():.2f}")
