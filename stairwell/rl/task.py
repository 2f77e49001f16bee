"""The task `rl`: any environment, stairwell's own or gymnasium's by name.

    stairwell train rl/feedback --task.env corridor --task.length 40
    stairwell train rl/feedback --task.env MiniGrid-MemoryS9-v0

A run saves the spaces, the environment's name and its options, so loading an agent needs neither its environment nor
gymnasium.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from stairwell import configs
from stairwell.errors import UserError
from stairwell.tasks import TASKS, Split
from stairwell.tasks.base import FamilyName, SavedTask
from stairwell.tasks.generated import check_at_least
from stairwell.train.distributed import Distributed
from stairwell.train.loop import Callback, Trainer
from stairwell.train.objective import Phase
from stairwell.train.training_folder import TrainingFolder

from . import spaces
from .acting import sample_actions, to_tensors
from .action_masks import mask_nvec
from .agent import Agent, AgentInputs
from .algorithms import ALGORITHMS
from .distributions import mask_policy
from .environments import ENVIRONMENTS, make
from .evaluation import ReturnValidation, collect_inputs, split_seed
from .flatten import ACTION_MASK
from .make_env import full_name, make_vec_env
from .rollouts import RolloutSource
from .spaces import Space
from .train_config import AgentTrainConfig
from .vector_env import BrokenEnvironment, VectorEnv

TASKS["rl"] = (
    "stairwell.rl.task",
    "RLTask",
    "reinforcement learning in stairwell's mazes or any gymnasium environment",
)

NUM_ENVS = 64  # of an evaluation, and of the observation statistics
STATISTICS_FRAMES = 64  # per environment, for the observation statistics
MAX_FRAMES = 10**10  # of an evaluation: days on a laptop
ENV_OPTIONS = ("length", "colors", "shuffled", "side", "targets", "max_steps")


@dataclass(frozen=True, kw_only=True)
class RLTaskConfig(configs.Config):
    env: str = "corridor"
    "Environment: corridor, passive-t-maze, maze-navigation(-easy), water-maze, any gymnasium name, or module:Name-v0."
    length: int | None = None
    "Number of steps to the doors (corridor, passive-t-maze)."
    colors: int | None = None
    "Number of object colors, and of doors (corridor)."
    shuffled: bool | None = None
    "Shuffle the doors in each episode (corridor)."
    side: int | None = None
    "Number of cells along each side (mazes)."
    targets: int | None = None
    "Number of objects, each of its own color (maze-navigation)."
    max_steps: int | None = None
    "Number of steps after which an episode is truncated (corridor, mazes)."
    options: str = ""
    "Options of any other environment, for example size=9,render_fps=4."
    action_masks: bool = True
    "Use the action masks of an environment that gives them."
    max_episode_steps: int = 100_000
    "Maximum length of an episode; a longer one stops training with an error."
    valid_episodes: int = 200
    "Number of validation episodes."
    test_episodes: int = 500
    "Number of test episodes."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(
            1,
            max_episode_steps=self.max_episode_steps,
            valid_episodes=self.valid_episodes,
            test_episodes=self.test_episodes,
        )

    def env_options(self) -> dict[str, Any]:
        """Return the options of the environment that are set."""
        name, options = full_name(self.env), {}
        allowed = {field.name for field in fields(ENVIRONMENTS[name].config)} if name in ENVIRONMENTS else set()
        for option in ENV_OPTIONS:
            if (value := getattr(self, option)) is None:
                continue
            if option not in allowed:
                advice = f"its options are {', '.join(sorted(allowed))}" if allowed else "use --task.options"
                raise UserError(f"--task.{option} is not an option of {name}; {advice}")
            options[option] = value
        if not self.action_masks and name in ENVIRONMENTS:
            raise UserError(f"--no-task.action_masks: {name} has no action masks; leave this option out")
        return options | parse_options(self.options)


def parse_options(text: str) -> dict[str, Any]:
    """Return name=value pairs. Values are Python literals, or else strings."""
    options = {}
    for pair in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"task.options must be name=value pairs, not '{text}'")
        try:
            options[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[name.strip()] = value.strip()
    return options


class RLTask:
    """Reinforcement learning in one environment, which is made when it is first needed."""

    config_type = RLTaskConfig
    family: FamilyName = "rl"
    primary_metric, higher_is_better = "return", True

    def __init__(self, config: RLTaskConfig, facts: Mapping[str, Any] | None = None) -> None:
        self.config = config
        config.env_options()  # raises on invalid options early
        self._facts = facts

    @classmethod
    def from_saved(cls, config: RLTaskConfig, known: SavedTask) -> RLTask:
        return cls(config, known.facts)

    def with_config(self, config: RLTaskConfig) -> RLTask:
        return RLTask(config)

    def facts(self) -> Mapping[str, Any]:
        """Return the spaces, the environment's name and its options: what an agent depends on."""
        if self._facts is None:
            env = self.make_env(range(1), 0)
            action_mask = bool(mask_nvec(env.action_space)) and ACTION_MASK in env.reset()
            self._facts = {
                "env": full_name(self.config.env),
                "options": self.config.env_options(),
                "observation_space": env.observation_space.to_json(),
                "action_space": env.action_space.to_json(),
                "ignored_observations": env.ignored_observations,
                "action_mask": action_mask,
            }
            env.close()
        return self._facts

    @property
    def observation_space(self) -> Space:
        return spaces.from_json(self.facts()["observation_space"])

    @property
    def action_space(self) -> Space:
        return spaces.from_json(self.facts()["action_space"])

    @property
    def has_action_mask(self) -> bool:
        """Whether the environment gives action masks. Runs of versions that did not read them do not save it."""
        return bool(self.facts().get("action_mask", False))

    def make_env(self, indices: range, seed: int, **options: Any) -> VectorEnv:
        """Return the vector environment, and raise if its spaces have changed since training."""
        config = self.config
        env = make_vec_env(config.env, {**config.env_options(), **options}, indices, seed, config.action_masks)
        if self._facts is not None:
            for name in ("observation_space", "action_space"):
                actual, expected = getattr(env, name), spaces.from_json(self._facts[name])
                if actual != expected:
                    env.close()
                    raise UserError(
                        f"environment '{full_name(self.config.env)}' has changed since training: its {name} is "
                        f"{actual}, but the agent was trained with {expected}; use the version it was trained with"
                    )
        return env

    def describe_options(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.config.env_options().items())

    def describe(self) -> str:
        options = self.describe_options()
        text = f"{full_name(self.config.env)}{f' ({options})' if options else ''}, unlimited episodes"
        ignored = self.facts()["ignored_observations"]
        return f"{text}; text observations are ignored ({', '.join(ignored)})" if ignored else text

    def validation(self, seed: int, num_envs: int) -> ReturnValidation:
        config = self.config
        episodes = {"valid": config.valid_episodes, "test": config.test_episodes}
        self.check_episodes(episodes)
        return ReturnValidation(
            lambda count, env_seed: self.make_env(range(count), env_seed),
            seed,
            episodes,
            num_envs,
            config.max_episode_steps,
        )

    def check_episodes(self, episodes: Mapping[str, int]) -> None:
        """Raise if episodes are longer than `max_episode_steps` or an evaluation would take days."""
        steps, max_steps, name = 1, self.config.max_episode_steps, full_name(self.config.env)
        if name in ENVIRONMENTS:  # the episode length of others is unknown
            steps = make(name, range(1), 0, **self.config.env_options()).min_episode_steps
        if steps > max_steps:
            raise UserError(
                f"an episode of {name} has at least {steps:,} steps ({self.describe_options()}), but "
                f"--task.max_episode_steps is {max_steps:,}; make episodes shorter, or raise the maximum"
            )
        for split, count in episodes.items():
            if steps * count > MAX_FRAMES:
                raise UserError(
                    f"--task.{split}_episodes {count:,} needs at least {steps * count:,} frames; lower it, the maximum "
                    f"is {MAX_FRAMES:,} frames"
                )

    def example(self, agent: Agent, split: str, num_envs: int, length: int) -> tuple[AgentInputs, Tensor]:
        """Return the agent's inputs at the start of a split and where episodes start."""
        seed = split_seed(0, split)
        env = self.make_env(range(num_envs), seed)
        try:
            return collect_inputs(agent, env, seed, length)
        finally:
            env.close()

    def fit_observation_statistics(self, agent: Agent, seed: int) -> None:
        """Measure the frequencies of discrete observations with random actions, the same in every process.

        An environment that fails here fails again in training, where the error is reported."""
        seed = split_seed(seed, "train")
        env = self.make_env(range(NUM_ENVS), seed)
        action_dist = agent.action_dist
        uniform_policy = agent.policy.weight.new_zeros(NUM_ENVS, action_dist.head_size)
        try:
            frames = [to_tensors(env.reset())]
            for t in range(STATISTICS_FRAMES):
                mask = frames[-1].get(ACTION_MASK)
                policy = uniform_policy if mask is None else mask_policy(uniform_policy, mask)
                action = sample_actions(action_dist, policy, seed, range(NUM_ENVS), t)
                frames.append(to_tensors(env.step(action_dist.to_environment(action)).observations))
        except BrokenEnvironment:
            return
        finally:
            env.close()
        agent.update_observation_statistics({path: torch.cat([frame[path] for frame in frames]) for path in frames[0]})

    def batch_source(
        self, agent: Agent, config: AgentTrainConfig, world: Distributed | None = None
    ) -> Callable[[range, int, int], RolloutSource]:
        def make_source(indices: range, batch: int, seed: int) -> RolloutSource:
            seed = split_seed(seed, "train")
            env = self.make_env(indices, seed)
            return RolloutSource(agent, env, indices, seed, config, self.config.max_episode_steps, world)

        return make_source


def agent_trainer(
    agent: Agent, task: RLTask, config: AgentTrainConfig, folder: TrainingFolder, world: Distributed | None = None
) -> Trainer:
    """Return the trainer of an agent."""
    validation = task.validation(config.seed, config.valid_batch)
    if agent.config.normalize_observations and agent.has_discrete_observations:
        task.fit_observation_statistics(agent, config.seed)
    phase = Phase(task.batch_source(agent, config, world), validation)
    trainer = Trainer(ALGORITHMS[config.algorithm](agent, config), [phase], config, folder, world)
    validation.callback = trainer.emit
    return trainer


def evaluate_agent(
    agent: Agent, task: RLTask, split: Split, streams: int | None = None, callback: Callback | None = None,
    deterministic: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Return the scores of a split, `streams` environments at a time. Actions are sampled, or the most probable ones
    (`deterministic`)."""
    validation = task.validation(0, streams or NUM_ENVS)
    validation.callback, validation.deterministic = callback, deterministic
    return validation(agent, split)
