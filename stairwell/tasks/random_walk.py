"""Random walk: where is an agent, given only its actions? (Fan et al., arXiv 2002.09402, 4.1.2 and 7.1)

An agent starts in cell (0, 0) of a grid, the north-west corner, facing east. Its actions are sampled uniformly from
`forward`, `left` and `right`. `forward` moves one cell in the agent's heading and does nothing at the edge of the grid;
`left` turns counterclockwise (east, north, west, south) and `right` clockwise, without a step. Cell (row, column) has
the number `row * grid + column`: rows are counted southward, columns eastward.

An episode is `reset` and then `length` actions. The label of an action is the agent's cell after it, the label of
`reset` is the start cell. Episodes are concatenated; only `reset` separates them, and the state continues across it. A
model is trained on every label and scored on those of the actions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from .generated import Array, EpisodeArrays, EpisodesConfig, GeneratedTask, check_at_least, numbers
from .scores import TokenScore

ACTIONS = ("forward", "left", "right", "reset")
FORWARD, LEFT, RIGHT, RESET = range(4)
HEADINGS = ("east", "north", "west", "south")
STEPS = ((0, 1), (-1, 0), (0, -1), (1, 0))  # (rows, columns) of a step in each heading


@dataclass(frozen=True)
class RandomWalkConfig(EpisodesConfig):
    length: int = 100
    """Actions per episode (Fan et al.: 100, Ju et al.: 400)."""
    grid: int = 8
    """Cells along each side of the grid."""
    reset: bool = False
    """Whether the state is reset at every episode; in the papers it is not."""


@dataclass(frozen=True)
class RandomWalkEpisodes:
    length: int
    grid: int
    reset: bool
    curriculum_options: ClassVar[tuple[str, ...]] = ("length",)
    prefix: ClassVar[tuple[int, ...]] = (RESET,)

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)
        check_at_least(2, grid=self.grid)

    @property
    def size(self) -> int:
        return self.length + 1

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 3, size=(count, self.length), dtype=np.int8)

    def build(self, samples: Array) -> EpisodeArrays:
        E, _ = samples.shape
        tokens = np.concatenate([np.full((E, 1), RESET, dtype=np.int8), samples], axis=1)
        cells = np.concatenate([np.zeros((E, 1), dtype=np.intp), self.labels(samples, None)[0]], axis=1)
        return EpisodeArrays(tokens, cells)

    def generate(self, rng: np.random.Generator, length: int) -> Array:
        return replace(self, length=length).sample(rng, 1)[0]

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        """Return the cell after each action, and the last pose to carry on."""
        E, T = tokens.shape
        table = transitions(self.grid).ravel()
        poses = np.empty((T + 1, E), dtype=np.intp)  # time first, for speed
        poses[0] = 0 if carry is None else carry  # 0: cell 0, facing east
        for t, action in enumerate(tokens.T.astype(np.intp), start=1):
            np.take(table, poses[t - 1] * 3 + action, out=poses[t])
        return poses[1:].T // 4, poses[-1]

    def is_scored(self, positions: Array) -> Array:
        return positions > 0


class RandomWalk(GeneratedTask):
    config: RandomWalkConfig
    config_type = RandomWalkConfig

    def __init__(self, config: RandomWalkConfig) -> None:
        episodes = RandomWalkEpisodes(config.length, config.grid, config.reset)
        super().__init__(config, episodes, inputs=len(ACTIONS), outputs=config.grid**2)

    def score(self) -> TokenScore:
        return TokenScore(is_scored=_is_action)

    def names(self) -> tuple[list[str], list[str]]:
        return list(ACTIONS), numbers(self.outputs)

    def describe(self) -> str:
        length, grid = self.config.length, self.config.grid
        return f"random walk: episodes of {length} actions on a grid of {grid}x{grid}; {self.describe_splits()}"


def _is_action(tokens: Tensor) -> Tensor:
    return tokens != RESET


def transitions(grid: int) -> Array:
    """Return the pose after each action: (poses, actions). Pose = cell * 4 + heading."""
    row, column, heading = np.indices((grid, grid, 4)).reshape(3, -1)
    south, east = np.array(STEPS)[heading].T
    ahead = np.clip(row + south, 0, grid - 1) * grid + np.clip(column + east, 0, grid - 1)
    here = row * grid + column
    return np.stack([ahead * 4 + heading, here * 4 + (heading + 1) % 4, here * 4 + (heading - 1) % 4], axis=1)


def trajectory(tokens: Iterable[int], grid: int = 8) -> tuple[list[int], list[int]]:
    """Return the agent's cell and heading (an index into HEADINGS) after each token, from the start cell facing
    east."""
    table = transitions(grid)
    pose, poses = 0, []
    for token in tokens:
        pose = 0 if token == RESET else int(table[pose, token])
        poses.append(pose)
    return [pose // 4 for pose in poses], [pose % 4 for pose in poses]
