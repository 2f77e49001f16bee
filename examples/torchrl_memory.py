"""A Feedback Transformer as the memory of an agent in TorchRL, trained by its PPO.

    pip install ".[torchrl]"
    python examples/torchrl_memory.py

Tensordicts hold the memory as one vector per environment, under the key `memory`; `is_init` marks the first frame of an
episode. The agent observes a color, walks down a corridor and must take the door of that color. Without a memory it
succeeds in half of the episodes.
"""

from __future__ import annotations

import warnings

import gymnasium
import torch
from gymnasium.wrappers import FlattenObservation
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymWrapper, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from stairwell import FeedbackConfig
from stairwell.rl.torchrl import MemoryModule

SEGMENT = 32  # frames of each environment in a rollout


def make_env(length: int, memory: MemoryModule, num_envs: int) -> TransformedEnv:
    def make_single() -> GymWrapper:
        return GymWrapper(FlattenObservation(gymnasium.make("stairwell/Corridor-v0", length=length)))

    return TransformedEnv(SerialEnv(num_envs, make_single), Compose(InitTracker(), memory.make_tensordict_primer()))


def train(frames: int = 60_000, length: int = 8, num_envs: int = 16) -> float:
    """Train for a number of frames and return the mean return of the last 200 episodes."""
    torch.manual_seed(0)
    memory = MemoryModule(FeedbackConfig(width=32, heads=2, layers=1, memory=4), input_size=9)
    env = make_env(length, memory, num_envs)
    env.set_seed(0)
    policy_head = TensorDictModule(nn.Linear(32, 3), in_keys=["features"], out_keys=["logits"])
    value_head = TensorDictModule(nn.Linear(32, 1), in_keys=["features"], out_keys=["state_value"])
    actor = ProbabilisticActor(
        TensorDictSequential(memory, policy_head), in_keys=["logits"], spec=env.action_spec, return_log_prob=True,
        distribution_class=torch.distributions.OneHotCategorical,
    )  # fmt: skip
    loss = ClipPPOLoss(actor, TensorDictSequential(memory, value_head), entropy_coeff=0.01, critic_coeff=0.5)
    # One pass over each segment, with one more position for its end and one for a truncated episode.
    gae = GAE(
        gamma=0.99, lmbda=0.95, value_network=loss.critic_network, average_gae=True, shifted=True, shifted_budget=2
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(env, actor, frames_per_batch=num_envs * SEGMENT, total_frames=frames)
    returns: list[float] = []
    for data in collector:  # (num_envs, SEGMENT)
        gae(data)
        for _ in range(4):
            for minibatch in data[torch.randperm(num_envs)].split(num_envs // 4):
                losses = loss(minibatch)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
        returns += data["next", "reward"][data["next", "done"]].tolist()  # only the last step has a reward
    collector.shutdown()
    return sum(returns[-200:]) / len(returns[-200:])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(f"mean return {train():.2f}")
