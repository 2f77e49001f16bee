"""Mazes: every one is what the paper says, and walks in a maze that is written down here."""

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
    Config,
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
def test_kruskal_gives_spanning_trees_and_opening_removes_every_dead_end(side: int) -> None:
    rng = np.random.default_rng(side)
    rooms, blocks = len(layout(side).rooms), len(layout(side).blocks)
    order = rng.permuted(np.tile(np.arange(blocks), (200, 1)), axis=1)
    trees = spanning_trees(order, side)
    mazes = open_dead_ends(trees, rng.integers(0, 2**64, (200, rooms), dtype=np.uint64), side)
    dead_ends = 0
    for tree, maze in zip(trees, mazes):
        cells = free_cells(tree, side)
        # Connected with one way fewer than rooms: a tree.
        assert connected(cells) and tree.sum() == rooms - 1
        dead_ends += sum(len(neighbors(cell, cells)) == 1 for cell in cells)
        opened = free_cells(maze, side)
        assert cells <= opened and connected(opened)
        assert all(len(neighbors(cell, opened)) >= 2 for cell in opened)
        # No way is opened that no dead end asked for.
        assert maze.sum() - tree.sum() <= sum(len(neighbors(cell, cells)) == 1 for cell in cells)
        for cell in opened - cells:
            assert any(len(neighbors(room, cells)) == 1 for room in neighbors(cell, opened))
    assert dead_ends > 200


def test_kruskal_by_hand() -> None:
    """Four rooms, 0 1 over 2 3; blocks 0: 0-1, 1: 0-2, 2: 1-3, 3: 2-3. The one that would close the ring stays."""
    assert layout(3).ends.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    trees = spanning_trees(np.array([[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]), 3)
    assert trees.tolist() == [[True, True, True, False], [False, True, True, True], [True, True, False, True]]


def test_every_spanning_tree_turns_up() -> None:
    """All orders of four blocks: each of the four trees is left out by as many of them."""
    trees = spanning_trees(np.array(list(itertools.permutations(range(4)))), 3)
    _, counts = np.unique(trees, axis=0, return_counts=True)
    assert counts.tolist() == [6] * 4


def test_each_block_beside_a_dead_end_is_as_likely() -> None:
    """5 x 5 cells, 9 rooms; the middle one (4) is a dead end towards room 1, and a ring connects the others."""
    side, ends = 5, layout(5).ends.tolist()
    ring = [[0, 1], [1, 2], [0, 3], [2, 5], [3, 6], [5, 8], [6, 7], [7, 8]]
    opened = np.array([end in ring or end == [1, 4] for end in ends])
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2**64, (3000, 9), dtype=np.uint64)
    more = open_dead_ends(np.tile(opened, (3000, 1)), numbers, side) & ~opened
    assert (more.sum(axis=1) == 1).all()
    counts = {str(ends[block]): int(more[:, block].sum()) for block in np.flatnonzero(more.any(axis=0))}
    assert counts.keys() == {"[3, 4]", "[4, 5]", "[4, 7]"} and min(counts.values()) > 900


@pytest.mark.parametrize("side, targets", [(3, 6), (5, 4), (9, 8), (13, 12)])
def test_objects_are_on_cells_of_their_own_and_the_agent_is_on_none(side: int, targets: int) -> None:
    environment = MazeNavigation(Config(side=side, targets=targets), range(300), seed=0)
    environment.reset()
    for row, cells in enumerate(environment.cells):
        maze = cells.reshape(side + 2, side + 2)
        outside = np.ones_like(maze, dtype=bool)
        outside[1:-1, 1:-1] = False
        assert (maze[outside] == WALL).all()
        assert np.bincount(cells[cells >= OBJECT] - OBJECT, minlength=targets).tolist() == [1] * targets
        assert cells[environment.cell[row]] == FREE
        # Objects took the place of free cells only: rooms are not walls, and what is not room or way is.
        assert (maze[1:-1:2, 1:-1:2] != WALL).all() and (maze[2:-1:2, 2:-1:2] == WALL).all()
        assert connected({(int(y), int(x)) for y, x in np.argwhere(maze != WALL)})
    assert len(np.unique(environment.direction)) == 4 and len(np.unique(environment.target)) == targets


def test_a_cell_is_as_likely_for_any_object() -> None:
    environment = MazeNavigation(Config(side=3, targets=2), range(4000), seed=0)
    environment.reset()
    # Dead ends opened, the ring around the middle is all there is: 8 cells.
    places = [np.argwhere(environment.cells == OBJECT + color)[:, 1] for color in range(2)]
    for chosen in (*places, environment.cell):
        counts = np.unique(chosen, return_counts=True)[1]
        assert len(counts) == 8 and counts.min() > 400


# The agent stands at a; 0 to 2 are objects.
WRITTEN = """
    0 . . . .
    . # . # 1
    . . a . .
    . # # # .
    . . 2 . .
"""


