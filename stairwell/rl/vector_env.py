"""Vector environments as rollouts use them: stairwell's own, or any vector environment of gymnasium.

    env = BatchedVectorEnv(make("stairwell/Corridor-v0", range(64), seed=1, length=40))
    observations = env.reset()
    step = env.step(actions)

Environments reset themselves at the end of an episode. Each step says where episodes start, independent of gymnasium's
autoreset mode:

    own, SAME_STEP, DISABLED   `observations` are the first of the new episode, and `start` is true
    NEXT_STEP                  `observations` are the last of the old episode. The next step ignores its action
                               (`ignored`) and has `start` true

An environment that fails raises `BrokenEnvironment`. Letters: B environments.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from stairwell.train.objective import BrokenSource

from .environments import Array, BatchedEnv
from .flatten import find_error, flatten, leaf_spaces
from .spaces import Space

# Packages that must be imported to register environments with these prefixes. Others are named `package:Name-v0`.
PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "popgym-": "popgym"}

Observations = dict[str, Array]  # by the paths of the space's leaves, and ACTION_MASK if there is a mask


class BrokenEnvironment(BrokenSource):
    """An environment raised an exception or violated gymnasium's interface."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the environment failed: {reason}")


class VectorStep(NamedTuple):
    """Result of `VectorEnv.step`."""

    observations: Observations  # (B, ...)
    final_observations: Observations  # `observations`, but the last of its episode where an episode has just ended
    rewards: Array  # (B,) float32
    terminated: Array  # (B,) bool
    truncated: Array  # (B,) bool
    start: Array  # (B,) bool: `observations` are the first of an episode
    ignored: Array  # (B,) bool: the step was a reset, and its action was ignored


class VectorEnv(Protocol):
    observation_space: Space
    action_space: Space
    action_names: Sequence[str]
    "Names of discrete actions; empty if the environment has none."
    render_options: Mapping[str, str]
    "Options that the environment must be made with in order to render."
    ignored_observations: list[str]
    "Names of text observations, which agents do not read."
    can_restore: bool
    "Whether `load_state_dict` restores the state exactly; otherwise it starts new episodes."

    @property
    def num_envs(self) -> int: ...

    def reset(self) -> Observations: ...

    def step(self, actions: Array) -> VectorStep: ...

    def state_dict(self) -> dict[str, Array]: ...

    def load_state_dict(self, state: Mapping[str, Array], steps: int) -> Observations:
        """Restore a state and return its observations. `steps` is the number of steps taken before. Environments that
        cannot restore start new episodes that depend on it, so that resuming at two checkpoints gives different
        ones."""

    def render(self, index: int) -> Array | None: ...

    def close(self) -> None: ...


class BatchedVectorEnv:
    """One of stairwell's own environments."""

    can_restore = True

    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self.observation_space: Space = env.observation_space
        self.action_space: Space = env.action_space
        self.action_names: Sequence[str] = env.action_names
        self.render_options: Mapping[str, str] = {}
        self.ignored_observations: list[str] = []
        self.none_ignored = np.zeros(env.num_envs, dtype=bool)

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    def reset(self) -> Observations:
        return self._flatten(self.env.reset())

    def step(self, actions: Array) -> VectorStep:
        final, rewards, terminated, truncated = self.env.step(actions)
        done = terminated | truncated
        observations = self.env.reset(done) if done.any() else final
        return VectorStep(
            self._flatten(observations), self._flatten(final), rewards, terminated, truncated, done, self.none_ignored
        )

    def state_dict(self) -> dict[str, Array]:
        return self.env.state_dict()

    def load_state_dict(self, state: Mapping[str, Array], steps: int) -> Observations:
        self.env.load_state_dict(state)
        return self._flatten(self.env.observe())

    def render(self, index: int) -> Array | None:
        return self.env.render(index)

    def close(self) -> None:
        pass

    def _flatten(self, observations: Array) -> Observations:
        return flatten(self.observation_space, observations)


def check_step(
    space: Space, observations: Observations, rewards: Any, terminated: Any, truncated: Any, num_envs: int
) -> None:
    """Raise BrokenEnvironment if the result of a step violates gymnasium's interface."""
    for path, leaf in leaf_spaces(space).items():
        if error := find_error(leaf, observations[path], num_envs):
            raise BrokenEnvironment(f"'{path}' {error}")
    rewards = np.asarray(rewards)
    if rewards.shape != (num_envs,) or rewards.dtype.kind not in "fiub":
        raise BrokenEnvironment(
            f"rewards are {rewards.dtype} of shape {rewards.shape}; they must be one number per environment"
        )
    if not np.isfinite(rewards).all():
        index = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise BrokenEnvironment(f"the reward of environment {index} is {rewards[index]}")
    for name, flags in (("terminated", np.asarray(terminated)), ("truncated", np.asarray(truncated))):
        if flags.shape != (num_envs,) or flags.dtype != bool:
            raise BrokenEnvironment(
                f"`{name}` is {flags.dtype} of shape {flags.shape}; it must be one bool per environment"
            )


def package_of(name: str) -> str:
    """Return the package that registers an environment with a known prefix; empty for others."""
    return next((package for prefix, package in PACKAGES.items() if name.startswith(prefix)), "")


def describe_exception(error: BaseException) -> str:
    """Return an exception of external code in one line: its type, message and location."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError):  # its message has the location
        return message
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{message} ({frames[-1].filename}:{frames[-1].lineno})"
