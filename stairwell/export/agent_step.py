"""Export one step of an agent as a graph, for `torch.export` and ONNX: observation and state in, action and value out.

    action, logits, value, countN, memoryN = step(observation, start, count, memory)

| input | |
|---|---|
| `observation`, or `observation.image`, ... | one per leaf of the observation space, as the environment gives it |
| `action_mask` (B, P) bool | which actions are allowed, if the environment has action masks |
| `last_action` (B, ...), `last_reward` (B,) | if the agent observes them; ignored in the first frame of an episode |
| `start` (B,) bool | the frame is the first of an episode: the state is reset before it is read |

| output | |
|---|---|
| `action` (B, ...) | the most probable action, as the environment takes it |
| `logits` (B, P) | of discrete actions, concatenated over integers; those of masked actions are -10,000 |
| `mean`, `std` (B, ...) | of continuous actions, in units of the environment and before clipping to its bounds |
| `value` (B,) | expected discounted return, in rewards of the environment |

Observations are normalized in the graph. A continuous `last_action` is the action before clipping. Letters: B batch,
P logits.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stairwell.rl.acting import to_tensor
from stairwell.rl.agent import Agent, AgentInputs
from stairwell.rl.distributions import Gaussian
from stairwell.rl.flatten import ACTION_MASK, leaf_shape
from stairwell.rl.spaces import Box
from stairwell.rl.task import RLTask

from .step import CoreStep, check_onnx, write_onnx, write_program

LAST_ACTION, LAST_REWARD, START = "last_action", "last_reward", "start"


class AgentStep(CoreStep):
    """One step of an agent: `forward(*arguments, *state)`."""

    model: Agent
    low: Tensor
    high: Tensor
    center: Tensor
    scale: Tensor

    def __init__(self, agent: Agent, action_mask: bool = False, facts: dict[str, Any] | None = None) -> None:
        """`action_mask`: the graph reads one. `facts`: about the environment, for the metadata of an ONNX file."""
        super().__init__(agent)
        self.action_mask, self.facts = action_mask, facts or {}
        self.distribution = self.model.action_dist
        self.reward_scale = self.model.reward_scale
        if isinstance(self.distribution, Gaussian):
            bounds = {"low": self.distribution.low, "high": self.distribution.high}
            for name, values in {
                **bounds,
                "center": self.distribution.center,
                "scale": self.distribution.scale,
            }.items():
                self.register_buffer(name, torch.tensor(values, dtype=torch.float64).view(self.distribution.shape))

    def arguments(self, batch: int) -> dict[str, Tensor]:
        agent, inputs = self.model, {}
        for path, leaf in agent.leaves.items():
            dtype = np.dtype(leaf.dtype if isinstance(leaf, Box) else np.int64)
            inputs[path] = to_tensor(np.zeros((batch, *leaf_shape(leaf)), dtype))
        if self.action_mask:
            inputs[ACTION_MASK] = torch.ones(batch, self.distribution.head_size, dtype=torch.bool)
        if agent.config.last_action:
            inputs[LAST_ACTION] = torch.zeros(batch, *self.distribution.shape, dtype=self.distribution.dtype)
        if agent.config.last_reward:
            inputs[LAST_REWARD] = torch.zeros(batch)
        inputs[START] = torch.ones(batch, dtype=torch.bool)
        return inputs

    def output_names(self) -> list[str]:
        return ["action", *(["mean", "std"] if isinstance(self.distribution, Gaussian) else ["logits"]), "value"]

    def metadata(self) -> dict[str, str]:
        config, scale = self.model.config, {"reward_scale": repr(self.reward_scale)}
        spaces = {name: getattr(config, name).to_json() for name in ("observation_space", "action_space")}
        return super().metadata() | scale | {name: json.dumps(value) for name, value in (self.facts | spaces).items()}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        names = list(self.arguments(1))
        given = dict(zip(names, tensors))
        start = given[START]
        B = start.shape[0]
        state = self.make_state(B, [reset(tensor, start) for tensor in tensors[len(names) :]])
        x = self.model.embed(self.agent_inputs(given).map(lambda values: values[:, None]), state.count[:, None])
        y, after = self.apply_core(x, state)
        output = self.model.heads(self.model.norm(y)[:, 0], given.get(ACTION_MASK))
        return (*self.actions(output.policy), output.value * self.reward_scale, *after)

    def agent_inputs(self, given: dict[str, Tensor]) -> AgentInputs:
        """Return the inputs (B, ...) of the agent, with zeros for what it does not observe."""
        B = given[START].shape[0]
        last_action = given.get(LAST_ACTION, torch.zeros(B, *self.distribution.shape, dtype=self.distribution.dtype))
        if isinstance(self.distribution, Gaussian):
            last_action = ((last_action - self.center) / self.scale).to(self.distribution.dtype)
        observation = {path: given[path] for path in self.model.leaves}
        last_reward = given.get(LAST_REWARD, torch.zeros(B))
        return AgentInputs(observation, last_action.reshape(B, self.distribution.action_size), last_reward)

    def actions(self, policy: Tensor) -> list[Tensor]:
        """Return the most probable action and the parameters of the distribution. policy (B, P)"""
        distribution, B = self.distribution, policy.shape[0]
        if not isinstance(distribution, Gaussian):
            return [distribution.mode(policy).reshape(B, *distribution.shape), policy]
        mean = self.center + self.scale * policy.to(torch.float64).view(B, *distribution.shape)
        std = (self.scale * distribution.std().view(distribution.shape)).expand(mean.shape)
        action = torch.minimum(torch.maximum(mean, self.low), self.high)
        if distribution.environment_dtype.kind != "f":
            action = action.round()
        dtype = getattr(torch, distribution.environment_dtype.name)
        return [action.to(dtype), mean.to(policy.dtype), std.to(policy.dtype)]


def reset(tensor: Tensor, start: Tensor) -> Tensor:
    """Return a tensor of a state (B, ...) with zeros, the initial state, where an episode starts."""
    return torch.where(start.view(-1, *[1] * (tensor.dim() - 1)), torch.zeros_like(tensor), tensor)


def agent_step(agent: Agent, task: RLTask) -> AgentStep:
    """Return the step of a trained agent."""
    facts = {name: task.facts()[name] for name in ("env", "options")}
    return AgentStep(agent, task.has_action_mask, facts)


def export_agent_onnx(agent: Agent, task: RLTask, path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Write one step of an agent as an ONNX file, with its environment and spaces in the metadata. Return the names of
    its inputs and outputs."""
    check_onnx()
    return write_onnx(agent_step(agent, task), path)


def export_agent_torch(agent: Agent, task: RLTask, path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Write one step of an agent as a file of `torch.export`. Return the names of its inputs and outputs."""
    return write_program(agent_step(agent, task), path)
