"""Maze Navigation: properties of random mazes, and steps in a fixed maze checked by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from stairwell.rl.environments.grid import EAST, NORTH, SOUTH, WEST
from stairwell.rl.environments.maze import (
    FREE,
    OBJECT,
    WALL,
    MazeConfig,
    MazeNavigation,
    MazeNavigationEasy,
    layout,
    open_dead_ends,
    spanning_trees,
)

FORWARD, LEFT, RIGHT = range(3)
SIDES = (3, 5, 9, 13)
Cells = set[tuple[int, int]]


def free_cells(opened: np.ndarray[Any, Any], side: int) -> Cells:
    numbers = [*layout(side).rooms, *layout(side).blocks[opened]]
    return {divmod(int(number), side) for number in numbers}


def neighbors(cell: tuple[int, int], cells: Cells) -> Cells:
    y, x = cell
    return {(y, x + 1), (y - 1, x), (y, x - 1), (y + 1, x)} & cells


def connected(cells: Cells) -> bool:
    reached, edge = set(), [next(iter(cells))]
    while edge:
        cell = edge.pop()
        reached.add(cell)
        edge += neighbors(cell, cells) - reached
    return reached == cells


@pytest.mark.parametrize("side", SIDES)
def test_mazes_are_spanning_trees_without_dead_ends(side: int) -> None:
    rng = np.random.default_rng(side)
    rooms, blocks = len(layout(side).rooms), len(layout(side).blocks)
    order = rng.permuted(np.tile(np.arange(blocks), (200, 1)), axis=1)
    trees = spanning_trees(order, side)
    mazes = open_dead_ends(trees, rng.integers(0, 2**64, (200, rooms), dtype=np.uint64), side)
    dead_ends = 0
    for tree, maze in zip(trees, mazes):
        cells = free_cells(tree, side)
        # Connected, with one open block fewer than rooms: a tree.
        assert connected(cells) and tree.sum() == rooms - 1
        dead_ends += sum(len(neighbors(cell, cells)) == 1 for cell in cells)
        opened = free_cells(maze, side)
        assert cells <= opened and connected(opened)
        assert all(len(neighbors(cell, opened)) >= 2 for cell in opened)
        # Only blocks next to dead ends are opened.
        assert maze.sum() - tree.sum() <= sum(len(neighbors(cell, cells)) == 1 for cell in cells)
        for cell in opened - cells:
            assert any(len(neighbors(room, cells)) == 1 for room in neighbors(cell, opened))
    assert dead_ends > 200


def test_kruskal_by_hand() -> None:
    """Four rooms, 0 1 above 2 3; blocks 0: 0-1, 1: 0-2, 2: 1-3, 3: 2-3. The block that would close a cycle stays."""
    assert layout(3).ends.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    trees = spanning_trees(np.array([[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]), 3)
    assert trees.tolist() == [[True, True, True, False], [False, True, True, True], [True, True, False, True]]


def test_spanning_trees_are_uniform_over_all_orders() -> None:
    """All orders of four blocks give each of the four trees equally often."""
    trees = spanning_trees(np.array(list(itertools.permutations(range(4)))), 3)
    _, counts = np.unique(trees, axis=0, return_counts=True)
    assert counts.tolist() == [6] * 4


def test_blocks_next_to_a_dead_end_are_chosen_uniformly() -> None:
    """5 x 5 cells, 9 rooms. Room 4 in the middle is open towards room 1 only, and a ring connects the others."""
    side, ends = 5, layout(5).ends.tolist()
    ring = [[0, 1], [1, 2], [0, 3], [2, 5], [3, 6], [5, 8], [6, 7], [7, 8]]
    opened = np.array([end in ring or end == [1, 4] for end in ends])
    rng = np.random.default_rng(0)
    random = rng.integers(0, 2**64, (3000, 9), dtype=np.uint64)
    added = open_dead_ends(np.tile(opened, (3000, 1)), random, side) & ~opened
    assert (added.sum(axis=1) == 1).all()
    counts = {str(ends[block]): int(added[:, block].sum()) for block in np.flatnonzero(added.any(axis=0))}
    assert counts.keys() == {"[3, 4]", "[4, 5]", "[4, 7]"} and min(counts.values()) > 900


@pytest.mark.parametrize("side, targets", [(3, 6), (5, 4), (9, 8), (13, 12)])
def test_objects_and_the_agent_start_in_different_cells(side: int, targets: int) -> None:
    env = MazeNavigation(MazeConfig(side=side, targets=targets), range(300), seed=0)
    env.reset()
    for i, cells in enumerate(env.cells):
        maze = cells.reshape(side + 2, side + 2)
        outside = np.ones_like(maze, dtype=bool)
        outside[1:-1, 1:-1] = False
        assert (maze[outside] == WALL).all()
        assert np.bincount(cells[cells >= OBJECT] - OBJECT, minlength=targets).tolist() == [1] * targets
        assert cells[env.cell[i]] == FREE
        # Objects are in free cells only: rooms are free, and cells between four rooms are walls.
        assert (maze[1:-1:2, 1:-1:2] != WALL).all() and (maze[2:-1:2, 2:-1:2] == WALL).all()
        assert connected({(int(y), int(x)) for y, x in np.argwhere(maze != WALL)})
    assert len(np.unique(env.direction)) == 4 and len(np.unique(env.target)) == targets


def test_objects_and_the_agent_are_distributed_uniformly() -> None:
    env = MazeNavigation(MazeConfig(side=3, targets=2), range(4000), seed=0)
    env.reset()
    # The only maze of side 3 without dead ends is the ring of 8 cells.
    object_cells = [np.argwhere(env.cells == OBJECT + color)[:, 1] for color in range(2)]
    for cells in (*object_cells, env.cell):
        counts = np.unique(cells, return_counts=True)[1]
        assert len(counts) == 8 and counts.min() > 400


# a is the agent; 0 to 2 are objects.
MAZE = """
    0 . . . .
    . # . # 1
    . . a . .
    . # # # .
    . . 2 . .
