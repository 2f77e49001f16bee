"""Base class of batched environments: B environments in numpy arrays, without a Python loop over them.

Each environment has an index. Its episodes depend only on the seed, the index and its actions: random numbers are a
hash of (seed, index, episode, how many the episode has used), so they are computed for all environments in one call
and only counts need saving. The whole state is a few named arrays.

Initial states are precomputed. When one environment needs a new episode, the next initial states of all others are
computed with it, because many mazes cost little more than one.

    env = MazeNavigation(MazeConfig(), indices=range(256), seed=1)
    observations = env.reset()
    observations, rewards, terminated, truncated = env.step(actions)
    observations = env.reset(terminated | truncated)

As in gymnasium, `terminated` is an end that belongs to the task and `truncated` is a time limit, which the agent does
not observe. Letters: B environments, n some of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..spaces import Discrete, MultiDiscrete

Array = NDArray[Any]


class StepResult(NamedTuple):
    """Result of `BatchedEnv.step`. An environment that is done has the last observation of its episode."""

    observations: Array  # (B, K) int64
    rewards: Array  # (B,) float32
    terminated: Array  # (B,) bool
    truncated: Array  # (B,) bool


class BatchedEnv(ABC):
    """Episodes, time limit, random numbers and state of B environments. The spaces are those of one environment."""

    observation_space: MultiDiscrete
    action_names: tuple[str, ...]
    max_steps: int
    """Number of steps after which an episode is truncated."""
    reset_random_count: int
    """Number of random numbers that `initial_states` uses."""
    state_names: ClassVar[tuple[str, ...]] = ("key", "episode", "random_count", "elapsed_steps", "done")
    """Names of the attributes that form the state, each an array over environments."""

    def __init__(self, indices: range, seed: int) -> None:
        if len(indices) == 0 or min(indices) < 0:
            raise ValueError(f"environment indices {indices} must be a non-empty range from 0 or higher")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed {seed} must be from 0 to 2**64 - 1")
        B = len(indices)
        key = _hash(np.full(B, seed, dtype=np.uint64), np.array(indices, dtype=np.uint64))
        self.key = key.view(np.int64)  # (B,), signed because not every tensor format has unsigned integers
        self.episode = np.full(B, -1, dtype=np.int64)
        self.random_count = np.zeros(B, dtype=np.int64)  # random numbers used in this episode
        self.elapsed_steps = np.zeros(B, dtype=np.int64)
        self.done = np.ones(B, dtype=bool)
        # Precomputed initial states, and the episode of each environment that they belong to.
        self._initial_states: dict[str, Array] = {}
        self._initial_states_of = np.full(B, -1, dtype=np.int64)

    @property
    def num_envs(self) -> int:
        return len(self.key)

    @property
    def min_episode_steps(self) -> int:
        """Length of the shortest possible episode. It is `max_steps` where only the time limit ends an episode."""
        return self.max_steps

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(self.action_names))

    def reset(self, mask: Array | None = None) -> Array:
        """Start a new episode in the environments of `mask` (B,) bool, by default in all. Return all observations."""
        B = self.num_envs
        mask = np.ones(B, dtype=bool) if mask is None else np.asarray(mask)
        if mask.shape != (B,) or mask.dtype != bool:
            raise ValueError(f"the reset mask is {mask.dtype} of shape {mask.shape}; it must be bool of shape ({B},)")
        envs = np.flatnonzero(mask)
        if len(envs):
            self.episode[envs] += 1
            self.random_count[envs] = self.reset_random_count
            self.elapsed_steps[envs] = 0
            self.done[envs] = False
            if (self._initial_states_of[envs] != self.episode[envs]).any():
                self._compute_initial_states(self.episode + ~mask)
            for name, values in self._initial_states.items():
                getattr(self, name)[envs] = values[envs]
        return self.observe()

    def step(self, actions: Array) -> StepResult:
        """Take one action (B,) per environment. Environments that are done must be reset first."""
        actions = np.asarray(actions)
        B = self.num_envs
        if actions.shape != (B,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions are {actions.dtype} of shape {actions.shape}; they must be integers ({B},)")
        lowest, highest = actions.min(), actions.max()
        if lowest < 0 or highest >= len(self.action_names):
            raise ValueError(f"actions from {lowest} to {highest} must be from 0 to {len(self.action_names) - 1}")
        if self.done.any():
            done = ", ".join(map(str, np.flatnonzero(self.done)[:5]))
            raise ValueError(f"the episodes of environments {done}, ... are over; reset them before the next step")
        self.elapsed_steps += 1
        rewards, terminated = self.apply_actions(actions)
        truncated = (self.elapsed_steps >= self.max_steps) & ~terminated
        self.done = terminated | truncated
        return StepResult(self.observe(), rewards, terminated, truncated)

    @abstractmethod
    def initial_states(self, random: Array) -> dict[str, Array]:
        """Return the initial states of n episodes by state name. random (n, reset_random_count) uint64"""

    @abstractmethod
    def apply_actions(self, actions: Array) -> tuple[Array, Array]:
        """Update the state. Return rewards and `terminated`, (B,) each."""

    @abstractmethod
    def observe(self) -> Array:
        """Return the current observations (B, K) in a new array."""

    @abstractmethod
    def render(self, index: int = 0) -> Array:
        """Return an image of one environment: (height, width, 3) uint8."""

    def random(self, envs: Array, count: int) -> Array:
        """Return the next `count` random numbers of environments (n,): (n, count) uint64."""
        first = self.random_count[envs]
        self.random_count[envs] += count
        return self._random_at(envs, self.episode[envs], first[:, None] + np.arange(count))

    def state_dict(self) -> dict[str, Array]:
        """Return a copy of the whole state by name."""
        return {name: getattr(self, name).copy() for name in self.state_names}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue bit for bit from `state`, which another environment with the same options may have returned."""
        if set(state) != set(self.state_names):
            raise ValueError(f"the state has {sorted(state)}; this environment needs {sorted(self.state_names)}")
        for name in self.state_names:
            old, new = getattr(self, name), np.asarray(state[name])
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise ValueError(
                    f"`{name}` in the state is {new.dtype} of shape {new.shape}; "
                    f"this environment needs {old.dtype} of shape {old.shape}"
                )
        for name in self.state_names:
            setattr(self, name, np.array(state[name]))
        self._initial_states_of[:] = -1

    def _compute_initial_states(self, episodes: Array) -> None:
        """Compute the initial state of one episode (B,) per environment where it is not there yet."""
        envs = np.flatnonzero(self._initial_states_of != episodes)
        self._initial_states_of[envs] = episodes[envs]
        counts = np.arange(self.reset_random_count)
        for name, values in self.initial_states(self._random_at(envs, episodes[envs], counts[None])).items():
            if name not in self._initial_states:
                self._initial_states[name] = np.empty_like(getattr(self, name))
            self._initial_states[name][envs] = values

    def _random_at(self, envs: Array, episodes: Array, counts: Array) -> Array:
        """Return the random numbers with indices `counts` (n or 1, m) in episodes (n,) of environments (n,): (n, m)."""
        key = _hash(self.key[envs].view(np.uint64), episodes.view(np.uint64))
        return _hash(key[:, None], counts.view(np.uint64))


