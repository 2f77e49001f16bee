"""Agents: any space in, any action out, on any core; a session says what the training pass says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stairwell import FeedbackConfig, configs
from stairwell.cores import CORES
from stairwell.decode import Session
from stairwell.rl.agent import Agent, AgentConfig, AgentOutput, Inputs, compressed
from stairwell.rl.leaves import leaves, shape
from stairwell.rl.policies import Choices, Gaussian
from stairwell.rl.rollouts import embedded
from stairwell.rl.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from stairwell.state import State
from tests import invariants

EVERYTHING = Dict(
    (
        ("color", Discrete(3)),
        ("view", MultiDiscrete((2, 3, 4, 2), (2, 2))),
        ("speed", Box((3,), -2.0, 2.0)),
        ("picture", Box((5, 6, 3), 0, 255, "uint8")),
        ("pair", Tuple((Discrete(2), Box((), -1.0, 1.0)))),
    )
)
ACTIONS: list[Space] = [Discrete(3), MultiDiscrete((2, 4)), Box((2,), -1.0, 3.0)]


def agent_of(core: Any, observation: Space = EVERYTHING, action: Space = ACTIONS[0], **options: Any) -> Agent:
    torch.manual_seed(0)
    config = AgentConfig(core=core, observation=observation, action=action, **options)
    made = Agent(config).double().eval()
    invariants.scramble(made)
    return made


def core_of(name: str) -> Any:
    kind = CORES[name].config
    options = {"width": 8, "heads": 2, "layers": 2, "inner": 9, "memory": 3, "chunk": 2}
    return kind(**{key: value for key, value in options.items() if key in configs.field_types(kind)})


def observed(agent: Agent, B: int, T: int, seed: int = 0) -> Inputs:
    """Whatever the agent can see, drawn at random."""
    rng = np.random.default_rng(seed)
    seen = {}
    for path, leaf in agent.leaves.items():
        size = (B, T, *shape(leaf))
        if isinstance(leaf, Box):
            low, high = (0, 256) if leaf.dtype == "uint8" else (-1, 1)
            seen[path] = torch.from_numpy(rng.uniform(low, high, size).astype(leaf.dtype))
        else:
            sizes = leaf.n if isinstance(leaf, Discrete) else np.reshape(leaf.sizes, leaf.shape)
            seen[path] = torch.from_numpy(rng.integers(0, sizes, size))
    action = agent.actions.sample(
        torch.from_numpy(rng.normal(size=(B * T, agent.actions.P))),
        torch.from_numpy(rng.random((B * T, agent.actions.noises))),
    )
    return Inputs(seen, action.view(B, T, -1), torch.from_numpy(rng.normal(size=(B, T))))


def at(inputs: Inputs, t: int) -> Inputs:
    return inputs.map(lambda values: values[:, t])


def by_session(agent: Agent, inputs: Inputs, state: State, start: Tensor) -> tuple[AgentOutput, State]:
    session, found = Session(agent, state), []
    for t in range(start.shape[1]):
        session.reset(start[:, t])
        found.append(
            agent.heads(session.step_vectors(embedded(agent, at(inputs, t), session.count, torch.device("cpu"))))
        )
    return AgentOutput(*(torch.stack(parts, 1) for parts in zip(*found))), session.state()


@pytest.mark.parametrize("name", sorted(CORES))
@torch.no_grad()
def test_a_session_says_what_the_training_pass_says_from_the_same_state(name: str) -> None:
    agent = agent_of(core_of(name), last_action=True, last_reward=True)
    inputs = observed(agent, 4, 9)
    start = torch.rand(4, 9) < 0.25
    _, before = agent(observed(agent, 4, 5, seed=1), agent.init_state(4))
    said, after = agent(inputs, before, start)
    ours, state = by_session(agent, inputs, before, start)
    torch.testing.assert_close(ours, said, **invariants.CLOSE)
    for (path, tensor), (_, other) in zip(after.tensors(), state.tensors(), strict=True):
        torch.testing.assert_close(other, tensor, **invariants.CLOSE, msg=path)


@pytest.mark.parametrize("name", sorted(CORES))
@torch.no_grad()
def test_nothing_of_an_episode_is_left_in_the_next(name: str) -> None:
    """Memory, the action before and the reward before: whatever came before a start changes nothing after it."""
    agent = agent_of(core_of(name), last_action=True, last_reward=True)
    start = torch.zeros(2, 8, dtype=torch.bool)
    start[:, 3] = True
    one, other = observed(agent, 2, 8), observed(agent, 2, 8, seed=5)
    mixed = Inputs(
        {
            path: torch.cat([other.observation[path][:, :3], values[:, 3:]], 1)
            for path, values in one.observation.items()
        },
        # The action and reward that come with the first frame belong to the episode before.
        torch.cat([other.action[:, :4], one.action[:, 4:]], 1),
        torch.cat([other.reward[:, :4], one.reward[:, 4:]], 1),
    )
    said, after = agent(one, agent.init_state(2), start)
    again, other_after = agent(mixed, agent.init_state(2), start)
    assert not torch.equal(said.value[:, :3], again.value[:, :3])
    torch.testing.assert_close(again.value[:, 3:], said.value[:, 3:], rtol=0, atol=0)
    for (_, tensor), (_, same) in zip(after.tensors(), other_after.tensors(), strict=True):
        assert torch.equal(tensor, same)


def test_the_action_and_reward_before_are_read_when_asked_for() -> None:
    for options in ({"last_action": True}, {"last_reward": True}, {}):
        agent = agent_of(core_of("lstm"), **options)
        one = observed(agent, 1, 4)
        changed = one._replace(action=2 - one.action, reward=one.reward + 1)
        said, _ = agent(one, agent.init_state(1))
        again, _ = agent(changed, agent.init_state(1))
        assert torch.equal(said.value[:, 0], again.value[:, 0])
        assert torch.equal(said.value[:, 1:], again.value[:, 1:]) == (not options)


def test_rewards_of_any_size_are_read_on_a_scale_that_suits_the_network() -> None:
    rewards = torch.tensor([0.0, 1.0, -1.0, 3.0, -7.0, 1023.0])
    assert compressed(rewards).tolist() == [0, 1, -1, 2, -3, 10]
    assert compressed(torch.tensor(1e9)) < 30
    agent = agent_of(core_of("feedback"), last_reward=True)
    inputs = agent.nothing(1, 3)._replace(reward=torch.full((1, 3), 1e9))
    assert agent.embed(inputs, torch.arange(3)[None]).abs().max() < 1000


@pytest.mark.parametrize("action", ACTIONS)
def test_every_leaf_of_an_observation_is_read_and_every_parameter_learns(action: Space) -> None:
    agent = agent_of(core_of("feedback"), action=action, last_action=True, last_reward=True)
    inputs = observed(agent, 2, 6)
    said, _ = agent(inputs, agent.init_state(2))
    log = agent.actions.log_probability(said.policy, inputs.action)
    (log.sum() + said.value.sum() + agent.actions.entropy(said.policy).sum()).backward()
    silent = [name for name, parameter in agent.named_parameters() if not parameter.grad.abs().sum()]
    assert not silent
    for path in leaves(EVERYTHING):
        seen = {**inputs.observation, path: inputs.observation[path].roll(1, 1)}
        assert not torch.equal(agent(inputs._replace(observation=seen), agent.init_state(2))[0].value, said.value), path


def test_pictures_may_have_their_channels_first_or_last_and_be_large() -> None:
    for size in ((3, 20, 30), (20, 30, 3), (64, 64, 1), (7, 7, 3)):
        agent = agent_of(core_of("lstm"), observation=Box(size, 0, 255, "uint8"))
        assert agent(observed(agent, 2, 3), agent.init_state(2))[0].value.shape == (2, 3)
        assert agent.encoders[0].linear.in_features <= 32 * 8 * 8


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((3, 2, 5))])
def test_choices_agree_with_torchs_own_distributions(space: Any) -> None:
    choices, rng = Choices(space), np.random.default_rng(0)
    policy = torch.from_numpy(rng.normal(size=(1, choices.P))).expand(40_000, -1)
    actions = choices.sample(policy, torch.from_numpy(rng.random((40_000, choices.A))))
    theirs = [torch.distributions.Categorical(logits=part) for part in policy[:1].split(choices.sizes, -1)]
    for place, own in enumerate(theirs):
        counts = actions[:, place].bincount(minlength=choices.sizes[place]) / len(actions)
        torch.testing.assert_close(counts.double(), own.probs[0], rtol=0, atol=0.01)
    chosen = actions[:7]
    log = sum(own.log_prob(chosen[:, place]) for place, own in enumerate(theirs))
    torch.testing.assert_close(choices.log_probability(policy[:7], chosen), log)
    torch.testing.assert_close(choices.entropy(policy[:1]), sum(own.entropy() for own in theirs))
    assert choices.likeliest(policy[:1])[0].tolist() == [int(own.probs.argmax()) for own in theirs]
    assert choices.to_environment(chosen).shape == ((7,) if isinstance(space, Discrete) else (7, 3))


def test_gaussians_agree_with_torchs_own_and_keep_to_the_box() -> None:
    gaussian, rng = Gaussian(Box((2,), (-1.0, 0.0), (3.0, 1.0))), np.random.default_rng(0)
    gaussian.log_deviation.data[:] = torch.tensor([0.3, -1.0])
    policy = torch.tensor([[0.5, -0.2]], dtype=torch.float64).expand(40_000, -1)
    actions = gaussian.sample(policy, torch.from_numpy(rng.random((40_000, 4)))).detach()
    torch.testing.assert_close(actions.mean(0), policy[0], rtol=0, atol=0.02)
    torch.testing.assert_close(actions.std(0), gaussian.deviation().detach().double(), rtol=0.02, atol=0)
    theirs = torch.distributions.Normal(policy[:5], gaussian.deviation())
    torch.testing.assert_close(gaussian.log_probability(policy[:5], actions[:5]), theirs.log_prob(actions[:5]).sum(-1))
    torch.testing.assert_close(gaussian.entropy(policy[:5]), theirs.entropy().sum(-1))
    given = gaussian.to_environment(torch.tensor([[0.0, 0.0], [9.0, -9.0], [-1.0, 1.0]]))
    np.testing.assert_allclose(given, [[1.0, 0.5], [3.0, 0.0], [-1.0, 1.0]])
    integers = Gaussian(Box((1,), 0, 3, "int64")).to_environment(torch.tensor([[-2.0], [-0.9], [0.9], [0.2]]))
    assert integers.dtype == np.int64 and integers.tolist() == [[0], [0], [3], [2]]
    unbounded = Gaussian(Box((1,)))
    np.testing.assert_allclose(unbounded.to_environment(torch.tensor([[7.0]])), [[7.0]])


def test_what_does_not_fit_the_spaces_is_refused_by_name() -> None:
    agent = agent_of(FeedbackConfig(width=8, heads=2, layers=1, memory=2))
    inputs = observed(agent, 2, 3)
    seen = {**inputs.observation, "observation.speed": inputs.observation["observation.speed"][..., :2]}
    with pytest.raises(ValueError, match=r"'observation.speed' is \(2, 3, 2\); it must be \(2, 3, 3\)"):
        agent(inputs._replace(observation=seen), agent.init_state(2))
    seen = {path: values for path, values in inputs.observation.items() if path != "observation.color"}
    with pytest.raises(ValueError, match=r"the observation has no .observation\.color."):
        agent(inputs._replace(observation=seen), agent.init_state(2))
    with pytest.raises(ValueError, match="actions of Dict are not supported"):
        agent_of(FeedbackConfig(width=8, heads=2, layers=1), action=EVERYTHING)
    with pytest.raises(ValueError, match="a step takes a vector of width 8 for each of 2 rows"):
        Session(agent, agent.init_state(2)).step_vectors(torch.zeros(2, 7))


def test_a_session_of_an_agent_refuses_other_parameters() -> None:
    agent = agent_of(core_of("feedback"))
    session = Session(agent, agent.init_state(1))
    with torch.no_grad():
        agent.policy.bias.add_(1)
    with pytest.raises(RuntimeError, match="weights have changed"):
        session.step_vectors(torch.zeros(1, 8, dtype=torch.float64))
