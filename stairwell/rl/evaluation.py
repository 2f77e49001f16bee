"""Evaluation of agents over whole episodes.

Every environment runs the same number of episodes, so that short episodes are not overrepresented. Actions are sampled
as in training, or are the mode of the policy (`deterministic`). Letters: B environments.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stairwell.decode import Session
from stairwell.tasks.base import Split

from .acting import embed_frame, eval_mode, first_inputs, sample_actions, to_tensors
from .agent import Agent, AgentInputs, AgentOutput
from .vector_env import BrokenEnvironment, VectorEnv, VectorStep

SPLITS = {"train": 0, "valid": 1, "test": 2}


def split_seed(seed: int, split: str) -> int:
    """Return the seed of a split, so that every split of every seed has its own episodes."""
    return (seed * len(SPLITS) + SPLITS[split]) % 2**63


class Transition(NamedTuple):
    """One step of B environments."""

    inputs: AgentInputs  # (B, ...)
    start: Tensor  # (B,) bool
    output: AgentOutput
    action: Tensor  # (B, A)
    step: VectorStep


def iterate_transitions(agent: Agent, env: VectorEnv, seed: int, deterministic: bool = False) -> Iterator[Transition]:
    """Run the agent in the environment without end."""
    device, B = next(agent.parameters()).device, env.num_envs
    inputs = first_inputs(agent, env.reset())
    session, start = Session(agent, agent.init_state(B)), torch.ones(B, dtype=torch.bool)
    for t in itertools.count():
        if start.any():
            session.reset(start)
        with torch.no_grad():
            x = session.step_vectors(embed_frame(agent, inputs, session.count, device))
            output = agent.heads(x, inputs.action_mask)
        if deterministic:
            action = agent.action_dist.mode(output.policy)
        else:
            action = sample_actions(agent.action_dist, output.policy, seed, range(B), t)
        step = env.step(agent.action_dist.to_environment(action))
        yield Transition(inputs, start, output, action.cpu(), step)
        inputs = AgentInputs(to_tensors(step.observations), action.cpu(), torch.from_numpy(step.rewards))
        start = torch.from_numpy(step.start)


def collect_inputs(agent: Agent, env: VectorEnv, seed: int, length: int) -> tuple[AgentInputs, Tensor]:
    """Return the inputs (B, T, ...) of the first `length` frames and where episodes start (B, T)."""
    with eval_mode(agent):
        transitions = list(itertools.islice(iterate_transitions(agent, env, seed), length))
    device = next(agent.parameters()).device
    frames = [transition.inputs for transition in transitions]
    observation = {
        path: torch.stack([frame.observation[path] for frame in frames], 1) for path in frames[0].observation
    }
    last_action = torch.stack([frame.last_action for frame in frames], 1)
    last_reward = torch.stack([frame.last_reward for frame in frames], 1)
    inputs = AgentInputs(observation, last_action, last_reward).map(lambda values: values.to(device))
    return inputs, torch.stack([transition.start for transition in transitions], 1).to(device)


@dataclass
class Episode:
    """Rewards of one episode so far."""

    return_: float = 0.0
    length: int = 0
    last_reward: float = 0.0
    rewarded_before: bool = False
    "Whether a step before the last one had a positive reward."

    def add(self, reward: float, ignored: bool) -> None:
        self.rewarded_before |= self.last_reward > 0
        self.return_, self.length, self.last_reward = self.return_ + reward, self.length + (not ignored), reward


@dataclass
class EpisodeStats:
    """Statistics of finished episodes."""

    episodes: list[Episode] = field(default_factory=list)

    def scores(self) -> dict[str, float]:
        """Return means over episodes. `return_std` is the standard deviation over episodes, `return_ci95` half the 95%
        confidence interval of the mean return. `success` is the fraction of episodes with a positive last reward. It is
        omitted where rewards do not indicate success: with positive rewards before the end, or with penalties only."""
        returns = [episode.return_ for episode in self.episodes]
        std = statistics.stdev(returns) if len(returns) > 1 else 0.0
        scores = {
            "return": statistics.mean(returns),
            "return_std": std,
            "return_ci95": 1.96 * std / math.sqrt(len(returns)),
        }
        rewarded_before_end = any(episode.rewarded_before for episode in self.episodes)
        if not rewarded_before_end and any(episode.last_reward >= 0 for episode in self.episodes):
            scores["success"] = statistics.mean(float(episode.last_reward > 0) for episode in self.episodes)
        scores["length"] = statistics.mean(episode.length for episode in self.episodes)
        return scores | {"episodes": len(returns)}


def evaluate_policy(
    agent: Agent,
    env: VectorEnv,
    episodes: int,
    seed: int,
    max_episode_steps: int,
    deterministic: bool = False,
    callback: Callable[[dict[str, Any]], None] | None = None,
    split: str = "test",
) -> EpisodeStats:
    """Return the statistics of `episodes` episodes, distributed evenly over the environments."""
    B, stats = env.num_envs, EpisodeStats()
    remaining = [episodes // B + (i < episodes % B) for i in range(B)]
    running, frames = [Episode() for _ in range(B)], 0
    with eval_mode(agent):
        for transition in iterate_transitions(agent, env, seed, deterministic):
            step = transition.step
            frames += B
            for i in range(B):
                episode = running[i]
                episode.add(float(step.rewards[i]), bool(step.ignored[i]))
                if step.terminated[i] or step.truncated[i]:
                    if remaining[i]:
                        stats.episodes.append(episode)
                        remaining[i] -= 1
                    running[i] = Episode()
                elif episode.length > max_episode_steps:
                    raise BrokenEnvironment(f"an episode has not ended after {max_episode_steps:,} steps")
            if callback is not None and frames % (100 * B) == 0:
                callback({"event": "evaluating", "split": split, "tokens": frames, "unit": "frames"})
            if not any(remaining):
                return stats
    raise AssertionError("iterate_transitions does not end")


class ReturnValidation:
    """Validation of agents by the mean return over the episodes of a split."""

    primary_metric, higher_is_better = "return", True

    def __init__(
        self,
        make_env: Callable[[int, int], VectorEnv],
        seed: int,
        episodes: dict[str, int],
        num_envs: int,
        max_episode_steps: int,
    ) -> None:
        """`make_env(num_envs, seed)` makes an environment; `episodes` is the number of episodes per split."""
        self.make_env, self.seed, self.episodes = make_env, seed, episodes
        self.num_envs, self.max_episode_steps = num_envs, max_episode_steps
        self.callback: Callable[[dict[str, Any]], None] | None = None
        self.deterministic = False

    def __call__(self, model: Agent, split: Split) -> dict[str, float]:
        seed, episodes = split_seed(self.seed, split), self.episodes[split]
        env = self.make_env(min(self.num_envs, episodes), seed)
        try:
            stats = evaluate_policy(
                model, env, episodes, seed, self.max_episode_steps, self.deterministic, self.callback, split
            )
        finally:
            env.close()
        return stats.scores()
