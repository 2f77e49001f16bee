"""Policies for sb3-contrib: by name, saved and loaded by SB3, with action masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sb3_contrib")

import gymnasium
from gymnasium.wrappers import FlattenObservation
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.env_util import make_vec_env

from stairwell import FeedbackConfig, LSTMConfig
from stairwell.errors import UserError
from stairwell.rl.sb3 import ActionMaskObservation, MlpMemoryPolicy
from tests.rl.masked_environments import MaskedChoice, MaskedPair

CORE = FeedbackConfig(width=8, heads=2, layers=1, memory=3)
SMALL = {"n_steps": 8, "batch_size": 16, "n_epochs": 2, "seed": 0}


def corridor() -> Any:
    return FlattenObservation(gymnasium.make("stairwell/Corridor-v0", length=4))


def make_model(policy: Any = "MlpMemoryPolicy", env: Any = corridor, **options: Any) -> RecurrentPPO:
    return RecurrentPPO(policy, make_vec_env(env, n_envs=3), policy_kwargs={"core": CORE, **options}, **SMALL)


@pytest.mark.parametrize("critic_memory", [False, True])
def test_a_policy_is_saved_and_loaded_by_sb3(tmp_path: Path, critic_memory: bool) -> None:
    model = make_model(critic_memory=critic_memory).learn(64)
    model.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model")
    assert type(loaded.policy) is MlpMemoryPolicy and loaded.policy.core == CORE
    observation, state, again = model.get_env().reset(), None, None
    for t in range(6):
        start = np.full(3, t % 4 == 0)
        expected, state = model.predict(observation, state, start, deterministic=True)
        action, again = loaded.predict(observation, again, start, deterministic=True)
        assert (action == expected).all() and all((a == b).all() for a, b in zip(state, again))


@pytest.mark.parametrize("critic_memory", [False, True])
def test_a_sequence_equals_single_frames(critic_memory: bool) -> None:
    policy = make_model(critic_memory=critic_memory).policy
    observation, starts = torch.rand(2 * 5, 9), torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 0, 0])
    zeros = tuple(torch.zeros(1, 2, policy.lstm_hidden_state_shape[2]) for _ in range(2))
    *_, states = policy(torch.rand(2, 9), RNNStates(zeros, zeros), torch.ones(2))
    actions = torch.zeros(10, dtype=torch.int64)
    values, log_prob, _ = policy.evaluate_actions(observation, actions, states, starts)
    for t in range(5):
        frame = observation.view(2, 5, 9)[:, t]
        _, value, _, next_states = policy(frame, states, starts.view(2, 5)[:, t])
        distribution, _ = policy.get_distribution(frame, states.pi, starts.view(2, 5)[:, t])
        torch.testing.assert_close(value, values.view(2, 5, 1)[:, t], rtol=1e-4, atol=1e-5)
        expected = log_prob.view(2, 5)[:, t]
        torch.testing.assert_close(distribution.log_prob(actions[:2]), expected, rtol=1e-4, atol=1e-5)
        states = next_states


def test_every_parameter_is_trained() -> None:
    model = make_model(critic_memory=True)
    before = {name: tensor.clone() for name, tensor in model.policy.named_parameters()}
    model.learn(96)
    same = [name for name, tensor in model.policy.named_parameters() if (tensor == before[name]).all()]
    assert not same, same
    optimized = {id(parameter) for group in model.policy.optimizer.param_groups for parameter in group["params"]}
    assert optimized == {id(parameter) for parameter in model.policy.parameters()}


class CheckAllowed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises on an action that the environment's mask does not allow."""

    def step(self, action: Any) -> Any:
        nvec = np.atleast_1d(getattr(self.action_space, "nvec", getattr(self.action_space, "n", None)))
        masks = np.split(np.array(self.env.unwrapped.action_masks()), nvec.cumsum()[:-1])
        assert all(mask[choice] for mask, choice in zip(masks, np.atleast_1d(action), strict=True)), (masks, action)
        return self.env.step(action)


def mask_by_wrapper() -> Any:
    env = MaskedChoice(by_method=True)
    del env.action_masks
    return ActionMasker(env, lambda env: env.mask)


MASKED: dict[str, Any] = {
    "info": MaskedChoice,
    "info, several integers": MaskedPair,
    "method": lambda: MaskedChoice(by_method=True),
    "method of a wrapper": mask_by_wrapper,
    "sb3-contrib": lambda: CheckAllowed(InvalidActionEnvDiscrete(dim=6, n_invalid_actions=3)),
    "sb3-contrib, several integers": lambda: CheckAllowed(
        InvalidActionEnvMultiDiscrete(dims=[3, 4], n_invalid_actions=4)
    ),
    "gymnasium's Taxi": lambda: gymnasium.make("Taxi-v4"),
}


@pytest.mark.parametrize("env", MASKED.values(), ids=MASKED)
def test_only_allowed_actions_are_taken(env: Any) -> None:
    model = make_model("MultiInputMemoryPolicy", lambda: ActionMaskObservation(env()))
    model.learn(96)  # the environment raises on an action that is not allowed
    vector, state = model.get_env(), None
    observation = vector.reset()
    for _ in range(10):
        action, state = model.predict(observation, state, deterministic=True)
        observation, *_ = vector.step(action)


def test_integer_observations_need_no_wrapper() -> None:
    model = make_model(env=lambda: gymnasium.make("stairwell/Corridor-v0", length=4)).learn(24)
    assert model.policy.features_dim == 9


def test_images_and_other_cores() -> None:
    class Image(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
        action_space = gymnasium.spaces.Box(-1, 1, (2,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, bool(np.random.default_rng().random() < 0.2), False, {}

    make_model("CnnMemoryPolicy", Image, core=LSTMConfig(width=8, layers=1)).learn(24)


def test_wrong_options_are_rejected() -> None:
    with pytest.raises(UserError, match="lstm_hidden_size is an option of an LSTM"):
        make_model(lstm_hidden_size=8)
    with pytest.raises(UserError, match=r"core: attention_dropout 0\.1: PPO needs the same policy in rollouts"):
        make_model(core=FeedbackConfig(width=8, heads=2, layers=1, memory=3, attention_dropout=0.1))
    with pytest.raises(UserError, match="has no action mask"):
        ActionMaskObservation(corridor()).reset()
    with pytest.raises(UserError, match="action masks need Discrete or MultiDiscrete actions, not Box"):
        ActionMaskObservation(gymnasium.make("Pendulum-v1"))


def test_a_dict_observation_names_the_policy_that_reads_it() -> None:
    with pytest.raises(UserError, match=r"MlpMemoryPolicy does not read Dict observations; use MultiInputMemoryPolicy"):
        make_model(env=lambda: ActionMaskObservation(InvalidActionEnvDiscrete(dim=4)))


def test_a_core_that_is_no_config_is_rejected() -> None:
    with pytest.raises(UserError, match=r'policy_kwargs\["core"\]: core must be the config of a core.*FeedbackConfig'):
        RecurrentPPO("MlpMemoryPolicy", make_vec_env(corridor), policy_kwargs={"core": {"width": 32}})
