"""A Feedback Transformer as the memory of an agent in TorchRL, trained by its PPO.

    pip install 'stairwell[rl]' torchrl
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
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Unbounded
from torchrl.envs import Compose, GymWrapper, InitTracker, SerialEnv, TensorDictPrimer, TransformedEnv
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

from stairwell import FeedbackConfig
from stairwell.rl import MemoryGRU


class MemoryModule(TensorDictModuleBase):
    """observation, memory -> features, next memory. One frame per environment in rollouts, (B,); segments in training,
    (B, T), which start from the memory stored with their first frame."""

    in_keys = ["observation", "memory", "is_init"]  # noqa: RUF012
    out_keys = ["features", ("next", "memory")]  # noqa: RUF012

    def __init__(self, gru: MemoryGRU) -> None:
        super().__init__()
        self.gru = gru

    def forward(self, data: TensorDict) -> TensorDict:
        x, memory, start = data["observation"], data["memory"], data["is_init"][..., 0]
        single = data.dim() == 1
        if single:
            x, memory, start = x[:, None], memory[:, None], start[:, None]
        y, next_memory = self.gru(x.float(), memory[None, :, 0], start)
        data["features"] = y[:, 0] if single else y
        if single:
            data["next", "memory"] = next_memory[0]
        return data


def make_env(length: int, memory: int, num_envs: int) -> TransformedEnv:
    def make_single() -> GymWrapper:
        return GymWrapper(FlattenObservation(gymnasium.make("stairwell/Corridor-v0", length=length)))

    primer = TensorDictPrimer({"memory": Unbounded(shape=(num_envs, memory))}, default_value=0.0, expand_specs=False)
    return TransformedEnv(SerialEnv(num_envs, make_single), Compose(InitTracker(), primer))


def train(frames: int = 60_000, length: int = 8, num_envs: int = 16) -> float:
    """Train for a number of frames and return the mean return of the last 200 episodes."""
    torch.manual_seed(0)
    gru = MemoryGRU(FeedbackConfig(width=32, heads=2, layers=1, memory=4), input_size=9, batch_first=True)
    env = make_env(length, gru.hidden_size, num_envs)
    env.set_seed(0)
    memory = MemoryModule(gru)
    policy_head = TensorDictModule(nn.Linear(32, 3), in_keys=["features"], out_keys=["logits"])
    value_head = TensorDictModule(nn.Linear(32, 1), in_keys=["features"], out_keys=["state_value"])
    actor = ProbabilisticActor(
        TensorDictSequential(memory, policy_head), in_keys=["logits"], spec=env.action_spec, return_log_prob=True,
        distribution_class=torch.distributions.OneHotCategorical,
    )  # fmt: skip
    loss = ClipPPOLoss(actor, TensorDictSequential(memory, value_head), entropy_coeff=0.01, critic_coeff=0.5)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(env, actor, frames_per_batch=num_envs * 32, total_frames=frames)
    returns: list[float] = []
    for data in collector:  # (num_envs, 32)
        with torch.no_grad():
            value = loss.critic_network(data.copy())["state_value"]
        done = data["next", "done"]
        next_value = torch.cat([value[:, 1:], value[:, -1:]], 1)
        advantage, target = generalized_advantage_estimate(
            0.99, 0.95, value, next_value, data["next", "reward"], done, data["next", "terminated"]
        )
        data["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        data["value_target"] = target
        for _ in range(4):
            for minibatch in data[torch.randperm(num_envs)].split(num_envs // 4):
                losses = loss(minibatch)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
        returns += data["next", "reward"][done].tolist()  # only the last step has a reward
    collector.shutdown()
    return sum(returns[-200:]) / len(returns[-200:])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(f"mean return {train():.2f}")
