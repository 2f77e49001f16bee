"""The page of agents: under node the environments and the agents equal Python, in Chromium agents play and can be driven."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.cores import config_type
from stairwell.errors import UserError
from stairwell.export.agent_page import (
    PageAgent,
    environment_json,
    export_agent_html,
    make_agent_page,
    pack_agent,
)
from stairwell.rl import Agent, AgentConfig
from stairwell.rl.acting import eval_mode
from stairwell.rl.environments import make
from stairwell.rl.evaluation import iterate_transitions
from stairwell.rl.task import RLTask, RLTaskConfig
from stairwell.runs.load import load
from tests.export.test_engine import EXPORT, run_node
from tests.export.test_page import BROWSER, run_in_page
from tests.invariants import scramble

SEED, STEPS = 5, 1000
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "corridor": {"length": 3},
    "corridor of three shuffled doors": {"env": "corridor", "length": 2, "colors": 3, "shuffled": True, "max_steps": 6},
    "passive-t-maze": {"length": 4},
    "maze-navigation": {"side": 3, "targets": 3, "max_steps": 70},
    "maze-navigation-easy": {},
    "water-maze": {"side": 4, "max_steps": 30},
}
CORES = {"corridor": "lstm", "maze-navigation-easy": "cached-staircase", "water-maze": "transformer-xl"}
each_environment = pytest.mark.parametrize("name", ENVIRONMENTS)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")


def make_task(name: str) -> RLTask:
    return RLTask(RLTaskConfig(**{"env": name, **ENVIRONMENTS[name]}))


def make_agent(name: str, core: str | None = None) -> PageAgent:
    """Return an agent with random parameters and statistics of observations and rewards."""
    config = config_type(core or CORES.get(name, "feedback"))
    sizes = {"width": 16, "layers": 2, "heads": 2, "memory": 6, "chunk": 3, "passes": 2}
    task = make_task(name)
    torch.manual_seed(0)
    agent = Agent(
        AgentConfig(
            core=config(**{key: value for key, value in sizes.items() if key in config.__dataclass_fields__}),
            observation_space=task.observation_space,
            action_space=task.action_space,
            last_action=name != "corridor",
            last_reward=name != "corridor",
        ),
        "reference",
    )
    scramble(agent)
    # Not so sure that it always does the same.
    agent.policy.weight.data *= 0.3
    agent.policy.bias.data *= 0.3
    agent.return_variance.fill_(4.0)
    agent.return_count.fill_(10)
    task.fit_observation_statistics(agent, 0)
    return PageAgent(name, agent.eval(), task)


def environment_of(task: RLTask) -> dict[str, Any]:
    return environment_json(task.facts()["env"], task.facts()["options"])


@cache
def agents() -> dict[str, PageAgent]:
    shipped = PageAgent("shipped", *load("corridor-feedback", "cpu", "reference"))  # type: ignore[arg-type]
    return {name: make_agent(name) for name in ENVIRONMENTS} | {"shipped": shipped}


def random_actions(name: str) -> list[int]:
    task = make_task(name)
    return np.random.default_rng(1).integers(0, task.action_space.n, STEPS).tolist()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Frames of random actions by name, and frames of agents by `agent name`."""
    cases: dict[str, dict[str, Any]] = {}
    for name in ENVIRONMENTS:
        cases[name] = {"environment": environment_of(make_task(name)), "seed": SEED, "actions": random_actions(name)}
    for name, one in agents().items():
        packed = pack_agent(one.agent)
        model = {"header": packed.header, "block": packed.block}
        cases[f"agent {name}"] = {"environment": environment_of(one.task), "seed": SEED, "steps": STEPS, **model}
    file = tmp_path_factory.mktemp("agents") / "cases.json"
    file.write_text(json.dumps(list(cases.values())))
    return dict(zip(cases, run_node(Path(__file__).with_name("agent_cases.js"), EXPORT, file)))


@each_environment
def test_environment_equals_python(name: str, results: dict[str, Any]) -> None:
    facts = make_task(name).facts()
    env = make(facts["env"], range(1), SEED, **facts["options"])
    first, *frames = results[name]
    assert first["observation"] == env.reset()[0].tolist()
    rewards = 0.0
    for action, frame in zip(random_actions(name), frames, strict=True):
        observations, reward, terminated, truncated = env.step(np.array([action]))
        if terminated[0] or truncated[0]:
            observations = env.reset(terminated | truncated)
        expected = (observations[0].tolist(), float(reward[0]), bool(terminated[0]), bool(truncated[0]))
        assert (frame["observation"], frame["reward"], frame["terminated"], frame["truncated"]) == expected
        rewards += abs(expected[1])
    assert rewards >= 3 and env.episode[0] > 2


@pytest.mark.parametrize("name", [*ENVIRONMENTS, "shipped"])
def test_agent_equals_pytorch_over_1000_steps(name: str, results: dict[str, Any]) -> None:
    """The agent in JavaScript plays the same episodes with the same actions."""
    agent, task = agents()[name].agent, agents()[name].task
    actions = set()
    with eval_mode(agent):
        transitions = iterate_transitions(agent, task.make_env(range(1), SEED), SEED)
        for frame, expected in zip(results[f"agent {name}"], itertools.islice(transitions, STEPS), strict=True):
            (observation,) = expected.inputs.observation.values()
            assert frame["observation"] == observation[0].tolist() and frame["start"] == bool(expected.start[0])
            torch.testing.assert_close(torch.tensor(frame["policy"]), expected.output.policy[0], rtol=0, atol=2e-5)
            value = float(expected.output.value[0]) * agent.reward_scale
            assert frame["value"] == pytest.approx(value, abs=2e-5)
            assert (frame["action"], frame["reward"]) == (int(expected.action[0, 0]), float(expected.step.rewards[0]))
            actions.add(frame["action"])
    assert len(actions) > 1
