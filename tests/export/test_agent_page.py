"""The page of agents: environments and agents equal Python in node; in Chromium agents play and a person takes over."""

from __future__ import annotations

import itertools
import json
import re
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
from stairwell.rl.acting import eval_mode, to_tensors
from stairwell.rl.agent import AgentInputs
from stairwell.rl.environments import make
from stairwell.rl.evaluation import iterate_transitions, split_seed
from stairwell.rl.render import render_episodes
from stairwell.rl.task import RLTask, RLTaskConfig
from stairwell.runs.load import load
from tests.export.test_accessibility import check, inspect_file
from tests.export.test_engine import EXPORT, run_node
from tests.export.test_page import BROWSER, measure_on_phone, run_script
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


@needs_browser
def test_shipped_agent_equals_pytorch_over_1000_steps_in_chromium(tmp_path: Path) -> None:
    one = agents()["shipped"]
    export_agent_html([one], tmp_path / "page.html")
    script = f"""
        page.seed.value = {SEED}; page.restart();
        const [card] = page.cards, steps = [];
        while (steps.length < {STEPS}) {{
          const {{ policy, value }} = card.play.output;
          if (!card.play.done) steps.push([[...policy], value, card.play.choose(false)]);
          page.step();
        }}
        return {{ steps, score: card.score.textContent }};"""
    result = run_script(tmp_path / "page.html", script)
    with eval_mode(one.agent):
        transitions = iterate_transitions(one.agent, one.task.make_env(range(1), SEED), SEED)
        for (policy, value, action), expected in zip(result["steps"], transitions):
            torch.testing.assert_close(torch.tensor(policy), expected.output.policy[0], rtol=0, atol=2e-5)
            assert value == pytest.approx(float(expected.output.value[0]), abs=2e-5)
            assert action == int(expected.action[0, 0])
    assert result["score"] == "agent: mean return 1 in 47 episodes "


@needs_browser
def test_person_takes_over_the_keys(tmp_path: Path) -> None:
    """The model reads along: its policy is that of PyTorch after the actions of the person."""
    models = [
        make_agent("maze-navigation"),
        PageAgent("LSTM", make_agent("maze-navigation", "lstm").agent, make_task("maze-navigation")),
    ]
    export_agent_html(models, tmp_path / "page.html")
    actions = [0, 1, 0, 2, 2, 0, 0, 1] * 9
    result = run_script(
        tmp_path / "page.html",
        f"""
        const steps = [], keys = ["ArrowUp", "ArrowLeft", "ArrowRight"], cards = page.cards;
        page.seed.value = {SEED}; page.seed.dispatchEvent(new Event("change"));
        for (const action of {actions}) {{
          steps.push(cards.map(({{ play }}) => [[...play.output.policy], play.output.value, play.inputs.observation]));
          if (action) press(keys[action]); else document.querySelector('[data-action="0"]').click();
        }}
        const status = cards[0].status.textContent, spoken = live(), score = cards[0].score.textContent;
        press("p");
        await wait(600);
        const playing = page.playButton.textContent, before = cards[0].play.steps;
        press("p");
        press("r");
        const restarted = cards[0].play.steps, first = cards[0].play.inputs;
        return {{ steps, status, spoken, score, playing, before, restarted, first }};""",
    )
    env = make_task("maze-navigation").make_env(range(1), SEED)
    observation, rewards, start, length = env.reset(), np.zeros(1, np.float32), True, 0
    states = [one.agent.init_state(1) for one in models]
    last_action = torch.zeros(1, 1, 1, dtype=torch.int64)
    frames = iter(result["steps"])
    for action in actions:
        if length == 70:
            # A key after the end of an episode starts the next one.
            next(frames)
            length = 0
            continue
        frame = next(frames)
        for m, one in enumerate(models):
            inputs = AgentInputs(to_tensors(observation), last_action[:, 0], torch.from_numpy(rewards))
            with torch.no_grad():
                output, states[m] = one.agent(
                    inputs.map(lambda values: values[:, None]), states[m], torch.tensor([[start]])
                )
            policy, value, seen = frame[m]
            assert seen == observation["observation"][0].tolist()
            torch.testing.assert_close(torch.tensor(policy), output.policy[0, 0], rtol=0, atol=2e-5)
            assert value == pytest.approx(float(output.value[0, 0]) * one.agent.reward_scale, abs=5e-5)
        step = env.step(np.array([action]))
        observation, rewards, start, length = step.observations, step.rewards, bool(step.start[0]), length + 1
        last_action = torch.full((1, 1, 1), action)
    assert result["status"].startswith("Step 1 You: left") and "you: mean return" in result["score"]
    assert result["spoken"].startswith("maze-navigation: You: left.") and "LSTM: You: left." in result["spoken"]
    assert result["playing"].endswith("Pause") and result["before"] > len(actions) - 1
    assert result["restarted"] == 0 and result["first"]["observation"] == result["steps"][0][0][2]


