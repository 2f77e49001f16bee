"""The task `rl`: any environment, stairwell's own or one of gymnasium's by name.

    stairwell train rl/feedback --task.env corridor --task.length 40
    stairwell train rl/feedback --task.env MiniGrid-MemoryS9-v0

What a run keeps of it are the spaces, the environment's name and its options: an agent is loaded without its
environment, and without gymnasium.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from stairwell import configs
from stairwell.errors import UserError
from stairwell.rl.make_env import full_name, open_rows
from stairwell.tasks import TASKS
from stairwell.tasks.base import Kind, Known
from stairwell.tasks.generated import check_at_least
from stairwell.text import Vocabulary
from stairwell.train.distributed import Distributed
from stairwell.train.loop import Trainer, Watch
from stairwell.train.objective import Phase
from stairwell.train.run import Run

from . import spaces
from .agent import Agent, Inputs
from .config import AgentTrainConfig
from .environments import ENVIRONMENTS, make
from .environments.batched import uniform
from .episodes import Returns, split_seed, watched
from .learners import LEARNERS
from .rollouts import Rollouts, as_tensors
from .rows import BrokenEnvironment, Rows
from .spaces import Space

TASKS["rl"] = ("stairwell.rl.task", "Reinforcement", "learn from rewards in an environment: mazes, gymnasium's")

ROWS = 64  # of an evaluation, and of a look around
LOOK = 64  # frames of it
MOST_FRAMES = 10**10  # of an evaluation: days on a laptop
OPTIONS = ("length", "colors", "shuffled", "limit", "side", "targets", "steps")


@dataclass(frozen=True, kw_only=True)
class Config(configs.Config):
    env: str = "corridor"
    "corridor, passive-t-maze, maze-navigation(-easy), water-maze, any name in gymnasium, or your own: module:Name-v0"
    length: int | None = None
    "corridors: steps to the doors"
    colors: int | None = None
    "corridor: colors of objects, and doors"
    shuffled: bool | None = None
    "corridor: doors change places from episode to episode"
    limit: int | None = None
    "corridor: steps until an episode is cut short"
    side: int | None = None
    "mazes: cells along each side"
    targets: int | None = None
    "maze navigation: objects, each of its own color"
    steps: int | None = None
    "mazes: steps of an episode"
    options: str = ""
    "options of any other environment, such as size=9,render_fps=4"
    longest: int = 100_000
    "steps after which an episode counts as one that never ends"
    valid_episodes: int = 200
    "episodes of a validation"
    test_episodes: int = 500
    "episodes of an evaluation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, longest=self.longest, valid_episodes=self.valid_episodes, test_episodes=self.test_episodes)

    def given(self) -> dict[str, Any]:
        """The environment's own options, as far as they are set."""
        name, found = full_name(self.env), {}
        known = {field.name for field in fields(ENVIRONMENTS[name].config)} if name in ENVIRONMENTS else set()
        for option in OPTIONS:
            if (value := getattr(self, option)) is None:
                continue
            if option not in known:
                advice = f"it has: {', '.join(sorted(known))}" if known else "give its options in --task.options"
                raise UserError(f"--task.{option} is no option of {name}; {advice}")
            found[option] = value
        return found | parse_options(self.options)


