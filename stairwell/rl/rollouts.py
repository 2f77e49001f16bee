"""Rollouts: the feed of an agent's training. A policy plays in B rows, and what it saw and did is learned from.

Frames are played in a decoding session, which is made anew for every rollout because parameters have changed; what it
says equals what the training pass computes from the same state. Episodes follow one another within a segment; `start`
says where they begin.

    delta_t = r_t + gamma V_{t+1} - V_t,     advantage_t = delta_t + gamma lambda advantage_{t+1}

At the end of a segment and where an episode was cut short by the clock V_{t+1} is the value of what was seen last;
where the task itself has ended it is 0. Letters: B rows, T frames of a segment, W windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stairwell.decode import Session
from stairwell.errors import UserError
from stairwell.state import State
from stairwell.train.distributed import Distributed

from .agent import Agent, Inputs
from .config import AgentTrainConfig
from .environments import Array
from .environments.batched import uniform
from .rows import BrokenEnvironment, Observations, Rows

SMALL = 1e-8


@dataclass(frozen=True)
class Rollout:
    """What B rows saw and did in T frames; a batch, or part of one."""

    inputs: Inputs
    start: Tensor  # (B, T) bool: the frame is an episode's first
    scored: Tensor  # (B, T) bool: the action counted
    action: Tensor  # (B, T, A)
    log_probability: Tensor  # (B, T): of the action when it was chosen
    advantage: Tensor  # (B, T)
    target: Tensor  # (B, T): what the value should have been
    states: list[State]  # before each window
    frames: int = 0  # new ones: 0 when a rollout is read again
    first: bool = True  # of the parts of an update
    ended: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(0, 2))  # (episodes, 2): return and length

    @property
    def terms(self) -> int:
        return int(self.scored.sum())

    @property
    def size(self) -> int:
        return self.frames

    def tensors(self) -> dict[str, Tensor]:
        """Those over (B, T), by name."""
        named = {**self.inputs.observation}
        named |= {"last_action": self.inputs.action, "last_reward": self.inputs.reward}
        return named | {name: getattr(self, name) for name in PLAIN}

    @staticmethod
    def from_tensors(named: dict[str, Tensor], states: list[State]) -> Rollout:
        observed = {path: values for path, values in named.items() if path.startswith("observation")}
        inputs = Inputs(observed, named["last_action"], named["last_reward"])
        plain: dict[str, Any] = {name: named[name] for name in PLAIN}
        return Rollout(inputs, **plain, states=states)

    def select(self, rows: Tensor) -> Rollout:
        chosen = {name: tensor[rows] for name, tensor in self.tensors().items()}
        return Rollout.from_tensors(chosen, [state.select(rows) for state in self.states])

    def parts(self, count: int) -> list[Rollout]:
        B = self.start.shape[0]
        if B % count:
            raise UserError(f"train.accumulate {count} does not divide the {B} rows of a minibatch")
        parts = [self.select(rows) for rows in torch.arange(B).chunk(count)]
        rest = [dataclasses.replace(part, first=False) for part in parts[1:]]
        return [dataclasses.replace(parts[0], frames=self.frames, ended=self.ended), *rest]

    def to(self, device: torch.device | str) -> Rollout:
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        made = Rollout.from_tensors(moved, [state.to(device) for state in self.states])
        return dataclasses.replace(made, frames=self.frames, first=self.first, ended=self.ended)


PLAIN = ("start", "scored", "action", "log_probability", "advantage", "target")


class Rollouts:
    """A BatchSource. Every `config.reads`-th read plays a new rollout with the agent as it is then; the reads between are
    minibatches of it."""

    def __init__(
        self,
        agent: Agent,
        rows: Rows,
        numbers: range,
        seed: int,
        config: AgentTrainConfig,
        longest: int,
        world: Distributed | None = None,
    ) -> None:
        """`numbers`: those of the rows among all rows of the training. `longest`: steps after which an episode is taken
        to be one that never ends."""
        self.agent, self.rows, self.numbers, self.seed, self.config, self.longest = (
            agent, rows, numbers, seed, config, longest,
        )  # fmt: skip
        self.world = world or Distributed()
        if config.learner == "ppo" and rows.B % config.minibatches:
            raise UserError(f"train.minibatches {config.minibatches} does not divide the {rows.B} rows of a process")
        self.device = next(agent.parameters()).device
        self.reads, self.time, self.rollout = 0, 0, None  # type: int, int, Rollout | None
        self.state = agent.init_state(rows.B)
        self.begin(rows.begin())

    def begin(self, observations: Observations) -> None:
        """New episodes in all rows."""
        B = self.rows.B
        self.now = Inputs(as_tensors(observations), self.agent.no_action(B).cpu(), torch.zeros(B))
        self.start = torch.ones(B, dtype=torch.bool)
        self.open = torch.zeros(B, 2, dtype=torch.float64)  # return and length of the episode under way
        self.discounted = torch.zeros(B, dtype=torch.float64)  # of which the running spread is kept

    def read(self, length: int) -> Rollout:
        number, new = self.reads % self.config.reads, None
        if number == 0:
            self.rollout = None  # before the next one is there: half the memory
            with self.unchanged_if_broken():
                self.rollout = new = self.play(length)
        assert self.rollout is not None
        self.reads += 1
        if self.config.learner == "a2c":
            batch, self.rollout = self.rollout, None
            return batch
        batch = self.rollout.select(self.minibatch(number))
        return dataclasses.replace(batch, frames=new.frames, ended=new.ended) if new is not None else batch

    def minibatch(self, number: int) -> Tensor:
        """The rows of one update, in another order every epoch."""
        epoch, place = divmod(number, self.config.minibatches)
        rng = np.random.default_rng([self.numbers.start, self.reads - number, epoch, self.seed])
        return torch.from_numpy(rng.permutation(self.rows.B)).chunk(self.config.minibatches)[place]

    @torch.no_grad()
    def play(self, length: int) -> Rollout:
        """The next `length` frames of every row."""
        agent, config = self.agent, self.config
        with deciding(agent):
            session = Session(agent, self.state)
            frames: list[dict[str, Tensor]] = []
            states: list[State] = []
            ended: list[list[float]] = []
            for t in range(length):
                if t % (config.window or length) == 0:
                    states.append(session.state())
                frames.append(self.frame(session, ended))
            ahead = self.values(session, self.now, ~self.start)
            self.state = session.state()
        named = {name: torch.stack([frame[name] for frame in frames], 1) for name in frames[0]}
        rewards, value = self.scaled(named.pop("reward"), named.pop("discounted")), named.pop("value")
        terminated, truncated, after = named.pop("terminated"), named.pop("truncated"), named.pop("after")
        over = terminated | truncated | ~named["scored"]
        following = torch.where(over, after, torch.cat([value[:, 1:], ahead[:, None]], 1))
        named["advantage"] = advantages(rewards, value, following, over, config.gamma, config.gae_lambda)
        named["target"] = named["advantage"] + value
        if config.normalize_advantage:
            named["advantage"] = normalized(named["advantage"], named["scored"])
        made = Rollout.from_tensors(named, [state.to("cpu") for state in states])
        finished = torch.tensor(ended, dtype=torch.float64).reshape(-1, 2)
        return dataclasses.replace(made, frames=int(named["scored"].sum()), ended=finished)

    def frame(self, session: Session, ended: list[list[float]]) -> dict[str, Tensor]:
        """Choose, step, and go on: one frame of every row by name, (B, ...). Episodes that end are told to `ended`."""
        agent, now = self.agent, self.now
        if self.start.any():
            session.reset(self.start)
        said = agent.heads(session.step_vectors(embedded(agent, now, session.count, self.device)))
        noise = torch.from_numpy(uniform(self.seed, self.numbers, self.time, agent.actions.noises))
        action = agent.actions.sample(said.policy, noise.to(self.device))
        frame = self.rows.step(agent.actions.to_environment(action))
        self.time += 1
        observed = {**now.observation, "last_action": now.action, "last_reward": now.reward, "start": self.start}
        reward = torch.from_numpy(frame.rewards)
        over = torch.from_numpy(frame.terminated | frame.truncated)
        truncated = torch.from_numpy(frame.truncated & ~frame.terminated)
        self.now = Inputs(as_tensors(frame.observations), action.cpu(), reward)
        self.start = torch.from_numpy(frame.start)
        self.open += torch.stack([reward, torch.from_numpy(~frame.idle)], 1)
        self.discounted = self.config.gamma * self.discounted + reward
        discounted = self.discounted
        after = torch.zeros(self.rows.B)
        if over.any():
            ended += self.open[over].tolist()
            self.open[over], self.discounted = 0, torch.where(over, 0, discounted)
            last = Inputs(as_tensors(frame.last), action.cpu(), reward)
            after = self.values(session, last, truncated)
        if self.open[:, 1].max() > self.longest:
            row = self.numbers[int(self.open[:, 1].argmax())]
            raise BrokenEnvironment(
                f"the episode of row {row} has not ended after {self.longest:,} steps; give the environment a limit, "
                "or raise --task.longest"
            )
        return {
            **observed,
            "action": action.cpu(),
            "log_probability": agent.actions.log_probability(said.policy, action).cpu(),
            "value": said.value.cpu(),
            "reward": reward,
            "discounted": discounted,
            "terminated": torch.from_numpy(frame.terminated),
            "truncated": truncated,
            "scored": torch.from_numpy(~frame.idle),
            "after": after,
        }

    def values(self, session: Session, inputs: Inputs, rows: Tensor) -> Tensor:
        """What the agent expects of inputs (B, ...) that it has not read yet, in the rows where it is asked for (B,)
        bool; 0 elsewhere. The session stays as it is."""
        expected = torch.zeros(self.rows.B)
        index = rows.nonzero().flatten()
        if len(index):
            asked = inputs.map(lambda values: values[index, None].to(self.device))
            said, _ = self.agent(asked, session.state().select(index))
            expected[index] = said.value[:, 0].float().cpu()
        return expected

    def scaled(self, rewards: Tensor, discounted: Tensor) -> Tensor:
        """Rewards (B, T), divided by the running deviation of the discounted return if that is asked for."""
        if not self.config.normalize_rewards:
            return rewards
        agent, size = self.agent, torch.tensor(float(discounted.numel()), dtype=discounted.dtype)
        moments = torch.stack([size, discounted.mean(), discounted.var(correction=0)])
        # Rewards of all processes have one scale, as if one process played all rows.
        for count, mean, variance in (part.to(self.device) for part in self.world.gather(moments)):
            before, total = agent.return_count, agent.return_count + count
            away = mean - agent.return_mean
            spread = agent.return_variance * before + variance * count + away**2 * before * count / total
            agent.return_variance.copy_(spread / total)
            agent.return_mean.add_(away * count / total)
            agent.return_count.copy_(total)
        return rewards / (agent.return_variance.sqrt().float().cpu() + SMALL)

    def change(self, **options: Any) -> None:
        raise UserError("an environment has no curriculum; leave --train.curriculum empty")

    def position(self) -> dict[str, Any]:
        """The whole of it: environments, memory, episodes under way and, between its reads, the rollout."""
        named = {f"environment.{name}": torch.from_numpy(values) for name, values in self.rows.position().items()}
        named |= {f"state.{name}": tensor for name, tensor in self.state.tensors()}
        named |= {f"now.{path}": values for path, values in self.now.observation.items()}
        named |= {"now.action": self.now.action, "now.reward": self.now.reward, "now.start": self.start}
        named |= {"open": self.open, "discounted": self.discounted}
        windows = 0
        if self.rollout is not None and self.reads % self.config.reads:
            windows = len(self.rollout.states)
            named |= {f"rollout.{name}": tensor for name, tensor in self.rollout.tensors().items()}
            for number, state in enumerate(self.rollout.states):
                named |= {f"window.{number}.{name}": tensor for name, tensor in state.tensors()}
        rows: list[None] = [None] * self.rows.B
        plain = {"reads": self.reads, "time": self.time, "windows": windows}
        return {"rows": rows, **plain, "tensors": named}

    def seek(self, position: dict[str, Any]) -> str | None:
        named = position["tensors"]
        self.reads, self.time = position["reads"], position["time"]
        self.state = self.state_from(part(named, "state")).to(self.device)
        states = [self.state_from(part(named, f"window.{number}")) for number in range(position["windows"])]
        self.rollout = Rollout.from_tensors(part(named, "rollout"), states) if states else None
        environment = {name: tensor.numpy() for name, tensor in part(named, "environment").items()}
        observations = self.rows.seek(environment, self.time)
        self.begin(observations)
        if self.rows.resumes:
            now = part(named, "now")
            self.now, self.start = self.now._replace(action=now["action"], reward=now["reward"]), now["start"]
            self.open, self.discounted = named["open"].clone(), named["discounted"].clone()
            return None
        return "this environment cannot be put back to where it was: all rows begin new episodes"

    def state_from(self, tensors: dict[str, Tensor]) -> State:
        return State.from_tensors(tensors, self.state.form())

    @contextmanager
    def unchanged_if_broken(self) -> Iterator[None]:
        """An environment that breaks down in the middle of a rollout leaves the feed as it was before."""
        kept = (self.rows.position(), self.state, self.now, self.start, self.time)
        numbers = (self.open.clone(), self.discounted.clone())
        try:
            yield
        except BrokenEnvironment:
            position, self.state, self.now, self.start, self.time = kept
            self.open, self.discounted = numbers
            if self.rows.resumes:
                self.rows.seek(position, self.time)
            raise


def advantages(
    rewards: Tensor, value: Tensor, following: Tensor, over: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalized advantages (Schulman et al., 2016). All (B, T); `following` is the value after each frame, `over`
    where nothing of the same episode follows it."""
    advantage, later = torch.empty_like(value), torch.zeros_like(value[:, 0])
    for t in reversed(range(value.shape[1])):
        delta = rewards[:, t] + gamma * following[:, t] - value[:, t]
        later = delta + gamma * gae_lambda * torch.where(over[:, t], 0, later)
        advantage[:, t] = later
    return advantage


def normalized(values: Tensor, scored: Tensor) -> Tensor:
    counted = values[scored]
    return (values - counted.mean()) / (counted.std(correction=0) + SMALL)


def embedded(agent: Agent, inputs: Inputs, count: Tensor, device: torch.device) -> Tensor:
    """What the core reads of one frame a row. inputs (B, ...) -> (B, D)"""
    return agent.embed(inputs.map(lambda values: values[:, None].to(device)), count[:, None])[:, 0]


@contextmanager
def deciding(agent: Agent) -> Iterator[None]:
    """Without dropout, and as it was afterwards."""
    was_training = agent.training
    agent.eval()
    try:
        yield
    finally:
        agent.train(was_training)


def as_tensors(observations: Observations) -> dict[str, Tensor]:
    """Whole numbers as int64, bytes as they are, all else as float32."""
    return {path: as_tensor(values) for path, values in observations.items()}


def as_tensor(values: Array) -> Tensor:
    if values.dtype == np.uint8:
        return torch.from_numpy(values)
    return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64, copy=False))


def part(named: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): tensor for name, tensor in named.items() if name.startswith(f"{prefix}.")}