MEASURE = """<script>setTimeout(() => {
  const right = Math.max(...[...document.querySelectorAll("main *")].map((e) => e.getBoundingClientRect().right));
  const images = [...document.querySelectorAll("svg.scene, canvas")].map((e) => e.getBoundingClientRect().width);
  parent.postMessage(JSON.stringify({ width: innerWidth, right, images }), "*");
}, 500);</script></body>"""


@needs_browser
@pytest.mark.parametrize("name", ["corridor of three shuffled doors", "maze-navigation-easy", "recorded"])
def test_page_fits_a_phone(name: str, tmp_path: Path) -> None:
    one = agents().get(name) or recorded_agent()
    export_agent_html([one], tmp_path / "page.html")
    layout = measure_on_phone(tmp_path / "page.html", MEASURE)
    assert layout["width"] == 390 and layout["right"] <= 390
    assert layout["images"] and min(layout["images"]) > 80


@needs_browser
def test_playing_page_is_accessible(tmp_path: Path) -> None:
    export_agent_html([agents()["maze-navigation"]], tmp_path / "page.html")
    tree = inspect_file(tmp_path, "page.press(0); page.press(2);")
    check(tree)
    stops = [stop["name"] for stop in tree["stops"]]
    assert stops[1:6] == ["← left", "↑ forward", "→ right", "▶ Play", "Restart"]
    assert any("in the environment: row " in node["name"] for node in tree["tree"] if node["role"] == "image")


def recorded_agent() -> PageAgent:
    """Return an agent of CartPole, which has images."""
    pytest.importorskip("pygame")
    options = {"env": "CartPole-v1", "max_episode_steps": 500}
    task = RLTask(RLTaskConfig(**options))
    torch.manual_seed(0)
    core = config_type("feedback")(width=8, layers=1, heads=2, memory=3)
    config = AgentConfig(core=core, observation_space=task.observation_space, action_space=task.action_space)
    return PageAgent("Feedback", Agent(config, "reference").eval(), task)


def test_other_environments_are_recorded(tmp_path: Path) -> None:
    one = recorded_agent()
    html = make_agent_page([one, one], "Poles", episodes=2)
    match = re.search(r'id="data">(.*?)</script>', html)
    assert match is not None and "<title>Poles</title>" in html
    episodes = json.loads(match[1])["episodes"]
    assert [len(cards) for cards in episodes] == [2, 2]
    frames = list(render_episodes(one.agent, one.task, 2, split_seed(0, "test")))
    for number, (card, _) in enumerate(episodes):
        wanted = [frame for frame in frames if frame.episode == number]
        assert [step["reward"] for step in card["steps"]] == [frame.reward for frame in wanted] and card["done"]
        assert [step["action"] for step in card["steps"]] == [frame.action for frame in wanted]
        assert [step["value"] for step in card["steps"]] == pytest.approx([frame.value for frame in wanted], rel=1e-3)
        assert card["steps"][0]["patch"]["image"].startswith("data:image/png")


@needs_browser
def test_recorded_episodes_are_stepped_through(tmp_path: Path) -> None:
    export_agent_html([recorded_agent()], tmp_path / "page.html", episodes=2)
    script = """
        const [first, second] = document.querySelectorAll("main section");
        const slider = second.querySelector("input[type=range]");
        slider.value = 1; slider.dispatchEvent(new Event("input"));
        const titles = [...document.querySelectorAll("main h2")].map((title) => title.textContent);
        const strips = first.querySelectorAll(".tracks svg").length;
        return { titles, step: second.querySelector(".description").textContent, strips };"""
    result = run_script(tmp_path / "page.html", script)
    assert result["titles"] == ["Episode 1", "Episode 2"] and result["step"].startswith("Step 1 of ")
    assert result["strips"] == 3


def test_mistakes_are_named() -> None:
    corridor = agents()["corridor"]
    with pytest.raises(UserError, match="'maze-navigation' and 'corridor' were trained in different environments"):
        make_agent_page([corridor, agents()["maze-navigation"]])
    with pytest.raises(UserError, match="--episodes: the page plays this environment itself"):
        make_agent_page([corridor], episodes=3)
    with pytest.raises(UserError, match="at least one agent"):
        make_agent_page([])
