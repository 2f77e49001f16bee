"""Random walk: say where an agent stands, given only the actions it took (Fan et al., arXiv 2002.09402, 4.1.2 and 7.1).

An agent starts in cell (0, 0) of a grid, the north-west corner, facing east. Its actions are drawn uniformly from
`forward`, `left` and `right`. `forward` goes one cell on in the agent's heading and is ignored at the edge of the grid;
`left` turns counter-clockwise (east, north, west, south) and `right` clockwise, without a step. Cell (row, column) has
the number `row * grid + column`: rows are counted southwards, columns eastwards.

An episode is `reset` and then `length` actions. The label of an action is the agent's cell after it, that of `reset`
the start cell. Episodes are concatenated; nothing but `reset` marks them, so a memory goes on over it. A model is
trained on every label and scored on those of the actions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from stairwell import configs

from .generated import Array, GeneratedTask, Played, check_at_least
from .scores import TokenScore

ACTIONS = ("forward", "left", "right", "reset")
FORWARD, LEFT, RIGHT, RESET = range(4)
HEADINGS = ("east", "north", "west", "south")
STEPS = ((0, 1), (-1, 0), (0, -1), (1, 0))  # (rows, columns) of a step in each heading


@dataclass(frozen=True)
class Config(configs.Config):
    length: int = 100
    """actions in an episode (the first paper: 100, the second: 400)"""
    grid: int = 8
    """cells along each side of the grid"""
    fresh: bool = False
    """begin every episode with an empty memory; otherwise nothing but `reset` tells, as in the papers"""
    train_episodes: int = 0
    """size of the training set, which repeats (the papers: 10000); 0 draws new episodes without end"""
    valid_episodes: int = 200
    """fresh episodes in the validation split"""
    test_episodes: int = 1000
    """fresh episodes in the test split"""


@dataclass(frozen=True)
class Walks:
    length: int
    grid: int
    documents: bool
    adjustable: ClassVar[tuple[str, ...]] = ("length",)
    opening: ClassVar[tuple[int, ...]] = (RESET,)

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)
        check_at_least(2, grid=self.grid)

    @property
    def size(self) -> int:
        return self.length + 1

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 3, size=(count, self.length), dtype=np.int8)

    def play(self, draws: Array) -> Played:
        E, _ = draws.shape
        tokens = np.concatenate([np.full((E, 1), RESET, dtype=np.int8), draws], axis=1)
        return Played(tokens, np.concatenate([np.zeros((E, 1), dtype=np.intp), self.follow(draws, None)[0]], axis=1))

    def go_on(self, rng: np.random.Generator, length: int) -> Array:
        return replace(self, length=length).draw(rng, 1)[0]

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        """The cell after each action; carried on is the pose."""
        E, T = tokens.shape
        table = _transitions(self.grid).ravel()
        poses = np.empty((T + 1, E), dtype=np.intp)  # begins with cell 0, heading 0; time first, for speed
        poses[0] = 0 if before is None else before
        for t, action in enumerate(tokens.T.astype(np.intp), start=1):
            np.take(table, poses[t - 1] * 3 + action, out=poses[t])
        return poses[1:].T // 4, poses[-1]

    def asks(self, place: Array) -> Array:
        return place > 0


class RandomWalk(GeneratedTask):
    def __init__(self, config: Config) -> None:
        walks = Walks(config.length, config.grid, config.fresh)
        super().__init__(config, walks, inputs=len(ACTIONS), outputs=config.grid**2)

    def score(self) -> TokenScore:
        return TokenScore(counts=_is_action)

    def describe(self) -> str:
        length, grid = self.config.length, self.config.grid
        return f"random walk: episodes of {length} actions on a {grid}x{grid} grid; {self.sets()}"


def _is_action(tokens: Tensor) -> Tensor:
    return tokens != RESET


def _transitions(grid: int) -> Array:
    """(poses, actions): the pose after an action. Pose = cell * 4 + heading."""
    row, column, heading = np.indices((grid, grid, 4)).reshape(3, -1)
    south, east = np.array(STEPS)[heading].T
    ahead = np.clip(row + south, 0, grid - 1) * grid + np.clip(column + east, 0, grid - 1)
    here = row * grid + column
    return np.stack([ahead * 4 + heading, here * 4 + (heading + 1) % 4, here * 4 + (heading - 1) % 4], axis=1)


def format_walk(tokens: Iterable[int]) -> str:
    """The actions as words, an episode a line."""
    words = " ".join(ACTIONS[token] for token in tokens)
    return words.replace(" reset", "\nreset")


def trajectory(tokens: Iterable[int], grid: int = 8) -> tuple[list[int], list[int]]:
    """The agent's cell and heading (a number in HEADINGS) after each token, from the start cell facing east."""
    table = _transitions(grid)
    pose, poses = 0, []
    for token in tokens:
        pose = 0 if token == RESET else int(table[pose, token])
        poses.append(pose)
    return [pose // 4 for pose in poses], [pose % 4 for pose in poses]
