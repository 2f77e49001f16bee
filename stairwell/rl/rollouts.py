"""Rollouts: the batches that agents are trained on. The policy runs in B environments for T frames.

Frames are computed in a decoding session, made for every rollout because the parameters have changed. Its outputs
equal those of the training pass from the same state. A segment can contain several episodes; `start` marks their first
frames.

    delta_t = r_t + gamma V_{t+1} - V_t,     advantage_t = delta_t + gamma lambda advantage_{t+1}

At the end of a segment and of a truncated episode, V_{t+1} is the value of the last observation; at the end of a
terminated episode it is 0. Letters: B environments, T frames of a segment, A elements of an action.
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

from .acting import embed_frame, eval_mode, first_inputs, sample_actions, to_tensors
from .agent import EPSILON, Agent, AgentInputs
from .flatten import ACTION_MASK, ROOT
from .train_config import AgentTrainConfig
from .vector_env import BrokenEnvironment, Observations, VectorEnv

TENSORS = ("start", "mask", "action", "log_prob", "advantage", "returns")


@dataclass(frozen=True)
class Rollout:
    """T frames of B environments: a batch, a minibatch, or part of one."""

    inputs: AgentInputs
    start: Tensor  # (B, T) bool: the first frame of an episode
    mask: Tensor  # (B, T) bool: false where the environment ignored the action
    action: Tensor  # (B, T, A)
    log_prob: Tensor  # (B, T): of the action, when it was sampled
    advantage: Tensor  # (B, T)
    returns: Tensor  # (B, T): targets of the value function
    states: list[State]  # before each BPTT window
    new_frames: int = 0  # 0 for the second and later minibatches of a rollout
    is_first_part: bool = True  # of an optimizer step
    episodes: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(0, 2))
    "Return and length of the episodes that ended, (episodes, 2)."

    @property
    def terms(self) -> int:
        return int(self.mask.sum())

    @property
    def size(self) -> int:
        return self.new_frames

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors (B, T, ...) by name."""
        inputs = {"last_action": self.inputs.last_action, "last_reward": self.inputs.last_reward}
        return self.inputs.observation | inputs | {name: getattr(self, name) for name in TENSORS}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor], states: list[State]) -> Rollout:
        observation = {path: values for path, values in tensors.items() if path == ACTION_MASK or path.startswith(ROOT)}
        inputs = AgentInputs(observation, tensors["last_action"], tensors["last_reward"])
        fields: dict[str, Any] = {name: tensors[name] for name in TENSORS}
        return Rollout(inputs, **fields, states=states)

    def select(self, envs: Tensor) -> Rollout:
        selected = {name: tensor[envs] for name, tensor in self.tensors().items()}
        return Rollout.from_tensors(selected, [state.select(envs) for state in self.states])

    def parts(self, count: int) -> list[Rollout]:
        B = self.start.shape[0]
        if B % count:
            raise UserError(f"train.accumulate {count} does not divide the {B} environments of a minibatch")
        parts = [self.select(envs) for envs in torch.arange(B).chunk(count)]
        rest = [dataclasses.replace(part, is_first_part=False) for part in parts[1:]]
        return [dataclasses.replace(parts[0], new_frames=self.new_frames, episodes=self.episodes), *rest]

    def to(self, device: torch.device | str) -> Rollout:
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        rollout = Rollout.from_tensors(moved, [state.to(device) for state in self.states])
        return dataclasses.replace(
            rollout, new_frames=self.new_frames, is_first_part=self.is_first_part, episodes=self.episodes
        )


