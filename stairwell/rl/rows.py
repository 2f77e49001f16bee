"""Rows of an environment as rollouts read them: stairwell's own, or those of any vector environment of gymnasium.

    rows = OwnRows(make("stairwell/Corridor-v0", range(64), seed=1, length=40))
    observations = rows.begin()
    frame = rows.step(actions)

Episodes follow one another without anyone asking for it. What a step gives says where they begin, whatever the way in
which a vector environment goes on after an end (gymnasium's autoreset modes):

    own rows, same step, disabled    `observations` are those of the new episode, and `start` is true
    next step                        `observations` are the last ones; the action on them counts for nothing (`idle` at
                                     the following step), after which `start` is true

An environment that is broken raises `BrokenEnvironment`. Letters: B rows.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from stairwell.train.objective import BrokenSource

from .environments import Array, Batched
from .leaves import fault, flatten, leaves
from .spaces import Space

Observations = dict[str, Array]


class BrokenEnvironment(BrokenSource):
    """An environment did what it must not; the word says what, and in which row."""

    def __init__(self, word: str) -> None:
        super().__init__(f"the environment is broken: {word}")


class Frame(NamedTuple):
    """What a step gives."""

    observations: Observations  # (B, ...): what each row observes now
    last: Observations  # the same, but for rows that have just ended the last observation of that episode
    rewards: Array  # (B,) float32
    terminated: Array  # (B,) bool
    truncated: Array  # (B,) bool
    start: Array  # (B,) bool: `observations` are the first of an episode
    idle: Array  # (B,) bool: the step was none, its action counted for nothing


class Rows(Protocol):
    observation_space: Space
    action_space: Space
    action_names: Sequence[str]
    "words for discrete actions, where the environment has some"
    drawn_with: Mapping[str, str]
    "options with which the environment must be opened so that it makes pictures, if there are such"
    left_out: list[str]
    "parts of the observation that are text, which no agent reads"
    resumes: bool
    "whether `seek` goes on bit for bit; otherwise it begins new episodes"

    @property
    def B(self) -> int: ...

    def begin(self) -> Observations: ...

    def step(self, actions: Array) -> Frame: ...

    def position(self) -> dict[str, Array]: ...

    def seek(self, position: Mapping[str, Array], time: int) -> Observations:
        """What the rows observe there. `time` is how many frames each row had played; environments that cannot be put
        back begin episodes that depend on it, so that no two resumptions play the same ones."""

    def render(self, row: int) -> Array | None: ...

    def close(self) -> None: ...


class OwnRows:
    """Rows of one of stairwell's own environments."""

    resumes = True

    def __init__(self, environment: Batched) -> None:
        self.environment = environment
        self.observation_space: Space = environment.observation_space
        self.action_space: Space = environment.action_space
        self.action_names: Sequence[str] = environment.action_names
        self.drawn_with: Mapping[str, str] = {}
        self.left_out: list[str] = []
        self.nobody = np.zeros(environment.B, dtype=bool)

    @property
    def B(self) -> int:
        return self.environment.B

    def begin(self) -> Observations:
        return self.named(self.environment.reset())

    def step(self, actions: Array) -> Frame:
        last, rewards, terminated, truncated = self.environment.step(actions)
        over = terminated | truncated
        now = self.environment.reset(over) if over.any() else last
        return Frame(self.named(now), self.named(last), rewards, terminated, truncated, over, self.nobody)

    def position(self) -> dict[str, Array]:
        return self.environment.position()

    def seek(self, position: Mapping[str, Array], time: int) -> Observations:
        self.environment.seek(position)
        return self.named(self.environment.observe())

    def render(self, row: int) -> Array | None:
        return self.environment.render(row)

    def close(self) -> None:
        pass

    def named(self, observations: Array) -> Observations:
        return flatten(self.observation_space, observations)


def check_frame(space: Space, observations: Observations, rewards: Any, ends: tuple[Any, Any], rows: int) -> None:
    """Raise a plain word on anything that an environment must not give."""
    for path, leaf in leaves(space).items():
        if wrong := fault(leaf, observations[path], rows):
            raise BrokenEnvironment(f"'{path}' {wrong}")
    rewards = np.asarray(rewards)
    if rewards.shape != (rows,) or rewards.dtype.kind not in "fiub":
        raise BrokenEnvironment(f"rewards are of {rewards.dtype} in shape {rewards.shape}, not one number a row")
    if not np.isfinite(rewards).all():
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise BrokenEnvironment(f"the reward of row {row} is {rewards[row]}")
    for name, flags in zip(("terminated", "truncated"), ends):
        if np.shape(flags) != (rows,) or np.asarray(flags).dtype != bool:
            raise BrokenEnvironment(f"`{name}` is not one bool a row, but {np.asarray(flags).dtype} {np.shape(flags)}")


def told(error: BaseException) -> str:
    """An exception of someone else's code in one line: what it was and where it was raised."""
    word = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError):  # it names its own place
        return word
    places = [place for place in traceback.extract_tb(error.__traceback__) if not place.filename.startswith("<frozen")]
    return f"{word} ({places[-1].filename}:{places[-1].lineno})"
