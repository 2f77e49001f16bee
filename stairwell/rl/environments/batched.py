"""Environments over B rows at once: numpy arrays, no loop over rows.

A row is one stream of episodes. What happens in it depends on the seed, its own number and its actions only: its random
numbers are a hash of (seed, row, episode, how many were drawn before), so that they are drawn for all rows in one go,
and nothing but counts has to be saved. An environment's whole state is a few named arrays.

How an episode begins can be worked out before its time, too: when a row needs a beginning, the next ones of all other
rows are made along with it, because many mazes cost little more than one.

    environment = MazeNavigation(Config(), rows=range(256), seed=1)
    observations = environment.reset()
    observations, rewards, terminated, truncated = environment.step(actions)
    observations = environment.reset(terminated | truncated)

`terminated` is an end that belongs to the task, `truncated` one that the clock makes and that the agent cannot see
coming: what would have followed still has a value. Letters: B rows, n of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..spaces import Discrete, MultiDiscrete

Array = NDArray[Any]
Position = dict[str, Array]


class Step(NamedTuple):
    """What a step gives; the observation of a row that has just ended is its last."""

    observations: Array  # (B, places) int64
    rewards: Array  # (B,) float32
    terminated: Array  # (B,) bool
    truncated: Array  # (B,) bool


class Batched(ABC):
    """What all environments share: episodes, clock, random numbers, saving. The spaces are those of one row, `limit` is
    how many steps the longest episode has."""

    observation_space: MultiDiscrete
    action_names: tuple[str, ...]
    limit: int
    numbers_to_begin: int
    """how many random numbers `beginning` takes"""
    arrays: ClassVar[tuple[str, ...]] = ("key", "episode", "drawn", "time", "over")
    """names of the attributes that make up the state, each an array over rows"""

    def __init__(self, rows: range, seed: int) -> None:
        if len(rows) == 0 or min(rows) < 0:
            raise ValueError(f"{rows} as rows of an environment; there must be some, numbered from 0 on")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed {seed}; a seed must be from 0 to 2**64 - 1")
        B = len(rows)
        key = _hash(np.full(B, seed, dtype=np.uint64), np.array(rows, dtype=np.uint64))
        self.key = key.view(np.int64)  # (B,), signed because not every format of tensors holds unsigned ones
        self.episode = np.full(B, -1, dtype=np.int64)
        self.drawn = np.zeros(B, dtype=np.int64)  # random numbers that the episode has used
        self.time = np.zeros(B, dtype=np.int64)
        self.over = np.ones(B, dtype=bool)
        # Beginnings that were made, and of which episode of each row.
        self._made: dict[str, Array] = {}
        self._made_for = np.full(B, -1, dtype=np.int64)

    @property
    def B(self) -> int:
        return len(self.key)

    @property
    def shortest(self) -> int:
        """Steps of the shortest episode that there can be: all of them, where only the clock ends one."""
        return self.limit

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(self.action_names))

    def reset(self, mask: Array | None = None) -> Array:
        """Begin a new episode in the rows of `mask` (B,) bool, in all if there is none, and give what each row of the
        batch observes."""
        mask = np.ones(self.B, dtype=bool) if mask is None else np.asarray(mask)
        if mask.shape != (self.B,) or mask.dtype != bool:
            raise ValueError(f"a mask of {mask.dtype} in shape {mask.shape}; it must be bool in shape ({self.B},)")
        rows = np.flatnonzero(mask)
        if len(rows):
            self.episode[rows] += 1
            self.drawn[rows] = self.numbers_to_begin
            self.time[rows] = 0
            self.over[rows] = False
            if (self._made_for[rows] != self.episode[rows]).any():
                self._make_beginnings(self.episode + ~mask)
            for name, made in self._made.items():
                getattr(self, name)[rows] = made[rows]
        return self.observe()

    def step(self, actions: Array) -> Step:
        """One action (B,) a row. A row whose episode is over must be reset first."""
        actions = np.asarray(actions)
        if actions.shape != (self.B,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions of {actions.dtype} in shape {actions.shape}; they must be whole, ({self.B},)")
        least, most = actions.min(), actions.max()
        if least < 0 or most >= len(self.action_names):
            raise ValueError(f"actions from {least} to {most}; they must be from 0 to {len(self.action_names) - 1}")
        if self.over.any():
            rows = ", ".join(map(str, np.flatnonzero(self.over)[:5]))
            raise ValueError(f"a step in rows whose episode is over ({rows}, ...); reset them first")
        self.time += 1
        rewards, terminated = self.advance(actions)
        truncated = (self.time >= self.limit) & ~terminated
        self.over = terminated | truncated
        return Step(self.observe(), rewards, terminated, truncated)

    @abstractmethod
    def beginning(self, numbers: Array) -> dict[str, Array]:
        """How n episodes begin, by names of `arrays`, from random numbers (n, numbers_to_begin)."""

    @abstractmethod
    def advance(self, actions: Array) -> tuple[Array, Array]:
        """Carry the actions out: rewards and whether the task has ended, (B,) each."""

    @abstractmethod
    def observe(self) -> Array:
        """What each row observes now, in an array of its own."""

    @abstractmethod
    def render(self, row: int = 0) -> Array:
        """A picture of one row: (height, width, 3) uint8."""

    def random(self, rows: Array, count: int) -> Array:
        """The next `count` random numbers of each of these rows: (n, count) uint64."""
        first = self.drawn[rows]
        self.drawn[rows] += count
        return self._numbers(rows, self.episode[rows], first[:, None] + np.arange(count))

    def position(self) -> Position:
        """The whole state, by name."""
        return {name: getattr(self, name).copy() for name in self.arrays}

    def seek(self, position: Mapping[str, Array]) -> None:
        """Go on bit for bit where `position` was taken, also in another environment of the same options."""
        if set(position) != set(self.arrays):
            raise ValueError(f"a position of {sorted(position)}; it must have {sorted(self.arrays)}")
        for name in self.arrays:
            old, new = getattr(self, name), np.asarray(position[name])
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise ValueError(
                    f"a position with `{name}` of {new.dtype} in shape {new.shape}; "
                    f"this environment has {old.dtype} in shape {old.shape}"
                )
        for name in self.arrays:
            setattr(self, name, np.array(position[name]))
        self._made_for[:] = -1

    def _make_beginnings(self, episodes: Array) -> None:
        """Of one episode (B,) of each row, where it has not been made yet."""
        rows = np.flatnonzero(self._made_for != episodes)
        self._made_for[rows] = episodes[rows]
        counts = np.arange(self.numbers_to_begin)
        for name, made in self.beginning(self._numbers(rows, episodes[rows], counts[None])).items():
            if name not in self._made:
                self._made[name] = np.empty_like(getattr(self, name))
            self._made[name][rows] = made

    def _numbers(self, rows: Array, episodes: Array, counts: Array) -> Array:
        """Random numbers by their place `counts` (n or 1, m) in an episode (n,) of these rows (n,): (n, m) uint64."""
        key = _hash(self.key[rows].view(np.uint64), episodes.view(np.uint64))
        return _hash(key[:, None], counts.view(np.uint64))


def uniform(seed: int, rows: range, time: int, count: int) -> Array:
    """Random numbers in [0, 1) for what is drawn beside an environment, (B, count) float64: other ones at any time, and
    none of those that the environment itself draws from this seed."""
    key = _hash(np.full(len(rows), seed, dtype=np.uint64), np.array(rows, dtype=np.uint64))
    own = _hash(_hash(key, np.full(1, 2**63, dtype=np.uint64)), np.full(1, time, dtype=np.uint64))
    return (_hash(own[:, None], np.arange(count, dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53


def below(numbers: Array, size: int) -> Array:
    """Random numbers from 0 to size - 1, in int64. Uneven by less than size / 2**32."""
    return ((numbers >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)).astype(np.int64)


def shuffled(numbers: Array) -> Array:
    """A random order of 0..count-1 for each row of random numbers (n, count)."""
    return np.argsort(numbers, axis=1, kind="stable")


def _hash(key: Array, number: Array) -> Array:
    """A random-looking uint64 for a key and a number: SplitMix64 (Steele et al., 2014), the number scrambled by itself
    first, so that the sequences of two keys do not run in parallel."""
    return _scramble(key + _scramble((number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)))


def _scramble(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
