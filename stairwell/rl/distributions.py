"""Action distributions: the output of the policy head as a distribution over actions.

    Categorical   one categorical distribution per integer of the action (Discrete has one): concatenated logits
    Gaussian      one normal distribution per number of the action (Box): means; log_std is a parameter of the agent

An action mask is applied to the logits before they become a distribution, so that every method respects it.

Actions are (..., A): integers for Categorical; real numbers for Gaussian, where [-1, 1] is the range of the box.
`sample` takes uniform noise in [0, 1), so that the actions in an environment depend only on the seed, its index and
its past. Letters: A elements of an action, P outputs of the policy head.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from stairwell.errors import UserError

from .encoders import DiscreteEncoder
from .environments import Array
from .flatten import bounds, center_and_scale, leaf_nvec, leaf_shape
from .spaces import Box, Discrete, MultiDiscrete, Space

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0
# Logit of an action that is not allowed: its probability is 0 in every dtype. Infinity would make the entropy NaN.
MASKED_LOGIT = -1e4


def mask_policy(policy: Tensor, allowed: Tensor) -> Tensor:
    """Return logits in which actions that are not allowed have probability 0. policy, allowed (..., P)"""
    return policy.masked_fill(~allowed.to(policy.device, torch.bool), MASKED_LOGIT)


class Categorical(nn.Module):
    dtype = torch.int64

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        self.nvec, self.shape = list(leaf_nvec(space)), leaf_shape(space)
        self.action_size, self.head_size, self.noise_size = len(self.nvec), sum(self.nvec), len(self.nvec)

    @torch.no_grad()
    def sample(self, policy: Tensor, noise: Tensor) -> Tensor:
        """Return actions (B, A), sampled with uniform noise (B, A). policy (B, P)"""
        actions = []
        for logits, u in zip(policy.split(self.nvec, -1), noise.to(policy.dtype).unbind(-1)):
            # The last cumulative probability may be below 1 by rounding: never exceed the last possible action.
            probabilities = logits.softmax(-1)
            below = probabilities.cumsum(-1)[..., :-1] <= u[..., None]
            impossible_at_end = (probabilities.flip(-1) > 0).to(torch.int64).argmax(-1)
            actions.append(torch.minimum(below.sum(-1), logits.shape[-1] - 1 - impossible_at_end))
        return torch.stack(actions, -1)

    def mode(self, policy: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for logits in policy.split(self.nvec, -1)], -1)

    def log_prob(self, policy: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probability (...) of actions (..., A). policy (..., P)"""
        log_probs = [logits.log_softmax(-1) for logits in policy.split(self.nvec, -1)]
        chosen = [log.gather(-1, action[..., None])[..., 0] for log, action in zip(log_probs, actions.unbind(-1))]
        return torch.stack(chosen, -1).sum(-1)

    def entropy(self, policy: Tensor) -> Tensor:
        """Return the entropy (...) of a policy (..., P)."""
        log_probs = [logits.log_softmax(-1) for logits in policy.split(self.nvec, -1)]
        return torch.stack([-(log.exp() * log).sum(-1) for log in log_probs], -1).sum(-1)

    def to_environment(self, actions: Tensor) -> Array:
        """Convert actions (B, A) to those of a vector environment, (B, *shape)."""
        return actions.cpu().numpy().reshape(-1, *self.shape)

    def make_encoder(self, width: int) -> nn.Module:
        return DiscreteEncoder(self.nvec, width)


class Gaussian(nn.Module):
    dtype = torch.float32

    def __init__(self, space: Box) -> None:
        super().__init__()
        self.shape, self.environment_dtype = space.shape, np.dtype(space.dtype)
        self.low, self.high = bounds(space)
        self.center, self.scale = center_and_scale(space)
        self.action_size = self.head_size = int(np.prod(space.shape))
        self.noise_size = 2 * self.action_size
        self.log_std = nn.Parameter(torch.zeros(self.action_size))

    def std(self) -> Tensor:
        return self.log_std.clamp(MIN_LOG_STD, MAX_LOG_STD).exp()

    @torch.no_grad()
    def sample(self, policy: Tensor, noise: Tensor) -> Tensor:
        """Return actions (B, A), sampled with uniform noise (B, 2 A) by the Box-Muller transform. policy (B, A)"""
        radius, angle = noise.chunk(2, -1)
        normal = (-2 * torch.log1p(-radius)).sqrt() * (2 * math.pi * angle).cos()
        return policy + self.std() * normal.to(policy.dtype)

    def mode(self, policy: Tensor) -> Tensor:
        return policy

    def log_prob(self, policy: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density (...) of actions (..., A). policy (..., A)"""
        std = self.std()
        z = (actions.to(policy.dtype) - policy) / std
        return (-0.5 * z.square() - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, policy: Tensor) -> Tensor:
        """Return the entropy (...) of a policy (..., A)."""
        entropy = (self.std().log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return entropy.expand(policy.shape[:-1])

    def to_environment(self, actions: Tensor) -> Array:
        """Convert actions (B, A) to those of a vector environment, (B, *shape), within the bounds."""
        values = np.clip(self.center + self.scale * actions.double().cpu().numpy(), self.low, self.high)
        values = values if self.environment_dtype.kind == "f" else np.rint(values)
        return values.astype(self.environment_dtype).reshape(-1, *self.shape)

    def make_encoder(self, width: int) -> nn.Module:
        return nn.Linear(self.action_size, width)


def make_distribution(space: Space) -> Categorical | Gaussian:
    if isinstance(space, Discrete | MultiDiscrete):
        return Categorical(space)
    if isinstance(space, Box):
        return Gaussian(space)
    raise UserError(
        f"action space {type(space).__name__} is not supported; supported are Discrete, MultiDiscrete, MultiBinary and "
        "Box (a wrapper such as gymnasium's TransformAction can convert it)"
    )
