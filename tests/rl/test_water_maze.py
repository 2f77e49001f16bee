"""Water Maze, checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stairwell.rl.environments.grid import EAST, NORTH, SOUTH, WEST
from stairwell.rl.environments.water_maze import WaterMaze, WaterMazeConfig


def pool(cell: tuple[int, int], goal: tuple[int, int], side: int = 5) -> WaterMaze:
    """Return one env whose cell (y, x) has the label 24 - (5 y + x)."""
    env = WaterMaze(WaterMazeConfig(side=side), range(1), seed=0)
    env.reset()
    env.labels[:] = np.arange(side**2)[::-1]
    env.cell[:], env.goal[:] = cell[0] * side + cell[1], goal[0] * side + goal[1]
    return env


@pytest.mark.parametrize(
    "goal, near",
    [((1, 1), 1), ((1, 2), 1), ((1, 3), 1), ((2, 1), 1), ((2, 3), 1), ((3, 1), 1), ((3, 2), 1), ((3, 3), 1),
     ((0, 2), 0), ((2, 4), 0), ((4, 4), 0), ((2, 0), 0)],
)  # fmt: skip
def test_the_agent_observes_whether_the_goal_is_near_but_not_where(goal: tuple[int, int], near: int) -> None:
    env = pool((2, 2), goal)
    assert env.observe().tolist() == [[12, 24 - (5 * goal[0] + goal[1]), near]]
    assert env.observation_space.nvec == (25, 25, 2)


def test_the_view_does_not_wrap_around_the_edge() -> None:
    assert pool((1, 4), (2, 0)).observe()[0, 2] == 0


@pytest.mark.parametrize(
    "action, cell", [(EAST, (0, 1)), (NORTH, (0, 0)), (WEST, (0, 0)), (SOUTH, (1, 0))]
)  # fmt: skip
def test_moves_stop_at_the_edge(action: int, cell: tuple[int, int]) -> None:
    env = pool((0, 0), (4, 4))
    env.step(np.array([action]))
    assert divmod(int(env.cell[0]), 5) == cell


def test_the_goal_gives_a_reward_and_moves_the_agent_only() -> None:
    env = pool((2, 1), (2, 3))
    assert env.step(np.array([EAST])).rewards[0] == 0
    labels = env.labels.copy()
    observations, rewards, terminated, truncated = env.step(np.array([EAST]))
    assert rewards[0] == 1 and not terminated[0] and not truncated[0]
    assert env.goal[0] == 13 != env.cell[0] and (env.labels == labels).all()
    assert observations[0, 0] == 24 - env.cell[0]


def test_labels_goals_and_start_cells_are_uniform() -> None:
    env = WaterMaze(WaterMazeConfig(side=2), range(8000), seed=0)
    env.reset()
    permutations, counts = np.unique(env.labels, axis=0, return_counts=True)
    assert len(permutations) == 24 and counts.min() > 250
    pairs = np.zeros((4, 4), dtype=int)
    np.add.at(pairs, (env.goal, env.cell), 1)
    assert (np.diag(pairs) == 0).all() and pairs[~np.eye(4, dtype=bool)].min() > 550
    pairs[:] = 0
    for action in (EAST, NORTH, WEST, SOUTH) * 3:
        reached = env.step(np.full(8000, action)).rewards > 0
        np.add.at(pairs, (env.goal[reached], env.cell[reached]), 1)
    assert (np.diag(pairs) == 0).all() and pairs[~np.eye(4, dtype=bool)].min() > 0.8 * pairs.sum() / 12


def test_labels_are_unique_and_differ_between_episodes() -> None:
    env = WaterMaze(WaterMazeConfig(), range(50), seed=0)
    env.reset()
    first = env.labels.copy()
    assert (np.sort(first) == np.arange(225)).all() and len(np.unique(first, axis=0)) == 50
    env.reset()
    assert (env.labels != first).any(axis=1).all()