def written(kind: type[MazeNavigation] = MazeNavigation, direction: int = NORTH, target: int = 0) -> MazeNavigation:
    environment = kind(Config(side=5, targets=3, steps=50), range(1), seed=5)
    environment.reset()
    signs = [line.split() for line in WRITTEN.strip().splitlines()]
    content = {".": FREE, "a": FREE, "#": WALL, "0": OBJECT, "1": OBJECT + 1, "2": OBJECT + 2}
    inside = environment.cells.reshape(7, 7)[1:-1, 1:-1]
    inside[:] = [[content[sign] for sign in line] for line in signs]
    environment.cell[:] = 3 * 7 + 3
    environment.direction[:] = direction
    environment.target[:] = target
    return environment


def place(environment: MazeNavigation) -> tuple[int, int]:
    row, column = divmod(int(environment.cell[0]), 7)
    return row - 1, column - 1


def walk(environment: MazeNavigation, *actions: int) -> list[float]:
    return [float(environment.step(np.array([action])).rewards[0]) for action in actions]


@pytest.mark.parametrize(
    "direction, view",
    [
        (NORTH, [[1, 0, 1], [0, 0, 0], [1, 1, 1]]),
        (SOUTH, [[1, 1, 1], [0, 0, 0], [1, 0, 1]]),
        (EAST, [[1, 0, 1], [0, 0, 1], [1, 0, 1]]),
        (WEST, [[1, 0, 1], [1, 0, 0], [1, 0, 1]]),
    ],
)
def test_the_view_turns_with_the_agent(direction: int, view: list[list[int]]) -> None:
    seen = written(direction=direction, target=2).observe()[0]
    assert seen[:9].reshape(3, 3).tolist() == view and seen[9] == 2


def test_objects_and_the_edge_are_seen_where_they_are() -> None:
    environment = written(direction=EAST)
    walk(environment, FORWARD, FORWARD)
    # Facing the edge in the east: wall ahead, object 1 on the left, in the north.
    assert environment.observe()[0, :9].reshape(3, 3).tolist() == [[1, 1, 1], [OBJECT + 1, 0, 0], [1, 0, 1]]


def test_left_and_right_turn_and_forward_goes_ahead_unless_there_is_a_wall() -> None:
    environment = written(direction=NORTH)
    walk(environment, LEFT)
    assert (environment.direction[0], place(environment)) == (WEST, (2, 2))
    walk(environment, LEFT, FORWARD)
    assert (environment.direction[0], place(environment)) == (SOUTH, (2, 2))
    walk(environment, RIGHT, FORWARD)
    assert (environment.direction[0], place(environment)) == (WEST, (2, 1))
    walk(environment, FORWARD, FORWARD)
    assert place(environment) == (2, 0)
    walk(environment, RIGHT, RIGHT, RIGHT, RIGHT)
    assert (environment.direction[0], place(environment)) == (WEST, (2, 0))


def test_the_target_gives_a_reward_once_and_a_new_target_follows() -> None:
    environment = written(target=0)
    assert walk(environment, FORWARD, FORWARD, LEFT, FORWARD, FORWARD) == [0, 0, 0, 0, 1]
    assert place(environment) == (0, 0) and environment.target[0] in (1, 2)
    assert walk(environment, LEFT, RIGHT, FORWARD) == [0, 0, 0]  # stays on the object, before the edge
    assert environment.cells[0, 8] == OBJECT


def test_other_objects_give_nothing() -> None:
    environment = written(direction=EAST, target=0)
    assert walk(environment, FORWARD, FORWARD, LEFT, FORWARD) == [0, 0, 0, 0]
    assert place(environment) == (1, 4) and environment.target[0] == 0


def test_new_targets_are_the_other_colors_evenly() -> None:
    environment = MazeNavigationEasy(Config(side=3, targets=4, steps=10**6), range(400), seed=0)
    environment.reset()
    rng = np.random.default_rng(0)
    pairs = np.zeros((4, 4), dtype=int)
    for _ in range(300):
        before = environment.target.copy()
        reached = environment.step(rng.integers(0, 4, 400)).rewards > 0
        np.add.at(pairs, (before[reached], environment.target[reached]), 1)
    assert (np.diag(pairs) == 0).all() and pairs.sum() > 5000
    assert np.abs(pairs[~np.eye(4, dtype=bool)] / (pairs.sum() / 12) - 1).max() < 0.25


def test_easy_moves_in_four_directions_and_north_is_always_up() -> None:
    environment = written(MazeNavigationEasy, target=1)
    view = environment.observe()[0, :9].tolist()
    assert view == [1, 0, 1, 0, 0, 0, 1, 1, 1] and environment.action_names == ("east", "north", "west", "south")
    for action, there in ((SOUTH, (2, 2)), (WEST, (2, 1)), (EAST, (2, 2)), (NORTH, (1, 2)), (EAST, (1, 2))):
        walk(environment, action)
        assert place(environment) == there
    assert environment.observe()[0, :9].tolist() == [0, 0, 0, 1, 0, 1, 0, 0, 0]
    assert walk(environment, NORTH, EAST, EAST, SOUTH) == [0, 0, 0, 1]


def test_an_episode_has_as_many_steps_as_it_should() -> None:
    environment = MazeNavigation(Config(), range(2), seed=0)
    environment.reset()
    ends = [environment.step(np.array([LEFT, LEFT]))[2:] for _ in range(200)]
    assert not any(terminated.any() for terminated, _ in ends)
    assert [truncated.all() for _, truncated in ends] == [False] * 199 + [True]
