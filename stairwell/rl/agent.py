"""An agent: observations -> vectors -> core -> a policy and a value. Its memory is the core's.

    said, state = agent(inputs, state, start)         inputs (B, T, ...): what B rows observed in T frames
    said.policy (B, T, P), said.value (B, T)

`start` (B, T) marks the frames with which an episode begins: there the state is a fresh one, and the action and reward
before it, which belong to another episode, are not read. Letters: B rows, T frames, D width, P numbers of the policy.
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
from stairwell.cores.time import ages
from stairwell.fast import choose_engine
from stairwell.models import StartEmbedding
from stairwell.state import State

from .leaves import Leaf, leaves, scaling, shape
from .policies import Places, policy_for
from .spaces import Box, Discrete, MultiDiscrete

SMALL = 8  # cells along a side down to which a picture is halved


@dataclass(frozen=True, kw_only=True)
class AgentConfig(Config):
    core: Any = field(default_factory=FeedbackConfig)
    "the core's own config"
    observation: Any = field(default_factory=lambda: Discrete(2))
    "the space of what it observes"
    action: Any = field(default_factory=lambda: Discrete(2))
    "the space of what it does"
    start_embedding: bool = True
    "add a learned vector to an episode's first frame"
    normalize_observations: bool = True
    "before training, look around with random actions and let symbols count by how seldom they are seen"
    last_action: bool = False
    "read the last action beside the observation; zeros at the start of an episode"
    last_reward: bool = False
    "read the last reward beside the observation, large ones on a logarithmic scale; zeros at the start of an episode"


class Inputs(NamedTuple):
    """What an agent reads in B rows and T frames."""

    observation: dict[str, Tensor]  # (B, T, ...) by the paths of the space's leaves
    action: Tensor  # (B, T, A): the action before
    reward: Tensor  # (B, T): the reward for it

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        observed = {path: change(values) for path, values in self.observation.items()}
        return Inputs(observed, change(self.action), change(self.reward))


class AgentOutput(NamedTuple):
    policy: Tensor  # (..., P)
    value: Tensor  # (...)


class Numbers(nn.Module):
    """A box of numbers, brought into -1 .. 1 where it has bounds. (B, T, *shape) -> (B, T, D)"""

    middle: Tensor
    scale: Tensor

    def __init__(self, box: Box, width: int) -> None:
        super().__init__()
        middle, scale = scaling(box)
        self.register_buffer("middle", torch.tensor(middle, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32), persistent=False)
        self.shape = box.shape
        self.linear = nn.Linear(len(middle), width)

    def scaled(self, values: Tensor) -> Tensor:
        """(B, T, *shape) -> (B, T, numbers)"""
        return (values.flatten(2).to(self.middle.dtype) - self.middle) / self.scale

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(self.scaled(values.reshape(*values.shape[:2], -1)))


class Picture(Numbers):
    """A small picture, (B, T, height, width, channels) or channels first: convolutions that halve it until it is small,
    then a linear layer."""

    def __init__(self, box: Box, width: int) -> None:
        super().__init__(box, width)
        self.channels_first = box.shape[0] < box.shape[2]
        channels, height, breadth = box.shape if self.channels_first else (box.shape[2], *box.shape[:2])
        layers: list[nn.Module] = []
        wide = 16
        while True:
            stride = 2 if max(height, breadth) > SMALL else 1
            layers += [nn.Conv2d(channels, wide, 3, stride, padding=1), nn.ReLU()]
            height, breadth, channels, wide = -(-height // stride), -(-breadth // stride), wide, 32
            if len(layers) >= 4 and max(height, breadth) <= SMALL:
                break
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Linear(channels * height * breadth, width)

    def forward(self, values: Tensor) -> Tensor:
        B, T = values.shape[:2]
        picture = self.scaled(values).view(B * T, *self.shape)
        picture = picture if self.channels_first else picture.permute(0, 3, 1, 2)
        return self.linear(self.convolutions(picture).flatten(1)).view(B, T, -1)


class Symbols(nn.Module):
    """One whole number, or several. (B, T, *shape) -> (B, T, D)"""

    def __init__(self, space: Discrete | MultiDiscrete, width: int) -> None:
        super().__init__()
        self.places = Places([space.n] if isinstance(space, Discrete) else list(space.sizes), width)

    def standardize(self, values: Tensor) -> None:
        """From observations (N, *shape)."""
        self.places.standardize(values.reshape(len(values), -1).to(torch.int64))

    def forward(self, values: Tensor) -> Tensor:
        return self.places(values.reshape(*values.shape[:2], -1).to(torch.int64))


def compressed(rewards: Tensor) -> Tensor:
    """Return rewards on a scale that a linear layer can read, whatever the environment pays: 0, 1 and -1 stay as they
    are, larger ones grow with their logarithm (1,000 becomes 10)."""
    return rewards.sign() * torch.log2(1 + rewards.abs())


def encoder(leaf: Leaf, width: int) -> nn.Module:
    if isinstance(leaf, Box):
        return (Picture if len(leaf.shape) == 3 else Numbers)(leaf, width)
    return Symbols(leaf, width)


class Agent(nn.Module):
    """Policy and value heads on any core. The running spread of returns, by which rewards may be divided, is kept with
    it (`return_variance`), so that a run is whole."""

    return_mean: Tensor
    return_variance: Tensor
    return_count: Tensor

    def __init__(self, config: AgentConfig, engine: str = "auto") -> None:
        super().__init__()
        self.config = config
        D = config.core.width
        self.core: Core = build(config.core)
        choose_engine(self.core, engine)
        self.leaves = leaves(config.observation)
        self.encoders = nn.ModuleList(encoder(leaf, D) for leaf in self.leaves.values())
        self.actions = policy_for(config.action)
        self.last_action = self.actions.embedding(D) if config.last_action else None
        self.last_reward = nn.Linear(1, D) if config.last_reward else None
        self.start_embedding = StartEmbedding(D) if config.start_embedding else None
        self.norm = nn.LayerNorm(D) if self.core.final_norm else nn.Identity()
        self.policy, self.value = nn.Linear(D, self.actions.P), nn.Linear(D, 1)
        # An agent that knows nothing chooses evenly and expects nothing.
        for head in (self.policy, self.value):
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)
        for name, number in (("return_mean", 0.0), ("return_variance", 1.0), ("return_count", 0.0)):
            self.register_buffer(name, torch.tensor(number, dtype=torch.float64))

    def init_state(
        self, batch: int, source: Tensor | None = None, source_mask: Tensor | None = None, max_crop: int = 0
    ) -> State:
        """A fresh state for `batch` rows."""
        if source is not None or source_mask is not None:
            raise ValueError("an Agent reads no source")
        return self.core.init_state(batch, max_crop)

    @property
    def reads_symbols(self) -> bool:
        return any(isinstance(encode, Symbols) for encode in self.encoders)

    def standardize(self, observations: dict[str, Tensor]) -> None:
        """Let symbols count by how seldom they are in observations (N, ...), by the paths of the space's leaves. FirstOrderFunction,
        before a training: what the agent says changes with it."""
        for encode, path in zip(self.encoders, self.leaves):
            if isinstance(encode, Symbols):
                encode.standardize(observations[path].to(self.policy.weight.device))

    def unpack(self, vector: Tensor, max_crop: int = 0) -> State:
        """The state that `pack` made `vector` (B, N) of; `max_crop` is what that state was made with."""
        return self.core.unpack(vector, max_crop)

    def forward(self, inputs: Inputs, state: State, start: Tensor | None = None) -> tuple[AgentOutput, State]:
        """The policy and the value of every frame, and the state after."""
        B, T = inputs.reward.shape
        self.check(inputs, B, T)
        self.core.check_state(state, B)
        check_start(start, (B, T))
        x, state = self.core(self.embed(inputs, ages(state.count, start, T)), state, start)
        return self.heads(self.norm(x)), state

    def embed(self, inputs: Inputs, age: Tensor) -> Tensor:
        """What the core reads; age (B, T), 0 is an episode's first frame -> (B, T, D)"""
        x = sum(encode(inputs.observation[path]) for encode, path in zip(self.encoders, self.leaves))
        assert isinstance(x, Tensor)
        x = x * len(self.leaves) ** -0.5
        before = (age > 0)[..., None].to(x.dtype)
        if self.last_action is not None:
            x = x + before * self.last_action(inputs.action)
        if self.last_reward is not None:
            x = x + before * self.last_reward(compressed(inputs.reward)[..., None].to(x.dtype))
        return x if self.start_embedding is None else self.start_embedding(x, age)

    def heads(self, x: Tensor) -> AgentOutput:
        return AgentOutput(self.policy(x), self.value(x)[..., 0])

    def check(self, inputs: Inputs, B: int, T: int) -> None:
        for path, leaf in self.leaves.items():
            if path not in inputs.observation:
                raise ValueError(f"the observation has no '{path}'; it needs {', '.join(self.leaves)}")
            found, wanted = tuple(inputs.observation[path].shape), (B, T, *shape(leaf))
            if found != wanted:
                raise ValueError(f"'{path}' is {found}; it must be {wanted}, as the space says")
        if inputs.action.shape != (B, T, self.actions.A):
            raise ValueError(
                f"the actions before are {tuple(inputs.action.shape)}; they must be {(B, T, self.actions.A)}"
            )

    def nothing(self, B: int, T: int) -> Inputs:
        """Inputs of zeros."""
        zeros = self.policy.weight.new_zeros(B, T)
        observed = {
            path: torch.zeros(B, T, *shape(leaf), dtype=zeros.dtype if isinstance(leaf, Box) else torch.int64)
            for path, leaf in self.leaves.items()
        }
        return Inputs({path: values.to(zeros.device) for path, values in observed.items()}, self.no_action(B, T), zeros)

    def no_action(self, *rows: int) -> Tensor:
        """What stands for the action before an episode's first frame; nobody reads it."""
        like = self.policy.weight
        kind = torch.int64 if self.actions.dtype == torch.int64 else like.dtype
        return torch.zeros(*rows, self.actions.A, dtype=kind, device=like.device)
