"""A Feedback Transformer as the memory of an agent in TorchRL, trained by its PPO.

    pip install 'stairwell[rl]' torchrl
    python examples/torchrl_memory.py

The memory travels through tensordicts as one vector a row, under the key `memory`, and `is_init` says where episodes
begin. The agent sees a color, walks down a corridor and must go through the door of that color: without a memory it
is right half of the time.
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
    """observation, memory -> features, the memory after. One frame a row while playing, (B,); whole stretches of time
    when learning, (B, T), which begin from the memory that was stored with their first frame."""

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
        y, after = self.gru(x.float(), memory[None, :, 0], start)
        data["features"] = y[:, 0] if single else y
        if single:
            data["next", "memory"] = after[0]
        return data


def environment(length: int, memory: int, rows: int) -> TransformedEnv:
    def one() -> GymWrapper:
        return GymWrapper(FlattenObservation(gymnasium.make("stairwell/Corridor-v0", length=length)))

    primer = TensorDictPrimer({"memory": Unbounded(shape=(rows, memory))}, default_value=0.0, expand_specs=False)
    return TransformedEnv(SerialEnv(rows, one), Compose(InitTracker(), primer))


def train(frames: int = 60_000, length: int = 8, rows: int = 16) -> float:
    """The mean return of the last 200 episodes after so many frames."""
    torch.manual_seed(0)
    gru = MemoryGRU(FeedbackConfig(width=32, heads=2, layers=1, memory=4), input_size=9, batch_first=True)
    env = environment(length, gru.hidden_size, rows)
    env.set_seed(0)
    remember = MemoryModule(gru)
    decide = TensorDictModule(nn.Linear(32, 3), in_keys=["features"], out_keys=["logits"])
    expect = TensorDictModule(nn.Linear(32, 1), in_keys=["features"], out_keys=["state_value"])
    actor = ProbabilisticActor(
        TensorDictSequential(remember, decide), in_keys=["logits"], spec=env.action_spec, return_log_prob=True,
        distribution_class=torch.distributions.OneHotCategorical,
    )  # fmt: skip
    loss = ClipPPOLoss(actor, TensorDictSequential(remember, expect), entropy_coeff=0.01, critic_coeff=0.5)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(env, actor, frames_per_batch=rows * 32, total_frames=frames)
    returns: list[float] = []
    for data in collector:  # (rows, 32)
        with torch.no_grad():
            value = loss.critic_network(data.copy())["state_value"]
        over = data["next", "done"]
        following = torch.cat([value[:, 1:], value[:, -1:]], 1)
        advantage, target = generalized_advantage_estimate(
            0.99, 0.95, value, following, data["next", "reward"], over, data["next", "terminated"]
        )
        data["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        data["value_target"] = target
        for _ in range(4):
            for part in data[torch.randperm(rows)].split(rows // 4):
                losses = loss(part)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
        returns += data["next", "reward"][over].tolist()  # a reward comes with the end only
    collector.shutdown()
    return sum(returns[-200:]) / len(returns[-200:])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(f"mean return {train():.2f}")
