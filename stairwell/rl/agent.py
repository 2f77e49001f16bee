"""An agent: observations -> vectors -> core -> policy and value. Its memory is the core's state.

    output, state = agent(inputs, state, start)       inputs (B, T, ...): T frames of B environments
    output.policy (B, T, P), output.value (B, T)

`start` (B, T) marks the first frame of an episode. There the state is reset, and the last action and reward, which
belong to another episode, are ignored. Letters: B environments, T frames, D width, P outputs of the policy head, A
elements of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stairwell.configs import Config
from stairwell.cores import Core, build
from stairwell.cores.core import check_start
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.fast import choose_engine
from stairwell.layers import CoreConfig
from stairwell.models import StartEmbedding
from stairwell.state import State

from .distributions import Gaussian, make_distribution, mask_policy
from .encoders import DiscreteEncoder, make_encoder
from .flatten import ACTION_MASK, leaf_shape, leaf_spaces
from .spaces import Box, Discrete

EPSILON = 1e-8  # keeps a division by a standard deviation finite


@dataclass(frozen=True, kw_only=True)
class AgentConfig(Config):
    """Config of an agent: its core, the spaces of its environment, and what it observes."""

    core: CoreConfig = field(default_factory=FeedbackConfig)
    "Config of the core."
    observation_space: Any = field(default_factory=lambda: Discrete(2))
    "Observation space of one environment."
    action_space: Any = field(default_factory=lambda: Discrete(2))
    "Action space of one environment."
    start_embedding: bool = True
    "Add a learned embedding to the first frame of an episode."
    normalize_observations: bool = True
    "Normalize discrete observations by their frequencies, measured before training with random actions."
    last_action: bool = False
    "Observe the last action; zeros at the start of an episode."
    last_reward: bool = False
    "Observe the last reward, on a logarithmic scale above 1; zero at the start of an episode."


class AgentInputs(NamedTuple):
    """Inputs of an agent: T frames of B environments."""

    observation: dict[str, Tensor]  # (B, T, ...) by the paths of the space's leaves; ACTION_MASK is optional
    last_action: Tensor  # (B, T, A)
    last_reward: Tensor  # (B, T)

    @property
    def action_mask(self) -> Tensor | None:
        """Which actions are allowed, (B, T, P); None if the environment does not mask actions."""
        return self.observation.get(ACTION_MASK)

    def map(self, function: Callable[[Tensor], Tensor]) -> AgentInputs:
        observation = {path: function(values) for path, values in self.observation.items()}
        return AgentInputs(observation, function(self.last_action), function(self.last_reward))


class AgentOutput(NamedTuple):
    policy: Tensor  # (..., P)
    value: Tensor  # (...)


def compress_rewards(rewards: Tensor) -> Tensor:
    """Return rewards of any magnitude on a scale that suits a linear layer: 0, 1 and -1 are unchanged, larger ones grow
    with their logarithm (1,000 becomes 10)."""
    return rewards.sign() * torch.log2(1 + rewards.abs())


class Agent(nn.Module):
    """Policy and value heads on any core: `output, state = agent(inputs, state, start)`.

    Args:
        config: Config with the core and the spaces of the environment.
        engine: `auto`, `fast` or `reference`.

    The running statistics of the discounted return, by which rewards may be divided, are buffers of the agent
    (`return_variance`), so that they are saved with it."""

    return_mean: Tensor
    return_variance: Tensor
    return_count: Tensor

    def __init__(self, config: AgentConfig, engine: str = "auto") -> None:
        super().__init__()
        self.config = config
        D = config.core.width
        self.core: Core = build(config.core)
        choose_engine(self.core, engine)
        self.leaves = leaf_spaces(config.observation_space)
        self.encoders = nn.ModuleList(make_encoder(leaf, D) for leaf in self.leaves.values())
        self.action_dist = make_distribution(config.action_space)
        self.last_action = self.action_dist.make_encoder(D) if config.last_action else None
        self.last_reward = nn.Linear(1, D) if config.last_reward else None
        self.start_embedding = StartEmbedding(D) if config.start_embedding else None
        self.norm = nn.LayerNorm(D) if self.core.final_norm else nn.Identity()
        self.policy, self.value = nn.Linear(D, self.action_dist.head_size), nn.Linear(D, 1)
        # A new agent has a nearly uniform policy and values near 0.
        for head in (self.policy, self.value):
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)
        for name, number in (("return_mean", 0.0), ("return_variance", 1.0), ("return_count", 0.0)):
            self.register_buffer(name, torch.tensor(number, dtype=torch.float64))

    def init_state(
        self, batch: int, source: Tensor | None = None, source_mask: Tensor | None = None, max_crop: int = 0
    ) -> State:
        """Return the initial state of `batch` environments."""
        if source is not None or source_mask is not None:
            raise ValueError("an Agent has no source; leave out `source` and `source_mask`")
        return self.core.init_state(batch, max_crop)

    @property
    def reward_scale(self) -> float:
        """The number by which rewards were divided in training; 1 without reward normalization. A value times this is
        an expected return in rewards of the environment."""
        return float(self.return_variance.sqrt()) + EPSILON if self.return_count > 0 else 1.0

    @property
    def has_discrete_observations(self) -> bool:
        return any(isinstance(encoder, DiscreteEncoder) for encoder in self.encoders)

    def update_observation_statistics(self, observations: dict[str, Tensor]) -> None:
        """Set the frequencies by which discrete observations are normalized. observations (N, ...) by path

        Call this once, before training: it changes the agent's outputs."""
        for encoder, path in zip(self.encoders, self.leaves):
            if isinstance(encoder, DiscreteEncoder):
                encoder.update_statistics(observations[path].to(self.policy.weight.device))

    def unpack(self, vector: Tensor, max_crop: int = 0) -> State:
        """Return the state from `vector` (B, N), the result of its `pack`, with the state's own `max_crop`."""
        return self.core.unpack(vector, max_crop)

    def forward(self, inputs: AgentInputs, state: State, start: Tensor | None = None) -> tuple[AgentOutput, State]:
        """Return policy and value of every frame, and the next state."""
        B, T = inputs.last_reward.shape
        self.check_inputs(inputs, B, T)
        self.core.check_state(state, B)
        check_start(start, (B, T))
        x, state = self.core(self.embed(inputs, tokens_since_start(state.count, start, T)), state, start)
        return self.heads(self.norm(x), inputs.action_mask), state

    def embed(self, inputs: AgentInputs, count: Tensor) -> Tensor:
        """Return the core's input (B, T, D); count (B, T) is the number of frames since the start of the episode."""
        x = sum(encoder(inputs.observation[path]) for encoder, path in zip(self.encoders, self.leaves))
        assert isinstance(x, Tensor)
        x = x * len(self.leaves) ** -0.5
        not_first = (count > 0)[..., None].to(x.dtype)
        if self.last_action is not None:
            x = x + not_first * self.last_action(inputs.last_action)
        if self.last_reward is not None:
            x = x + not_first * self.last_reward(compress_rewards(inputs.last_reward)[..., None].to(x.dtype))
        return x if self.start_embedding is None else self.start_embedding(x, count)

    def heads(self, x: Tensor, action_mask: Tensor | None = None) -> AgentOutput:
        """Return policy and value; actions that are not allowed have probability 0. x (..., D), action_mask (..., P)"""
        policy = self.policy(x)
        if action_mask is not None:
            policy = mask_policy(policy, action_mask)
        return AgentOutput(policy, self.value(x)[..., 0])

    def check_inputs(self, inputs: AgentInputs, B: int, T: int) -> None:
        for path, leaf in self.leaves.items():
            if path not in inputs.observation:
                raise ValueError(f"the observation has no '{path}'; it needs {', '.join(self.leaves)}")
            shape, expected = tuple(inputs.observation[path].shape), (B, T, *leaf_shape(leaf))
            if shape != expected:
                raise ValueError(f"'{path}' has shape {shape}; the observation space needs {expected}")
        shape, expected = tuple(inputs.last_action.shape), (B, T, self.action_dist.action_size)
        if shape != expected:
            raise ValueError(f"last_action has shape {shape}; the action space needs {expected}")
        if inputs.action_mask is not None:
            if isinstance(self.action_dist, Gaussian):
                raise ValueError("continuous actions have no action mask; leave it out")
            shape, expected = tuple(inputs.action_mask.shape), (B, T, self.action_dist.head_size)
            if shape != expected:
                raise ValueError(f"the action mask has shape {shape}; the action space needs {expected}")

    def zero_inputs(self, B: int, T: int) -> AgentInputs:
        zeros = self.policy.weight.new_zeros(B, T)
        observation = {
            path: zeros.new_zeros(B, T, *leaf_shape(leaf), dtype=zeros.dtype if isinstance(leaf, Box) else torch.int64)
            for path, leaf in self.leaves.items()
        }
        return AgentInputs(observation, self.zero_actions(B, T), zeros)

    def zero_actions(self, *batch: int) -> Tensor:
        """Return placeholders (*batch, A) for the last action in the first frame of an episode, which are not read."""
        like = self.policy.weight
        dtype = torch.int64 if self.action_dist.dtype == torch.int64 else like.dtype
        return torch.zeros(*batch, self.action_dist.action_size, dtype=dtype, device=like.device)
