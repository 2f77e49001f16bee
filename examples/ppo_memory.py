"""PPO with a Feedback Transformer as its memory, in one file in the style of CleanRL.

    pip install ".[rl]"
    python examples/ppo_memory.py
    python examples/ppo_memory.py --env popgym:popgym-RepeatPreviousEasy-v0 --env-kwargs {} --gamma 0.5 --memory 8

Observations of any gymnasium environment are flattened to vectors; actions are Discrete. In the default environment the
agent observes a color, walks down a corridor and must take the door of that color; without a memory it succeeds in half
of the episodes. The lines marked `# memory` are those that an agent without memory does not have.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from dataclasses import dataclass, fields

import gymnasium
import torch
from gymnasium.wrappers import FlattenObservation
from torch import Tensor, nn
from torch.distributions import Categorical

from stairwell import FeedbackConfig
from stairwell.rl import MemoryGRU  # also registers stairwell's environments


@dataclass
class Args:
    env: str = "stairwell/Corridor-v0"
    env_kwargs: str = '{"length": 8}'  # as JSON
    seed: int = 0
    frames: int = 60_000
    num_envs: int = 16
    num_steps: int = 32  # frames per environment in a rollout
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    update_epochs: int = 4
    num_minibatches: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    width: int = 32
    memory: int = 4


class Agent(nn.Module):
    def __init__(self, features: int, actions: int, args: Args) -> None:
        super().__init__()
        core = FeedbackConfig(width=args.width, heads=2, layers=1, memory=args.memory)
        self.memory = MemoryGRU(core, features)  # memory: nn.GRU(features, args.width) has the same interface
        self.actor, self.critic = nn.Linear(args.width, actions), nn.Linear(args.width, 1)

    def forward(self, obs: Tensor, state: Tensor, start: Tensor) -> tuple[Categorical, Tensor, Tensor]:
        """obs (T, N, features), state (1, N, hidden_size), start (T, N): where an episode starts"""
        hidden, state = self.memory(obs, state, start)  # memory: one call for all frames, also across episodes
        return Categorical(logits=self.actor(hidden)), self.critic(hidden)[..., 0], state


def generalized_advantages(rewards: Tensor, values: Tensor, last_value: Tensor, dones: Tensor, args: Args) -> Tensor:
    """Return the advantages (T, N). As in CleanRL, a truncated episode counts as terminated."""
    advantages, advantage, next_value = torch.zeros_like(rewards), torch.zeros_like(last_value), last_value
    for t in reversed(range(len(rewards))):
        alive = (~dones[t]).float()
        delta = rewards[t] + args.gamma * next_value * alive - values[t]
        advantages[t] = advantage = delta + args.gamma * args.gae_lambda * alive * advantage
        next_value = values[t]
    return advantages


def train(args: Args) -> float:
    """Train and return the mean return of the last 100 episodes."""
    torch.manual_seed(args.seed)
    envs = gymnasium.make_vec(
        args.env, args.num_envs, "sync", {"autoreset_mode": "SameStep"}, wrappers=[FlattenObservation],
        **json.loads(args.env_kwargs),
    )  # fmt: skip
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n), args)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    obs, start = torch.tensor(envs.reset(seed=args.seed)[0]).float(), torch.ones(args.num_envs, dtype=torch.bool)
    state = torch.zeros(1, args.num_envs, agent.memory.hidden_size)  # memory: zeros are the initial state
    totals, returns = torch.zeros(args.num_envs), deque[float](maxlen=100)

    iterations = args.frames // (args.num_envs * args.num_steps)
    for iteration in range(1, iterations + 1):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - (iteration - 1) / iterations)
        first_state, frames = state, []  # memory: one state per rollout
        for _ in range(args.num_steps):
            with torch.no_grad():
                policy, value, state = agent(obs[None], state, start[None])
            action = policy.sample()[0]
            next_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            reward, done = torch.tensor(reward).float(), torch.tensor(terminated | truncated)
            frames.append((obs, start, action, policy.log_prob(action)[0], value[0], reward, done))
            totals += reward
            returns += totals[done].tolist()
            totals[done] = 0
            obs, start = torch.tensor(next_obs).float(), done
        b_obs, b_start, b_action, b_log_prob, b_value, b_reward, b_done = map(torch.stack, zip(*frames, strict=True))

        with torch.no_grad():
            _, last_value, _ = agent(obs[None], state, start[None])
        b_advantage = generalized_advantages(b_reward, b_value, last_value[0], b_done, args)
        b_target = b_advantage + b_value

        for _ in range(args.update_epochs):
            # memory: minibatches of whole environments keep the sequences intact
            for part in torch.randperm(args.num_envs).chunk(args.num_minibatches):
                # memory: all frames are recomputed with the current parameters from the state stored at the start
                policy, value, _ = agent(b_obs[:, part], first_state[:, part], b_start[:, part])
                advantage = b_advantage[:, part]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (policy.log_prob(b_action[:, part]) - b_log_prob[:, part]).exp()
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
                value_loss = 0.5 * (value - b_target[:, part]).square().mean()
                loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        if returns and iteration % 10 == 0:
            print(f"{iteration * args.num_envs * args.num_steps:,} frames  return {sum(returns) / len(returns):.2f}")
    envs.close()
    return sum(returns) / max(len(returns), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    train(Args(**vars(parser.parse_args())))