def uniform(seed: int, indices: range, step: int, count: int) -> Array:
    """Return random numbers in [0, 1) for sampling actions, (B, count) float64.

    They depend on the seed, the environment's index and the step, and differ from those of the environment itself."""
    key = _hash(np.full(len(indices), seed, dtype=np.uint64), np.array(indices, dtype=np.uint64))
    step_key = _hash(_hash(key, np.full(1, 2**63, dtype=np.uint64)), np.full(1, step, dtype=np.uint64))
    return (_hash(step_key[:, None], np.arange(count, dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53


def random_integers(random: Array, high: int) -> Array:
    """Map uint64 random numbers to 0 .. high - 1, int64. The bias is below high / 2**32."""
    return ((random >> np.uint64(32)) * np.uint64(high) >> np.uint64(32)).astype(np.int64)


def random_permutations(random: Array) -> Array:
    """Return one permutation of 0 .. count - 1 per line of random numbers (n, count)."""
    return np.argsort(random, axis=1, kind="stable")


def _hash(key: Array, number: Array) -> Array:
    """Return SplitMix64 (Steele et al., 2014) of a key and a number, uint64. The number is scrambled first, so that the
    sequences of two keys are not shifted copies of each other."""
    return _scramble(key + _scramble((number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)))


def _scramble(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