def parse_options(text: str) -> dict[str, Any]:
    """name=value pairs; values as Python writes them, or else text."""
    found = {}
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"task.options must be name=value pairs, not '{text}'")
        try:
            found[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            found[name.strip()] = value.strip()
    return found


class Reinforcement:
    """The environment is opened by whoever plays in it first."""

    kind: Kind = "agent"
    reads_files: ClassVar[bool] = True  # spaces are found out from the environment, and kept
    primary_metric, higher_is_better = "return", True
    vocabularies: ClassVar[Mapping[str, Vocabulary]] = {}

    def __init__(self, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        self.config = config
        config.given()  # options that no such environment has are told before all else
        self._facts = facts

    @classmethod
    def kept(cls, config: Config, known: Known) -> Reinforcement:
        return cls(config, known.facts)

    def with_config(self, config: Config) -> Reinforcement:
        return Reinforcement(config)

    def with_data(self, path: str) -> Reinforcement:
        raise UserError("an agent is evaluated in its environment; leave out --data")

    def facts(self) -> Mapping[str, Any]:
        """Spaces, name and options: all that an agent needs to know of its environment."""
        if self._facts is None:
            rows = self.open(range(1), 0)
            self._facts = {
                "env": full_name(self.config.env),
                "options": self.config.given(),
                "observation": rows.observation_space.to_json(),
                "action": rows.action_space.to_json(),
                "left_out": rows.left_out,
            }
            rows.close()
        return self._facts

    @property
    def observation(self) -> Space:
        return spaces.from_json(self.facts()["observation"])

    @property
    def action(self) -> Space:
        return spaces.from_json(self.facts()["action"])

    def open(self, rows: range, seed: int, **more: Any) -> Rows:
        opened = open_rows(self.config.env, {**self.config.given(), **more}, rows, seed)
        if self._facts is not None:
            for name, found in (("observation", opened.observation_space), ("action", opened.action_space)):
                if found != (expected := spaces.from_json(self._facts[name])):
                    opened.close()
                    raise UserError(
                        f"environment '{full_name(self.config.env)}' has changed since the training: its {name} space "
                        f"is {found}, but the agent was trained with {expected}; use the version it was trained with"
                    )
        return opened

    def describe_options(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.config.given().items())

    def describe(self) -> str:
        about = self.describe_options()
        about = f"{full_name(self.config.env)}{f' ({about})' if about else ''}, episodes without end"
        left = self.facts()["left_out"]
        return f"{about}; it does not read {', '.join(left)}, which is text" if left else about

    def fingerprint(self) -> dict[str, str]:
        return {}

    def returns(self, seed: int, rows: int) -> Returns:
        config = self.config
        episodes = {"valid": config.valid_episodes, "test": config.test_episodes}
        self.check_frames(episodes)
        return Returns(lambda count, own: self.open(range(count), own), seed, episodes, rows, config.longest)

    def check_frames(self, episodes: Mapping[str, int]) -> None:
        """Refuse episodes that never end, and so many that they would be played for days."""
        steps, most, name = 1, self.config.longest, full_name(self.config.env)
        if name in ENVIRONMENTS:  # of others nothing is known before they are played
            steps = make(name, range(1), 0, **self.config.given()).shortest
        if steps > most:
            raise UserError(
                f"an episode of {name} has at least {steps:,} steps ({self.describe_options()}), and --task.longest "
                f"allows {most:,}; make it shorter, or raise --task.longest"
            )
        for split, count in episodes.items():
            if steps * count > MOST_FRAMES:
                raise UserError(
                    f"--task.{split}_episodes {count:,}: at least {steps * count:,} frames would be played, and "
                    f"at most {MOST_FRAMES:,} are; lower it"
                )

    def example(self, agent: Agent, split: str, rows: int, length: int) -> tuple[Inputs, Tensor]:
        """What an agent sees at the beginning of a split, and where episodes begin."""
        seed = split_seed(0, split)
        opened = self.open(range(rows), seed)
        try:
            return watched(agent, opened, seed, length)
        finally:
            opened.close()

    def look_around(self, agent: Agent, seed: int) -> None:
        """Before a training: what there is to see, by random actions, the same in every process. An environment that
        breaks down will do so again in the training, which tells it."""
        own = split_seed(seed, "train")
        rows = self.open(range(ROWS), own)
        nothing = agent.policy.weight.new_zeros(ROWS, agent.actions.P)
        try:
            seen = [as_tensors(rows.begin())]
            for t in range(LOOK):
                noise = torch.from_numpy(uniform(own, range(ROWS), t, agent.actions.noises)).to(nothing.device)
                action = agent.actions.sample(nothing, noise)
                seen.append(as_tensors(rows.step(agent.actions.to_environment(action)).observations))
        except BrokenEnvironment:
            return
        finally:
            rows.close()
        agent.standardize({path: torch.cat([frame[path] for frame in seen]) for path in seen[0]})

    def batch_source(
        self, agent: Agent, config: AgentTrainConfig, world: Distributed | None = None
    ) -> Callable[[range, int, int], Rollouts]:
        def open_feed(rows: range, batch: int, seed: int) -> Rollouts:
            own = split_seed(seed, "train")
            return Rollouts(agent, self.open(rows, own), rows, own, config, self.config.longest, world)

        return open_feed


def agent_trainer(
    agent: Agent, tasks: list[Reinforcement], config: AgentTrainConfig, run: Run, world: Distributed | None = None
) -> Trainer:
    """A trainer of an agent in an environment."""
    if len(tasks) > 1:
        raise UserError("an agent has one environment; leave --train.finetune_task empty")
    returns = tasks[0].returns(config.seed, config.valid_batch)
    if agent.config.normalize_observations and agent.reads_symbols:
        tasks[0].look_around(agent, config.seed)
    phase = Phase(tasks[0].batch_source(agent, config, world), returns)
    trainer = Trainer(LEARNERS[config.learner](agent, config), [phase], config, run, world)
    returns.watch = trainer.tell
    return trainer


def evaluate_agent(
    agent: Agent, task: Reinforcement, split: Any, rows: int, segment: int, watch: Watch | None = None
) -> dict[str, float]:
    # One row, the usual for a stream of text, would only be slow here.
    returns = task.returns(0, rows if rows > 1 else ROWS)
    returns.watch = watch
    return returns(agent, split)
