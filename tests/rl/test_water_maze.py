"""The water maze worked through by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stairwell.rl.environments.grid import EAST, NORTH, SOUTH, WEST
from stairwell.rl.environments.water_maze import Config, WaterMaze


def pool(cell: tuple[int, int], goal: tuple[int, int], side: int = 5) -> WaterMaze:
    """One row whose cell (y, x) has the number 24 - (5 y + x)."""
    environment = WaterMaze(Config(side=side), range(1), seed=0)
    environment.reset()
    environment.numbers[:] = np.arange(side**2)[::-1]
    environment.cell[:], environment.goal[:] = cell[0] * side + cell[1], goal[0] * side + goal[1]
    return environment


@pytest.mark.parametrize(
    "goal, near",
    [((1, 1), 1), ((1, 2), 1), ((1, 3), 1), ((2, 1), 1), ((2, 3), 1), ((3, 1), 1), ((3, 2), 1), ((3, 3), 1),
     ((0, 2), 0), ((2, 4), 0), ((4, 4), 0), ((2, 0), 0)],
)  # fmt: skip
def test_the_agent_sees_whether_the_goal_is_within_three_by_three_but_not_where(
    goal: tuple[int, int], near: int
) -> None:
    environment = pool((2, 2), goal)
    assert environment.observe().tolist() == [[12, 24 - (5 * goal[0] + goal[1]), near]]
    assert environment.observation_space.sizes == (25, 25, 2)


def test_the_end_of_a_row_is_not_beside_the_beginning_of_the_next() -> None:
    assert pool((1, 4), (2, 0)).observe()[0, 2] == 0


@pytest.mark.parametrize(
    "action, there", [(EAST, (0, 1)), (NORTH, (0, 0)), (WEST, (0, 0)), (SOUTH, (1, 0))]
)  # fmt: skip
def test_moves_stop_at_the_edge(action: int, there: tuple[int, int]) -> None:
    environment = pool((0, 0), (4, 4))
    environment.step(np.array([action]))
    assert divmod(int(environment.cell[0]), 5) == there


def test_the_goal_gives_a_reward_and_a_new_place_and_stays_where_it_is() -> None:
    environment = pool((2, 1), (2, 3))
    assert environment.step(np.array([EAST])).rewards[0] == 0
    numbers = environment.numbers.copy()
    seen, rewards, terminated, truncated = environment.step(np.array([EAST]))
    assert rewards[0] == 1 and not terminated[0] and not truncated[0]
    assert environment.goal[0] == 13 != environment.cell[0] and (environment.numbers == numbers).all()
    assert seen[0, 0] == 24 - environment.cell[0]


def test_numbers_goals_and_places_are_drawn_evenly() -> None:
    environment = WaterMaze(Config(side=2), range(8000), seed=0)
    environment.reset()
    orders, counts = np.unique(environment.numbers, axis=0, return_counts=True)
    assert len(orders) == 24 and counts.min() > 250
    pairs = np.zeros((4, 4), dtype=int)
    np.add.at(pairs, (environment.goal, environment.cell), 1)
    assert (np.diag(pairs) == 0).all() and pairs[~np.eye(4, dtype=bool)].min() > 550
    pairs[:] = 0
    for action in (EAST, NORTH, WEST, SOUTH) * 3:
        reached = environment.step(np.full(8000, action)).rewards > 0
        np.add.at(pairs, (environment.goal[reached], environment.cell[reached]), 1)
    assert (np.diag(pairs) == 0).all() and pairs[~np.eye(4, dtype=bool)].min() > 0.8 * pairs.sum() / 12


def test_every_number_is_in_the_pool_once_and_episodes_differ() -> None:
    environment = WaterMaze(Config(), range(50), seed=0)
    environment.reset()
    first = environment.numbers.copy()
    assert (np.sort(first) == np.arange(225)).all() and len(np.unique(first, axis=0)) == 50
    environment.reset()
    assert (environment.numbers != first).any(axis=1).all()
