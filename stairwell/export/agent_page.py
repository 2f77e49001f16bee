"""Export agents as one HTML file: they play stairwell's environments in the browser, or recorded episodes are shown.

    export_agent_html([PageAgent("Feedback", agent, task)], "page.html")

In stairwell's own environments, which `env_*.js` computes, the exported model chooses the actions and a person can take
over. Of other environments, episodes are recorded when the page is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from stairwell.cores import entry, name_of
from stairwell.errors import UserError
from stairwell.export.html import core_facts, numbered, write_page
from stairwell.export.pack import PackedModel, pack
from stairwell.report.colors import assign_colors
from stairwell.report.episode import read_episodes
from stairwell.report.templates import render
from stairwell.rl.agent import Agent
from stairwell.rl.environments import ENVIRONMENTS, make
from stairwell.rl.environments.corridor import Corridor
from stairwell.rl.environments.grid import COLORS
from stairwell.rl.environments.maze import MazeNavigation, MazeNavigationEasy
from stairwell.rl.environments.water_maze import WaterMaze
from stairwell.rl.flatten import leaf_nvec
from stairwell.rl.spaces import Box
from stairwell.rl.task import RLTask

PLAY_SCRIPTS = (
    "export/engine.js", "export/agent_engine.js", "export/env_random.js", "export/env_corridor.js",
    "export/env_maze.js", "export/env_water_maze.js", "export/agent_play.js", "report/dom.js", "report/grid.js",
    "export/panels.js", "export/scene.js", "export/agent_page.js",
)  # fmt: skip
EPISODE_SCRIPTS = (
    "report/dom.js", "report/tip.js", "report/player.js", "report/episodes.js", "export/recorded_page.js"
)  # fmt: skip
EPISODES = 3  # recorded per agent
PLAY_LEAD = (
    "{names} in the environment, computed in this page. Watch, or take over the keys: the model keeps observing, and "
    "Play hands the agent back to it."
)
EPISODES_LEAD = (
    "Recorded episodes, step by step: the observation, the actions and rewards, the expected return and the attention "
    "to the frames in memory."
)


@dataclass(frozen=True)
class PageAgent:
    """An agent on a page: its name there, and its task."""

    name: str
    agent: Agent
    task: RLTask


def export_agent_html(
    agents: Sequence[PageAgent], path: str | os.PathLike[str], title: str = "", episodes: int | None = None
) -> int:
    """Write the page. Return its size in bytes. The title defaults to the environment. `episodes` is the number of
    recorded ones, for other environments than stairwell's."""
    return write_page(make_agent_page(agents, title, episodes), path)


def agents_of_runs(paths: Iterable[str | os.PathLike[str]]) -> list[PageAgent]:
    """Load the agents of run folders. They are named after their cores."""
    from stairwell.runs.families import check_family
    from stairwell.runs.load import load

    agents: list[PageAgent] = []
    for path in paths:
        agent, task = load(path, device="cpu", engine="reference")
        check_family(task.family, "rl", "the page of an agent")
        assert isinstance(task, RLTask)
        agents.append(PageAgent(core_title(agent), agent, task))
    return [replace(one, name=name) for one, name in zip(agents, numbered([one.name for one in agents]))]


def make_agent_page(agents: Sequence[PageAgent], title: str = "", episodes: int | None = None) -> str:
    """Return the HTML of the page."""
    if not agents:
        raise UserError("a page needs at least one agent")
    first = agents[0].task.facts()
    for one in agents[1:]:
        facts = one.task.facts()
        if any(facts[name] != first[name] for name in ("env", "options", "observation_space", "action_space")):
            raise UserError(
                f"'{one.name}' and '{agents[0].name}' were trained in different environments; export them to separate "
                "pages"
            )
    colors = assign_colors([name_of(one.agent.config.core) or "" for one in agents])
    if first["env"] in ENVIRONMENTS:
        if episodes is not None:
            raise UserError("--episodes: the page plays this environment itself, without recorded episodes")
        content = playing_page(agents, colors)
    else:
        content = recorded_page(agents, colors, episodes or EPISODES)
    return render(
        "export/page.html",
        generator="export",
        brand="stairwell",
        title=title or title_of(first["env"]),
        models=[(one.name, color, agent_facts(one)) for one, color in zip(agents, colors)],
        **content,
    )


def core_title(agent: Agent) -> str:
    name = name_of(agent.config.core)
    return entry(name).title if name else type(agent.core).__name__


def agent_facts(one: PageAgent) -> dict[str, Any]:
    return core_facts(one.agent) | {"environment": one.task.describe()}


def playing_page(agents: Sequence[PageAgent], colors: Sequence[int]) -> dict[str, Any]:
    """Return the content of a page whose agents play in the browser."""
    facts = agents[0].task.facts()
    packed = [pack_agent(one.agent) for one in agents]
    names = [one.name for one in agents]
    listed = f"{names[0]} acts" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} act"
    return {
        "scripts": PLAY_SCRIPTS,
        "lead": PLAY_LEAD.format(names=listed),
        "data": {
            "environment": environment_json(facts["env"], facts["options"]),
            "colors": [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in COLORS],
            "models": [
                {"name": one.name, "color": color, "header": part.header}
                for one, color, part in zip(agents, colors, packed)
            ],
        },
        "blocks": [part.block for part in packed],
    }


def recorded_page(agents: Sequence[PageAgent], colors: Sequence[int], episodes: int) -> dict[str, Any]:
    """Return the content of a page that shows recorded episodes."""
    recorded = [read_episodes(one.agent, one.task, episodes) for one in agents]
    cards = [
        [{"name": one.name, "color": color, **asdict(episode)} for one, color, episode in zip(agents, colors, group)]
        for group in zip(*recorded)
    ]
    return {"scripts": EPISODE_SCRIPTS, "lead": EPISODES_LEAD, "data": {"episodes": cards}, "blocks": []}


def title_of(env: str) -> str:
    if env not in ENVIRONMENTS:
        return env
    title = ENVIRONMENTS[env].title
    return title[0].upper() + title[1:]


def environment_json(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of one of stairwell's environments as `env_*.js` reads them."""
    env: Any = make(name, range(1), 0, **options)
    config = {**vars(env.config), "max_steps": env.max_steps, "actions": list(env.action_names)}
    match env:
        case Corridor():
            return {"type": "corridor", **config}
        case MazeNavigation():
            return {"type": "maze", "easy": isinstance(env, MazeNavigationEasy), **config}
        case WaterMaze():
            return {"type": "water-maze", **config}
    raise UserError(f"a page cannot play {name}")


def pack_agent(agent: Agent) -> PackedModel:
    """Return an agent of one of stairwell's environments for `agent_engine.js`."""
    (observation,) = agent.leaves.values()
    action = agent.config.action_space
    assert not isinstance(observation, Box)
    return pack(
        agent,
        agent={
            "observation": list(leaf_nvec(observation)),
            "action": list(leaf_nvec(action)),
            "last_action": agent.config.last_action,
            "last_reward": agent.config.last_reward,
            "reward_scale": agent.reward_scale,
        },
    )
