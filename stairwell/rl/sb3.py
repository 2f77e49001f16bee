"""Recurrent policies for sb3-contrib's RecurrentPPO with a stairwell core as their memory.

    import stairwell.rl.sb3  # registers the names of the policies

    core = FeedbackConfig(width=32, heads=2, layers=1, memory=4)
    model = RecurrentPPO("MlpMemoryPolicy", env, policy_kwargs={"core": core})

The names are MlpMemoryPolicy, CnnMemoryPolicy and MultiInputMemoryPolicy. `model.save`, `RecurrentPPO.load` and
`model.predict` work as with the policies of sb3-contrib.

An environment with action masks is wrapped in `ActionMaskObservation`, which adds the mask to its observations, for
MultiInputMemoryPolicy: RecurrentPPO then never takes an action that is not allowed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stairwell.configs import Config
from stairwell.cores.feedback import FeedbackConfig
from stairwell.errors import MissingPackage, UserError

from .action_masks import mask_of
from .algorithms import random_option
from .distributions import mask_policy
from .flatten import ACTION_MASK
from .memory import MemoryLSTM, check_core

try:
    import gymnasium
    import numpy as np
    from gymnasium import spaces
    from sb3_contrib import RecurrentPPO
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.distributions import Distribution
    from stable_baselines3.common.torch_layers import (
        BaseFeaturesExtractor,
        CombinedExtractor,
        FlattenExtractor,
        NatureCNN,
    )
except ImportError as missing:
    raise MissingPackage(
        f"the policies for Stable-Baselines3 need sb3-contrib ({missing})", "sb3-contrib>=2.6"
    ) from None

LSTM_OPTIONS = ("lstm_hidden_size", "n_lstm_layers", "lstm_kwargs", "shared_lstm", "enable_critic_lstm")


class MlpMemoryPolicy(RecurrentActorCriticPolicy):
    """Actor and critic with a stairwell core instead of an LSTM.

    RecurrentPPO makes the policy. `core`, `critic_memory` and further options are its `policy_kwargs`.

    Args:
        observation_space: Observation space of the environment.
        action_space: Action space of the environment.
        lr_schedule: Learning rate schedule.
        core: Config of the core, such as `FeedbackConfig(width=32, heads=2, layers=1, memory=4)`; None for a Feedback
            of width 64 with 2 layers, 4 heads and 8 positions.
        critic_memory: Give the critic a core of its own, as sb3-contrib does by default. Otherwise it reads the actor's
            output without sending gradients back.
        options: Options of sb3-contrib's RecurrentActorCriticPolicy, except those of its LSTM."""

    default_extractor: type[BaseFeaturesExtractor] = FlattenExtractor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Any,
        *,
        core: Config | None = None,
        critic_memory: bool = False,
        **options: Any,
    ) -> None:
        if given := [option for option in LSTM_OPTIONS if option in options]:
            raise UserError(
                f"{given[0]} is an option of an LSTM; set the size of the memory in `core`, and critic_memory=True for "
                "a critic with a memory of its own"
            )
        extractor = options.setdefault("features_extractor_class", self.default_extractor)
        if isinstance(observation_space, spaces.Dict) and extractor in (FlattenExtractor, NatureCNN):
            raise UserError(
                f"{type(self).__name__} does not read Dict observations; use MultiInputMemoryPolicy: "
                'RecurrentPPO("MultiInputMemoryPolicy", env, ...)'
            )
        if core is None:
            core = FeedbackConfig(width=64, heads=4, layers=2, memory=8)
        try:
            check_core(core)
        except TypeError as error:
            raise UserError(f'policy_kwargs["core"]: {error}') from None
        if option := random_option(core):
            raise UserError(
                f"core: {option}: PPO needs the same policy in rollouts, which do not use dropout or other noise, and "
                "in training; leave this option out"
            )
        sizes: Any = {"lstm_hidden_size": core.width, "shared_lstm": not critic_memory}  # type: ignore[attr-defined]
        super().__init__(
            observation_space, action_space, lr_schedule, enable_critic_lstm=critic_memory, **sizes, **options
        )
        self.core, self.critic_memory = core, critic_memory
        self.lstm_actor = MemoryLSTM(core, self.features_dim)
        if critic_memory:
            self.lstm_critic = MemoryLSTM(core, self.features_dim)
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        self.action_mask: Tensor | None = None
        # The base class made the optimizer for the parameters of its LSTM.
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Convert the number of features of MultiDiscrete observations to int: torch's LSTM rejects NumPy's."""
        extractor = super().make_features_extractor()
        extractor._features_dim = int(extractor._features_dim)
        return extractor

    @staticmethod
    def _process_sequence(features: Tensor, lstm_states: Any, episode_starts: Tensor, lstm: Any) -> Any:
        """Process all frames in one call: `start` resets the state, instead of a loop over time."""
        B = lstm_states[0].shape[1]
        start = episode_starts.reshape(B, -1) > 0.5
        output, states = lstm(features.reshape(B, -1, lstm.input_size).transpose(0, 1), lstm_states, start.T)
        return output.transpose(0, 1).flatten(0, 1), states

    def forward(self, obs: Any, *arguments: Any, **options: Any) -> Any:
        self.read_mask(obs)
        return super().forward(obs, *arguments, **options)

    def get_distribution(self, obs: Any, *arguments: Any, **options: Any) -> Any:
        self.read_mask(obs)
        return super().get_distribution(obs, *arguments, **options)

    def evaluate_actions(self, obs: Any, *arguments: Any, **options: Any) -> Any:
        self.read_mask(obs)
        return super().evaluate_actions(obs, *arguments, **options)

    def read_mask(self, obs: Any) -> None:
        self.action_mask = obs.get(ACTION_MASK) if isinstance(obs, dict) else None

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Distribution:
        if self.action_mask is None:
            return super()._get_action_dist_from_latent(latent_pi)
        logits = mask_policy(self.action_net(latent_pi), self.action_mask.flatten(1))
        return self.action_dist.proba_distribution(action_logits=logits)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters = super()._get_constructor_parameters()
        return {**parameters, "core": self.core, "critic_memory": self.critic_memory}


class CnnMemoryPolicy(MlpMemoryPolicy):
    """For images."""

    default_extractor = NatureCNN


class MultiInputMemoryPolicy(MlpMemoryPolicy):
    """For Dict observations. A key `action_mask` masks the actions (`ActionMaskObservation`)."""

    default_extractor = CombinedExtractor


RecurrentPPO.policy_aliases = {
    **RecurrentPPO.policy_aliases,
    "MlpMemoryPolicy": MlpMemoryPolicy,
    "CnnMemoryPolicy": CnnMemoryPolicy,
    "MultiInputMemoryPolicy": MultiInputMemoryPolicy,
}


class ActionMaskObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the action mask of an environment to its observations, under the key `action_mask`.

    Args:
        env: An environment with Discrete or MultiDiscrete actions.

    The environment gives the mask in `info["action_mask"]` or by a method `action_masks()`; its actions are Discrete or
    MultiDiscrete."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            raise UserError(f"action masks need Discrete or MultiDiscrete actions, not {type(space).__name__}")
        self.nvec = (int(space.n),) if isinstance(space, spaces.Discrete) else tuple(int(n) for n in space.nvec.ravel())
        inner = env.observation_space
        parts = inner.spaces if isinstance(inner, spaces.Dict) else {"observation": inner}
        mask = spaces.Box(0, 1, (sum(self.nvec),), np.int8)
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: mask})

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        return self.with_mask(observation, info, done=False), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        done = bool(terminated or truncated)
        return self.with_mask(observation, info, done), reward, terminated, truncated, info

    def with_mask(self, observation: Any, info: Any, done: bool) -> dict[str, Any]:
        mask = mask_of(self.env, info, self.nvec, done)
        if mask is None:
            raise UserError(
                f"{self.env} has no action mask: it must be in info['{ACTION_MASK}'], or the environment needs a "
                "method action_masks()"
            )
        parts = observation if isinstance(self.env.observation_space, spaces.Dict) else {"observation": observation}
        return {**parts, ACTION_MASK: mask.astype(np.int8)}
