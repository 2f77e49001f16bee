"""Agents with every observation and action space, on every core; decoding sessions equal the training pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stairwell import FeedbackConfig, configs
from stairwell.cores import CORES
from stairwell.decode import Session
from stairwell.rl.acting import embed_frame
from stairwell.rl.agent import Agent, AgentConfig, AgentInputs, AgentOutput, compress_rewards
from stairwell.rl.flatten import leaf_nvec, leaf_shape, leaf_spaces
from stairwell.rl.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from stairwell.state import State
from tests import invariants

pytestmark = pytest.mark.quick

EVERYTHING = Dict(
    (
        ("color", Discrete(3)),
        ("view", MultiDiscrete((2, 3, 4, 2), (2, 2))),
        ("speed", Box((3,), -2.0, 2.0)),
        ("image", Box((5, 6, 3), 0, 255, "uint8")),
        ("pair", Tuple((Discrete(2), Box((), -1.0, 1.0)))),
    )
)
ACTIONS: list[Space] = [Discrete(3), MultiDiscrete((2, 4)), Box((2,), -1.0, 3.0)]


def make_agent(core: Any, observation: Space = EVERYTHING, action: Space = ACTIONS[0], **options: Any) -> Agent:
    torch.manual_seed(0)
    agent = Agent(AgentConfig(core=core, observation_space=observation, action_space=action, **options)).double().eval()
    invariants.scramble(agent)
    return agent


def small_core(name: str) -> Any:
    config = CORES[name].config
    options = {"width": 8, "heads": 2, "layers": 2, "inner": 9, "memory": 3, "chunk": 2}
    return config(**{key: value for key, value in options.items() if key in configs.field_types(config)})


def random_inputs(agent: Agent, B: int, T: int, seed: int = 0) -> AgentInputs:
    """Return random observations, last actions and last rewards."""
    rng = np.random.default_rng(seed)
    observation = {}
    for path, leaf in agent.leaves.items():
        size = (B, T, *leaf_shape(leaf))
        if isinstance(leaf, Box):
            low, high = (0, 256) if leaf.dtype == "uint8" else (-1, 1)
            observation[path] = torch.from_numpy(rng.uniform(low, high, size).astype(leaf.dtype))
        else:
            high = np.reshape(leaf_nvec(leaf), leaf_shape(leaf))
            observation[path] = torch.from_numpy(rng.integers(0, high, size))
    action = agent.action_dist.sample(
        torch.from_numpy(rng.normal(size=(B * T, agent.action_dist.head_size))),
        torch.from_numpy(rng.random((B * T, agent.action_dist.noise_size))),
    )
    return AgentInputs(observation, action.view(B, T, -1), torch.from_numpy(rng.normal(size=(B, T))))


def frame(inputs: AgentInputs, t: int) -> AgentInputs:
    return inputs.map(lambda values: values[:, t])


def run_session(agent: Agent, inputs: AgentInputs, state: State, start: Tensor) -> tuple[AgentOutput, State]:
    session, outputs = Session(agent, state), []
    for t in range(start.shape[1]):
        session.reset(start[:, t])
        x = embed_frame(agent, frame(inputs, t), session.count, torch.device("cpu"))
        outputs.append(agent.heads(session.step_vectors(x)))
    return AgentOutput(*(torch.stack(parts, 1) for parts in zip(*outputs))), session.state()


@pytest.mark.parametrize("name", sorted(CORES))
@torch.no_grad()
def test_a_session_equals_the_training_pass(name: str) -> None:
    agent = make_agent(small_core(name), last_action=True, last_reward=True)
    inputs = random_inputs(agent, 4, 9)
    start = torch.rand(4, 9) < 0.25
    _, state = agent(random_inputs(agent, 4, 5, seed=1), agent.init_state(4))
    expected, expected_state = agent(inputs, state, start)
    output, next_state = run_session(agent, inputs, state, start)
    torch.testing.assert_close(output, expected, **invariants.CLOSE)
    for (path, tensor), (_, other) in zip(expected_state.tensors(), next_state.tensors(), strict=True):
        torch.testing.assert_close(other, tensor, **invariants.CLOSE, msg=path)


@pytest.mark.parametrize("name", sorted(CORES))
@torch.no_grad()
def test_an_episode_does_not_depend_on_the_previous_one(name: str) -> None:
    """Neither through the memory nor through the last action and reward."""
    agent = make_agent(small_core(name), last_action=True, last_reward=True)
    start = torch.zeros(2, 8, dtype=torch.bool)
    start[:, 3] = True
    one, other = random_inputs(agent, 2, 8), random_inputs(agent, 2, 8, seed=5)
    mixed = AgentInputs(
        {
            path: torch.cat([other.observation[path][:, :3], values[:, 3:]], 1)
            for path, values in one.observation.items()
        },
        # The last action and reward in the first frame belong to the previous episode.
        torch.cat([other.last_action[:, :4], one.last_action[:, 4:]], 1),
        torch.cat([other.last_reward[:, :4], one.last_reward[:, 4:]], 1),
    )
    output, state = agent(one, agent.init_state(2), start)
    mixed_output, mixed_state = agent(mixed, agent.init_state(2), start)
    assert not torch.equal(output.value[:, :3], mixed_output.value[:, :3])
    torch.testing.assert_close(mixed_output.value[:, 3:], output.value[:, 3:], rtol=0, atol=0)
    for (_, tensor), (_, other_tensor) in zip(state.tensors(), mixed_state.tensors(), strict=True):
        assert torch.equal(tensor, other_tensor)


def test_last_action_and_last_reward_are_read_only_if_configured() -> None:
    for options in ({"last_action": True}, {"last_reward": True}, {}):
        agent = make_agent(small_core("lstm"), **options)
        inputs = random_inputs(agent, 1, 4)
        changed = inputs._replace(last_action=2 - inputs.last_action, last_reward=inputs.last_reward + 1)
        output, _ = agent(inputs, agent.init_state(1))
        changed_output, _ = agent(changed, agent.init_state(1))
        assert torch.equal(output.value[:, 0], changed_output.value[:, 0])
        assert torch.equal(output.value[:, 1:], changed_output.value[:, 1:]) == (not options)


def test_large_rewards_are_compressed() -> None:
    rewards = torch.tensor([0.0, 1.0, -1.0, 3.0, -7.0, 1023.0])
    assert compress_rewards(rewards).tolist() == [0, 1, -1, 2, -3, 10]
    assert compress_rewards(torch.tensor(1e9)) < 30
    agent = make_agent(small_core("feedback"), last_reward=True)
    inputs = agent.zero_inputs(1, 3)._replace(last_reward=torch.full((1, 3), 1e9))
    assert agent.embed(inputs, torch.arange(3)[None]).abs().max() < 1000


@pytest.mark.parametrize("action", ACTIONS)
def test_every_leaf_is_read_and_every_parameter_has_a_gradient(action: Space) -> None:
    agent = make_agent(small_core("feedback"), action=action, last_action=True, last_reward=True)
    inputs = random_inputs(agent, 2, 6)
    output, _ = agent(inputs, agent.init_state(2))
    log_prob = agent.action_dist.log_prob(output.policy, inputs.last_action)
    (log_prob.sum() + output.value.sum() + agent.action_dist.entropy(output.policy).sum()).backward()
    without_gradient = [name for name, parameter in agent.named_parameters() if not parameter.grad.abs().sum()]
    assert not without_gradient
    for path in leaf_spaces(EVERYTHING):
        observation = {**inputs.observation, path: inputs.observation[path].roll(1, 1)}
        changed, _ = agent(inputs._replace(observation=observation), agent.init_state(2))
        assert not torch.equal(changed.value, output.value), path


def test_images_may_be_large_and_have_channels_first_or_last() -> None:
    for size in ((3, 20, 30), (20, 30, 3), (64, 64, 1), (7, 7, 3)):
        agent = make_agent(small_core("lstm"), observation=Box(size, 0, 255, "uint8"))
        assert agent(random_inputs(agent, 2, 3), agent.init_state(2))[0].value.shape == (2, 3)
        assert agent.encoders[0].linear.in_features <= 32 * 8 * 8


def test_inputs_that_do_not_match_the_spaces_raise() -> None:
    agent = make_agent(FeedbackConfig(width=8, heads=2, layers=1, memory=2))
    inputs = random_inputs(agent, 2, 3)
    observation = {**inputs.observation, "observation.speed": inputs.observation["observation.speed"][..., :2]}
    with pytest.raises(
        ValueError, match=r"'observation.speed' has shape \(2, 3, 2\); the observation space needs \(2, 3, 3\)"
    ):
        agent(inputs._replace(observation=observation), agent.init_state(2))
    observation = {path: values for path, values in inputs.observation.items() if path != "observation.color"}
    with pytest.raises(ValueError, match=r"the observation has no .observation\.color."):
        agent(inputs._replace(observation=observation), agent.init_state(2))
    with pytest.raises(ValueError, match="action space Dict is not supported"):
        make_agent(FeedbackConfig(width=8, heads=2, layers=1), action=EVERYTHING)
    with pytest.raises(ValueError, match="step_vectors takes a vector of width 8 for each of 2 streams"):
        Session(agent, agent.init_state(2)).step_vectors(torch.zeros(2, 7))


def test_a_session_raises_after_a_parameter_update() -> None:
    agent = make_agent(small_core("feedback"))
    session = Session(agent, agent.init_state(1))
    with torch.no_grad():
        agent.policy.bias.add_(1)
    with pytest.raises(RuntimeError, match="parameters have changed"):
        session.step_vectors(torch.zeros(1, 8, dtype=torch.float64))
