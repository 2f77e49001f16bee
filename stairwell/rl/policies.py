"""How an agent chooses: what its policy head says, as a distribution over actions.

    Choices    one categorical distribution a place (Discrete has one place): logits of all places side by side
    Gaussian   one normal distribution a number (Box): means; the deviations are parameters of the agent

Actions are (..., A): whole numbers for Choices, real numbers for Gaussian, where -1 .. 1 is the box. Noise is given
from outside, uniform in [0, 1), so that a row's actions depend on the seed, its number and its past alone.
Letters: A places of an action, P numbers of the policy head.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.errors import UserError

from .environments import Array
from .leaves import bounds, scaling
from .spaces import Box, Discrete, MultiDiscrete, Space

LEAST, MOST = -5.0, 2.0  # of a Gaussian's log deviation
RAREST = 1 / 256  # a symbol that is seen less often counts as if it were seen that often


class Choices(nn.Module):
    dtype = torch.int64

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        self.sizes = [space.n] if isinstance(space, Discrete) else list(space.sizes)
        self.shape = () if isinstance(space, Discrete) else space.shape
        self.A, self.P, self.noises = len(self.sizes), sum(self.sizes), len(self.sizes)

    @torch.no_grad()
    def sample(self, policy: Tensor, noise: Tensor) -> Tensor:
        """policy (B, P), noise (B, A) -> (B, A)"""
        places = []
        for logits, chance in zip(policy.split(self.sizes, -1), noise.to(policy.dtype).unbind(-1)):
            # The last place of the sum may fall short of 1 by rounding.
            below = logits.softmax(-1).cumsum(-1)[..., :-1] <= chance[..., None]
            places.append(below.sum(-1))
        return torch.stack(places, -1)

    def likeliest(self, policy: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for logits in policy.split(self.sizes, -1)], -1)

    def log_probability(self, policy: Tensor, actions: Tensor) -> Tensor:
        """policy (..., P), actions (..., A) -> (...)"""
        logs = [logits.log_softmax(-1) for logits in policy.split(self.sizes, -1)]
        chosen = [log.gather(-1, action[..., None])[..., 0] for log, action in zip(logs, actions.unbind(-1))]
        return torch.stack(chosen, -1).sum(-1)

    def entropy(self, policy: Tensor) -> Tensor:
        logs = [logits.log_softmax(-1) for logits in policy.split(self.sizes, -1)]
        return torch.stack([-(log.exp() * log).sum(-1) for log in logs], -1).sum(-1)

    def to_environment(self, actions: Tensor) -> Array:
        """(B, A) -> what the environment takes, (B, *shape)"""
        return actions.cpu().numpy().reshape(-1, *self.shape)

    def embedding(self, width: int) -> nn.Module:
        return Places(self.sizes, width)


class Gaussian(nn.Module):
    dtype = torch.float32

    def __init__(self, space: Box) -> None:
        super().__init__()
        self.shape, self.kind = space.shape, np.dtype(space.dtype)
        self.low, self.high = bounds(space)
        # Where a bound is missing, 0 and 1 of the agent are 0 and 1 of the environment.
        self.middle, self.scale = scaling(space)
        self.A = self.P = int(np.prod(space.shape))
        self.noises = 2 * self.A
        self.log_deviation = nn.Parameter(torch.zeros(self.A))

    def deviation(self) -> Tensor:
        return self.log_deviation.clamp(LEAST, MOST).exp()

    @torch.no_grad()
    def sample(self, policy: Tensor, noise: Tensor) -> Tensor:
        """policy (B, A), noise (B, 2 A) -> (B, A), by Box and Muller"""
        radius, angle = noise.chunk(2, -1)
        normal = (-2 * torch.log1p(-radius)).sqrt() * (2 * math.pi * angle).cos()
        return policy + self.deviation() * normal.to(policy.dtype)

    def likeliest(self, policy: Tensor) -> Tensor:
        return policy

    def log_probability(self, policy: Tensor, actions: Tensor) -> Tensor:
        deviation = self.deviation()
        away = (actions.to(policy.dtype) - policy) / deviation
        return (-0.5 * away.square() - deviation.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, policy: Tensor) -> Tensor:
        own = (self.deviation().log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return own.expand(policy.shape[:-1])

    def to_environment(self, actions: Tensor) -> Array:
        numbers = np.clip(self.middle + self.scale * actions.double().cpu().numpy(), self.low, self.high)
        numbers = numbers if self.kind.kind == "f" else np.rint(numbers)
        return numbers.astype(self.kind).reshape(-1, *self.shape)

    def embedding(self, width: int) -> nn.Module:
        return nn.Linear(self.A, width)


class Places(nn.Module):
    """The sum of one learned vector a place, (..., places) int64 -> (..., width), of about unit variance.

    A vector counts as much as its symbol says: what is always there counts nothing, what is seldom there counts most.
    Otherwise a key in one cell of 49 is a hundredth of what an agent sees, and it takes millions of frames to notice.
    """

    offsets: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, sizes: list[int], width: int) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0), persistent=False)
        self.vectors = nn.Parameter(torch.randn(sum(sizes), width) / len(sizes) ** 0.5)
        self.register_buffer("mean", torch.zeros(sum(sizes)))
        self.register_buffer("scale", torch.ones(sum(sizes)))

    def standardize(self, values: Tensor) -> None:
        """From values (N, places) that were seen: every symbol's flag to mean 0 and deviation 1, then all of them
        together to what they had before, so that the sum keeps its variance."""
        N, places = values.shape
        seen = torch.bincount((values + self.offsets).flatten(), minlength=len(self.mean)) / N
        spread = (seen * (1 - seen)).clamp(min=RAREST).rsqrt()
        size = ((seen * (1 - seen)) * spread**2).sum()
        if size > 0:
            self.mean.copy_(seen)
            self.scale.copy_(spread * (places / size) ** 0.5)

    def forward(self, values: Tensor) -> Tensor:
        flat = (values + self.offsets).flatten(0, -2)
        found = F.embedding_bag(flat, self.vectors * self.scale[:, None], mode="sum").unflatten(0, values.shape[:-1])
        return found - (self.mean * self.scale) @ self.vectors


def policy_for(space: Space) -> Choices | Gaussian:
    if isinstance(space, Discrete | MultiDiscrete):
        return Choices(space)
    if isinstance(space, Box):
        return Gaussian(space)
    raise UserError(
        f"actions of {type(space).__name__} are not supported; they can be Discrete, MultiDiscrete, MultiBinary or Box "
        "(a wrapper such as gymnasium's TransformAction can turn one into the other)"
    )
