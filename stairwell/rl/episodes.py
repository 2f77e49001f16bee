"""Whole episodes of a trained agent: mean return with its spread, and something to look at.

Every row plays the same number of episodes, so that short ones do not count more often than long ones. Actions are
drawn from the policy, as in training, unless the likeliest are asked for. Letters: B rows.
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

from .agent import Agent, AgentOutput, Inputs
from .environments.batched import uniform
from .rollouts import as_tensors, deciding, embedded
from .rows import BrokenEnvironment, Frame, Rows

SPLITS = {"train": 0, "valid": 1, "test": 2}  # each has episodes of its own


def split_seed(seed: int, split: str) -> int:
    """Another seed for each split; training has its own."""
    return (seed * len(SPLITS) + SPLITS[split]) % 2**63


class Transition(NamedTuple):
    """One frame of B rows, before and after."""

    inputs: Inputs  # (B, ...)
    start: Tensor  # (B,) bool
    said: AgentOutput
    action: Tensor  # (B, A)
    frame: Frame


def moments(agent: Agent, rows: Rows, seed: int, likeliest: bool = False) -> Iterator[Transition]:
    """What an agent sees and does, frame by frame, without end."""
    device, B = next(agent.parameters()).device, rows.B
    now = Inputs(as_tensors(rows.begin()), agent.no_action(B).cpu(), torch.zeros(B))
    session, start, time = Session(agent, agent.init_state(B)), torch.ones(B, dtype=torch.bool), 0
    while True:
        if start.any():
            session.reset(start)
        with torch.no_grad():
            said = agent.heads(session.step_vectors(embedded(agent, now, session.count, device)))
        noise = torch.from_numpy(uniform(seed, range(B), time, agent.actions.noises)).to(device)
        action = agent.actions.likeliest(said.policy) if likeliest else agent.actions.sample(said.policy, noise)
        frame = rows.step(agent.actions.to_environment(action))
        yield Transition(now, start, said, action.cpu(), frame)
        now = Inputs(as_tensors(frame.observations), action.cpu(), torch.from_numpy(frame.rewards))
        start, time = torch.from_numpy(frame.start), time + 1


def watched(agent: Agent, rows: Rows, seed: int, length: int) -> tuple[Inputs, Tensor]:
    """What an agent sees in the first `length` frames of every row, (B, T, ...), and where episodes begin, (B, T)."""
    with deciding(agent):
        some = list(itertools.islice(moments(agent, rows, seed), length))
    device = next(agent.parameters()).device
    observed = {
        path: torch.stack([moment.inputs.observation[path] for moment in some], 1)
        for path in some[0].inputs.observation
    }
    action, reward = (torch.stack([getattr(m.inputs, name) for m in some], 1) for name in ("action", "reward"))
    inputs = Inputs(observed, action, reward).map(lambda values: values.to(device))
    return inputs, torch.stack([moment.start for moment in some], 1).to(device)


@dataclass
class Episode:
    """Rewards of one episode so far."""

    earned: float = 0.0
    length: int = 0
    last: float = 0.0
    paid_before: bool = False
    "whether a step before the last one had a positive reward"

    def add(self, reward: float, idle: bool) -> None:
        self.paid_before |= self.last > 0
        self.earned, self.length, self.last = self.earned + reward, self.length + (not idle), reward


@dataclass
class Played:
    """Episodes that have ended."""

    episodes: list[Episode] = field(default_factory=list)

    def scores(self) -> dict[str, float]:
        """Return means over episodes. The deviation is that of one episode; the mean return lies within the interval
        with a probability of 95%. `success` is the share of episodes whose last reward is positive. It is left out
        where rewards do not tell success: positive ones are paid along the way, or all that are paid are penalties."""
        returns = [episode.earned for episode in self.episodes]
        deviation = statistics.stdev(returns) if len(returns) > 1 else 0.0
        scores = {
            "return": statistics.mean(returns),
            "return_deviation": deviation,
            "return_interval": 1.96 * deviation / math.sqrt(len(returns)),
        }
        paid_along_the_way = any(episode.paid_before for episode in self.episodes)
        if not paid_along_the_way and any(episode.last >= 0 for episode in self.episodes):
            scores["success"] = statistics.mean(float(episode.last > 0) for episode in self.episodes)
        scores["length"] = statistics.mean(episode.length for episode in self.episodes)
        return scores | {"episodes": len(returns)}


def play(
    agent: Agent,
    rows: Rows,
    episodes: int,
    seed: int,
    longest: int,
    likeliest: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
    split: str = "test",
) -> Played:
    """`episodes` of them, dealt among the rows as evenly as can be."""
    B, played = rows.B, Played()
    wanted = [episodes // B + (row < episodes % B) for row in range(B)]
    open_episodes, frames = [Episode() for _ in range(B)], 0
    with deciding(agent):
        for moment in moments(agent, rows, seed, likeliest):
            frame = moment.frame
            frames += B
            for row in range(B):
                episode = open_episodes[row]
                episode.add(float(frame.rewards[row]), bool(frame.idle[row]))
                if frame.terminated[row] or frame.truncated[row]:
                    if wanted[row]:
                        played.episodes.append(episode)
                        wanted[row] -= 1
                    open_episodes[row] = Episode()
                elif episode.length > longest:
                    raise BrokenEnvironment(f"an episode has not ended after {longest:,} steps")
            if watch is not None and frames % (100 * B) == 0:
                watch({"event": "evaluating", "split": split, "tokens": frames})
            if not any(wanted):
                return played
    raise AssertionError("episodes have no end")


class Returns:
    """The mean return of a split's episodes: how agents are validated and kept."""

    primary_metric, higher_is_better = "return", True

    def __init__(
        self, open_rows: Callable[[int, int], Rows], seed: int, episodes: dict[str, int], rows: int, longest: int
    ) -> None:
        """`open_rows(count, seed)` gives rows to play in, `episodes` how many of each split."""
        self.open_rows, self.seed, self.episodes, self.rows, self.longest = open_rows, seed, episodes, rows, longest
        self.watch: Callable[[dict[str, Any]], None] | None = None

    def __call__(self, model: Agent, split: Split) -> dict[str, float]:
        seed, episodes = split_seed(self.seed, split), self.episodes[split]
        rows = self.open_rows(min(self.rows, episodes), seed)
        try:
            return play(model, rows, episodes, seed, self.longest, watch=self.watch, split=split).scores()
        finally:
            rows.close()