class RolloutSource:
    """A BatchSource of rollouts with the current agent. PPO reads several minibatches of each rollout."""

    def __init__(
        self,
        agent: Agent,
        env: VectorEnv,
        indices: range,
        seed: int,
        config: AgentTrainConfig,
        max_episode_steps: int,
        world: Distributed | None = None,
    ) -> None:
        """`indices` are those of the environments among the environments of all processes. An episode longer than
        `max_episode_steps` raises an error."""
        self.agent, self.env, self.indices, self.seed, self.config = agent, env, indices, seed, config
        self.max_episode_steps, self.world = max_episode_steps, world or Distributed()
        if config.algorithm == "ppo" and env.num_envs % config.minibatches:
            raise UserError(
                f"train.minibatches {config.minibatches} does not divide the {env.num_envs} environments of a process"
            )
        self.device = next(agent.parameters()).device
        self.batches_read, self.env_steps = 0, 0
        self.rollout: Rollout | None = None
        self.state = agent.init_state(env.num_envs)
        self.start_episodes(env.reset())

    def start_episodes(self, observations: Observations) -> None:
        B = self.env.num_envs
        self.inputs = first_inputs(self.agent, observations)
        self.start = torch.ones(B, dtype=torch.bool)
        self.episode_totals = torch.zeros(B, 2, dtype=torch.float64)  # return and length of the current episode
        self.discounted_return = torch.zeros(B, dtype=torch.float64)

    def read(self, length: int) -> Rollout:
        index, new = self.batches_read % self.config.optimizer_steps_per_rollout, None
        if index == 0:
            self.rollout = None  # frees its memory before the next one is collected
            with self.restored_on_error():
                self.rollout = new = self.collect(length)
        assert self.rollout is not None
        self.batches_read += 1
        if self.config.algorithm == "a2c":
            batch, self.rollout = self.rollout, None
            return batch
        batch = self.rollout.select(self.minibatch(index))
        return batch if new is None else dataclasses.replace(batch, new_frames=new.new_frames, episodes=new.episodes)

    def minibatch(self, index: int) -> Tensor:
        """Return the environments of a minibatch. The order is different in every epoch."""
        epoch, index_in_epoch = divmod(index, self.config.minibatches)
        rng = np.random.default_rng([self.indices.start, self.batches_read - index, epoch, self.seed])
        order = torch.from_numpy(rng.permutation(self.env.num_envs))
        return order.chunk(self.config.minibatches)[index_in_epoch]

    @torch.no_grad()
    def collect(self, length: int) -> Rollout:
        """Run the policy for `length` frames in every environment."""
        agent, config = self.agent, self.config
        with eval_mode(agent):
            session = Session(agent, self.state)
            frames: list[dict[str, Tensor]] = []
            states: list[State] = []
            episodes: list[list[float]] = []
            for t in range(length):
                if t % (config.bptt_length or length) == 0:
                    states.append(session.state())
                frames.append(self.collect_frame(session, episodes))
            last_value = self.values(session, self.inputs, ~self.start)
            self.state = session.state()
        tensors = {name: torch.stack([frame[name] for frame in frames], 1) for name in frames[0]}
        value, final_value, done = (tensors.pop(name) for name in ("value", "final_value", "done"))
        rewards, discounted_return = tensors.pop("reward"), tensors.pop("discounted_return")
        if config.normalize_rewards:
            self.update_return_statistics(discounted_return)
            rewards = rewards / (agent.return_variance.sqrt().float().cpu() + EPSILON)
        done = done | ~tensors["mask"]
        next_value = torch.where(done, final_value, torch.cat([value[:, 1:], last_value[:, None]], 1))
        tensors["advantage"] = compute_gae(rewards, value, next_value, done, config.gamma, config.gae_lambda)
        tensors["returns"] = tensors["advantage"] + value
        if config.normalize_advantage:
            tensors["advantage"] = normalize(tensors["advantage"], tensors["mask"])
        rollout = Rollout.from_tensors(tensors, [state.to("cpu") for state in states])
        return dataclasses.replace(
            rollout,
            new_frames=int(tensors["mask"].sum()),
            episodes=torch.tensor(episodes, dtype=torch.float64).reshape(-1, 2),
        )

    def collect_frame(self, session: Session, episodes: list[list[float]]) -> dict[str, Tensor]:
        """Take one step in every environment and return its tensors (B, ...) by name. Append return and length of the
        episodes that end to `episodes`."""
        agent, inputs, start = self.agent, self.inputs, self.start
        if start.any():
            session.reset(start)
        x = session.step_vectors(embed_frame(agent, inputs, session.count, self.device))
        output = agent.heads(x, inputs.action_mask)
        action = sample_actions(agent.action_dist, output.policy, self.seed, self.indices, self.env_steps)
        step = self.env.step(agent.action_dist.to_environment(action))
        self.env_steps += 1
        reward = torch.from_numpy(step.rewards)
        done = torch.from_numpy(step.terminated | step.truncated)
        mask = torch.from_numpy(~step.ignored)
        self.inputs = AgentInputs(to_tensors(step.observations), action.cpu(), reward)
        self.start = torch.from_numpy(step.start)
        self.episode_totals += torch.stack([reward, mask], 1)
        discounted_return = self.config.gamma * self.discounted_return + reward
        self.discounted_return = torch.where(done, 0, discounted_return)
        final_value = torch.zeros(self.env.num_envs)
        if done.any():
            episodes += self.episode_totals[done].tolist()
            self.episode_totals[done] = 0
            final = AgentInputs(to_tensors(step.final_observations), action.cpu(), reward)
            final_value = self.values(session, final, torch.from_numpy(step.truncated & ~step.terminated))
        if self.episode_totals[:, 1].max() > self.max_episode_steps:
            index = self.indices[int(self.episode_totals[:, 1].argmax())]
            raise BrokenEnvironment(
                f"the episode of environment {index} has not ended after {self.max_episode_steps:,} steps; add a time "
                "limit to the environment, or raise --task.max_episode_steps"
            )
        return {
            **inputs.observation,
            "last_action": inputs.last_action,
            "last_reward": inputs.last_reward,
            "start": start,
            "mask": mask,
            "action": action.cpu(),
            "log_prob": agent.action_dist.log_prob(output.policy, action).cpu(),
            "value": output.value.cpu(),
            "final_value": final_value,
            "reward": reward,
            "discounted_return": discounted_return,
            "done": done,
        }

    def values(self, session: Session, inputs: AgentInputs, mask: Tensor) -> Tensor:
        """Return the values (B,) of the next inputs (B, ...) where `mask` (B,) is true, else 0. The session does not
        change."""
        values = torch.zeros(self.env.num_envs)
        envs = mask.nonzero().flatten()
        if len(envs):
            selected = inputs.map(lambda tensor: tensor[envs, None].to(self.device))
            output, _ = self.agent(selected, session.state().select(envs))
            values[envs] = output.value[:, 0].float().cpu()
        return values

    def update_return_statistics(self, discounted_return: Tensor) -> None:
        """Update the running mean and variance of the discounted return (B, T), over all processes."""
        agent, size = self.agent, torch.tensor(float(discounted_return.numel()), dtype=discounted_return.dtype)
        moments = torch.stack([size, discounted_return.mean(), discounted_return.var(correction=0)])
        for count, mean, variance in (part.to(self.device) for part in self.world.gather(moments)):
            old_count, total = agent.return_count, agent.return_count + count
            delta = mean - agent.return_mean
            squares = agent.return_variance * old_count + variance * count + delta**2 * old_count * count / total
            agent.return_variance.copy_(squares / total)
            agent.return_mean.add_(delta * count / total)
            agent.return_count.copy_(total)

    def change(self, **options: Any) -> None:
        raise UserError("environments have no curriculum")

    def position(self) -> dict[str, Any]:
        """Return environments, state, current episodes and, between its minibatches, the rollout."""
        tensors = {f"environment.{name}": torch.from_numpy(values) for name, values in self.env.state_dict().items()}
        tensors |= {f"state.{name}": tensor for name, tensor in self.state.tensors()}
        tensors |= {f"inputs.{path}": values for path, values in self.inputs.observation.items()}
        tensors |= {"inputs.last_action": self.inputs.last_action, "inputs.last_reward": self.inputs.last_reward}
        tensors |= {"start": self.start, "episode_totals": self.episode_totals}
        tensors |= {"discounted_return": self.discounted_return}
        windows = 0
        if self.rollout is not None and self.batches_read % self.config.optimizer_steps_per_rollout:
            windows = len(self.rollout.states)
            tensors |= {f"rollout.{name}": tensor for name, tensor in self.rollout.tensors().items()}
            for number, state in enumerate(self.rollout.states):
                tensors |= {f"window.{number}.{name}": tensor for name, tensor in state.tensors()}
        streams: list[None] = [None] * self.env.num_envs
        counts = {"batches_read": self.batches_read, "env_steps": self.env_steps, "windows": windows}
        return {"streams": streams, **counts, "tensors": tensors}

    def seek(self, position: dict[str, Any]) -> str | None:
        tensors = position["tensors"]
        self.batches_read, self.env_steps = position["batches_read"], position["env_steps"]
        self.state = self.state_from(with_prefix(tensors, "state")).to(self.device)
        states = [self.state_from(with_prefix(tensors, f"window.{number}")) for number in range(position["windows"])]
        self.rollout = Rollout.from_tensors(with_prefix(tensors, "rollout"), states) if states else None
        env_state = {name: tensor.numpy() for name, tensor in with_prefix(tensors, "environment").items()}
        self.start_episodes(self.env.load_state_dict(env_state, self.env_steps))
        if not self.env.can_restore:
            return "the state of this environment cannot be restored: all environments start new episodes"
        inputs = with_prefix(tensors, "inputs")
        self.inputs = self.inputs._replace(last_action=inputs["last_action"], last_reward=inputs["last_reward"])
        self.start = tensors["start"]
        self.episode_totals = tensors["episode_totals"].clone()
        self.discounted_return = tensors["discounted_return"].clone()
        return None

    def state_from(self, tensors: dict[str, Tensor]) -> State:
        return State.from_tensors(tensors, self.state.spec())

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Restore the source if the environment fails in the middle of a rollout."""
        names = ("state", "inputs", "start", "env_steps", "discounted_return")
        saved = {name: getattr(self, name) for name in names}
        env_state, episode_totals = self.env.state_dict(), self.episode_totals.clone()
        try:
            yield
        except BrokenEnvironment:
            for name, value in saved.items():
                setattr(self, name, value)
            self.episode_totals = episode_totals
            if self.env.can_restore:
                self.env.load_state_dict(env_state, self.env_steps)
            raise


def compute_gae(
    rewards: Tensor, value: Tensor, next_value: Tensor, done: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Return generalized advantages (Schulman et al., 2016). All (B, T); `done` marks the last frames of episodes."""
    advantages, advantage = torch.empty_like(value), torch.zeros_like(value[:, 0])
    for t in reversed(range(value.shape[1])):
        delta = rewards[:, t] + gamma * next_value[:, t] - value[:, t]
        advantage = delta + gamma * gae_lambda * torch.where(done[:, t], 0, advantage)
        advantages[:, t] = advantage
    return advantages


def normalize(values: Tensor, mask: Tensor) -> Tensor:
    """Return values with mean 0 and standard deviation 1 over `mask`."""
    selected = values[mask]
    return (values - selected.mean()) / (selected.std(correction=0) + EPSILON)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors named `prefix.*` without the prefix."""
    prefix += "."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