"""


def fixed_maze(
    env_class: type[MazeNavigation] = MazeNavigation, direction: int = NORTH, target: int = 0
) -> MazeNavigation:
    env = env_class(MazeConfig(side=5, targets=3, max_steps=50), range(1), seed=5)
    env.reset()
    lines = [line.split() for line in MAZE.strip().splitlines()]
    content = {".": FREE, "a": FREE, "#": WALL, "0": OBJECT, "1": OBJECT + 1, "2": OBJECT + 2}
    inside = env.cells.reshape(7, 7)[1:-1, 1:-1]
    inside[:] = [[content[character] for character in line] for line in lines]
    env.cell[:] = 3 * 7 + 3
    env.direction[:] = direction
    env.target[:] = target
    return env


def cell(env: MazeNavigation) -> tuple[int, int]:
    row, column = divmod(int(env.cell[0]), 7)
    return row - 1, column - 1


def rewards(env: MazeNavigation, *actions: int) -> list[float]:
    return [float(env.step(np.array([action])).rewards[0]) for action in actions]


@pytest.mark.parametrize(
    "direction, view",
    [
        (NORTH, [[1, 0, 1], [0, 0, 0], [1, 1, 1]]),
        (SOUTH, [[1, 1, 1], [0, 0, 0], [1, 0, 1]]),
        (EAST, [[1, 0, 1], [0, 0, 1], [1, 0, 1]]),
        (WEST, [[1, 0, 1], [1, 0, 0], [1, 0, 1]]),
    ],
)
def test_the_view_rotates_with_the_agent(direction: int, view: list[list[int]]) -> None:
    observation = fixed_maze(direction=direction, target=2).observe()[0]
    assert observation[:9].reshape(3, 3).tolist() == view and observation[9] == 2


def test_objects_and_the_edge_are_visible() -> None:
    env = fixed_maze(direction=EAST)
    rewards(env, FORWARD, FORWARD)
    # Facing the eastern edge: wall ahead, object 1 on the left.
    assert env.observe()[0, :9].reshape(3, 3).tolist() == [[1, 1, 1], [OBJECT + 1, 0, 0], [1, 0, 1]]


def test_left_and_right_turn_and_forward_stops_at_walls() -> None:
    env = fixed_maze(direction=NORTH)
    rewards(env, LEFT)
    assert (env.direction[0], cell(env)) == (WEST, (2, 2))
    rewards(env, LEFT, FORWARD)
    assert (env.direction[0], cell(env)) == (SOUTH, (2, 2))
    rewards(env, RIGHT, FORWARD)
    assert (env.direction[0], cell(env)) == (WEST, (2, 1))
    rewards(env, FORWARD, FORWARD)
    assert cell(env) == (2, 0)
    rewards(env, RIGHT, RIGHT, RIGHT, RIGHT)
    assert (env.direction[0], cell(env)) == (WEST, (2, 0))


def test_the_target_gives_a_reward_once_and_a_new_target() -> None:
    env = fixed_maze(target=0)
    assert rewards(env, FORWARD, FORWARD, LEFT, FORWARD, FORWARD) == [0, 0, 0, 0, 1]
    assert cell(env) == (0, 0) and env.target[0] in (1, 2)
    assert rewards(env, LEFT, RIGHT, FORWARD) == [0, 0, 0]  # stays on the object, at the edge
    assert env.cells[0, 8] == OBJECT


def test_other_objects_give_no_reward() -> None:
    env = fixed_maze(direction=EAST, target=0)
    assert rewards(env, FORWARD, FORWARD, LEFT, FORWARD) == [0, 0, 0, 0]
    assert cell(env) == (1, 4) and env.target[0] == 0


def test_new_targets_are_uniform_over_the_other_colors() -> None:
    env = MazeNavigationEasy(MazeConfig(side=3, targets=4, max_steps=10**6), range(400), seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    pairs = np.zeros((4, 4), dtype=int)
    for _ in range(300):
        before = env.target.copy()
        reached = env.step(rng.integers(0, 4, 400)).rewards > 0
        np.add.at(pairs, (before[reached], env.target[reached]), 1)
    assert (np.diag(pairs) == 0).all() and pairs.sum() > 5000
    assert np.abs(pairs[~np.eye(4, dtype=bool)] / (pairs.sum() / 12) - 1).max() < 0.25


def test_the_easy_maze_has_four_directions_and_a_fixed_view() -> None:
    env = fixed_maze(MazeNavigationEasy, target=1)
    view = env.observe()[0, :9].tolist()
    assert view == [1, 0, 1, 0, 0, 0, 1, 1, 1] and env.action_names == ("east", "north", "west", "south")
    for action, expected in ((SOUTH, (2, 2)), (WEST, (2, 1)), (EAST, (2, 2)), (NORTH, (1, 2)), (EAST, (1, 2))):
        rewards(env, action)
        assert cell(env) == expected
    assert env.observe()[0, :9].tolist() == [0, 0, 0, 1, 0, 1, 0, 0, 0]
    assert rewards(env, NORTH, EAST, EAST, SOUTH) == [0, 0, 0, 1]


def test_an_episode_is_truncated_after_max_steps() -> None:
    env = MazeNavigation(MazeConfig(), range(2), seed=0)
    env.reset()
    ends = [env.step(np.array([LEFT, LEFT]))[2:] for _ in range(200)]
    assert not any(terminated.any() for terminated, _ in ends)
    assert [truncated.all() for _, truncated in ends] == [False] * 199 + [True]
