"""One step of an agent in a vector environment, as rollouts, evaluation and rendering use it.

Letters: B environments, A elements of an action, P outputs of the policy head, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from .agent import Agent, AgentInputs
from .distributions import Categorical, Gaussian
from .environments import Array
from .environments.batched_env import uniform
from .vector_env import Observations


@contextmanager
def eval_mode(agent: Agent) -> Iterator[None]:
    """Put the agent into evaluation mode, and back into its previous mode at the end."""
    was_training = agent.training
    agent.eval()
    try:
        yield
    finally:
        agent.train(was_training)


def to_tensors(observations: Observations) -> dict[str, Tensor]:
    return {path: to_tensor(values) for path, values in observations.items()}


def to_tensor(values: Array) -> Tensor:
    """Return integers as int64, floats as float32, and bytes unchanged."""
    if values.dtype == np.uint8:
        return torch.from_numpy(values)
    return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64, copy=False))


def first_inputs(agent: Agent, observations: Observations) -> AgentInputs:
    """Return the inputs (B, ...) of the first frame of an episode."""
    tensors = to_tensors(observations)
    B = len(next(iter(tensors.values())))
    return AgentInputs(tensors, agent.zero_actions(B).cpu(), torch.zeros(B))


def embed_frame(agent: Agent, inputs: AgentInputs, count: Tensor, device: torch.device) -> Tensor:
    """Return the core's input for one frame. inputs (B, ...), count (B,) -> (B, D)"""
    return agent.embed(inputs.map(lambda values: values[:, None].to(device)), count[:, None])[:, 0]


def sample_actions(action_dist: Categorical | Gaussian, policy: Tensor, seed: int, indices: range, step: int) -> Tensor:
    """Sample actions (B, A) from policy (B, P). They depend on the seed, the environment's index and the step."""
    noise = torch.from_numpy(uniform(seed, indices, step, action_dist.noise_size))
    return action_dist.sample(policy, noise.to(policy.device))
