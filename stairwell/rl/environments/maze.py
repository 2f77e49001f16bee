"""Maze Navigation: reach colored objects in a random maze, seen 3x3 cells at a time (Fan et al., arXiv 2002.09402,
4.2.2, 6.1, 7.2, Figures 4, 6 and 10).

An episode is a new maze by Kruskal's algorithm whose dead ends were opened, with objects of different colors in it.
One color is the target; reaching its object gives a reward of 1 and a new target. An episode ends after `steps` steps.
The agent sees the 3x3 cells around it and the target's color, not where it is or where it looks. `MazeNavigation` has
the actions forward, left and right; `MazeNavigationEasy` has one action a direction and no orientation.

What the paper does not print is settled here:
- A maze of side n has n x n cells, each free or a block. Cells with two even coordinates are rooms; a block between two
  rooms can be opened. Outside is wall, and no part of the n x n. A 9x9 maze has 25 rooms.
- Dead ends are rooms with one way out. They are gone through row by row, and one of the blocks beside a room that still
  is a dead end is opened, each with the same probability.
- Objects and the agent start in different free cells. Objects stay, can be walked over and are seen; the target's does
  nothing special until it is reached. A new target is one of the other colors.
- With an orientation the view is the agent's own: the top row lies ahead. The start direction is random. Without one,
  north is up.
- Walking into a wall does nothing.
- The agent does not see the clock, so that the end after `steps` is a truncation.
- Observation: the 3x3 cells, row by row (0 free, 1 wall, c + 2 an object of color c), then the target's color.

Letters: B rows, n of them, R rooms, W blocks between rooms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from stairwell import configs
from stairwell.tasks.generated import check_at_least, check_at_most

from ..spaces import MultiDiscrete
from .batched import Array, Batched, below, shuffled
from .grid import AGENT, COLORS, DIRECTIONS, FLOOR, LINE, NORTH, SEEN, SEEN_WALL, Tiles, steps, surroundings
from .grid import WALL as WALL_COLOR

FORWARD, LEFT, RIGHT = range(3)
FREE, WALL, OBJECT = range(3)  # an object of color c is OBJECT + c
LARGEST = 201  # cells along a side: mazes of 64 rows take half a minute
TURNS = np.array([0, 1, -1])


@dataclass(frozen=True)
class Config(configs.Config):
    side: int = 9
    """cells along each side of the maze; odd"""
    targets: int = 8
    """objects, each of its own color"""
    steps: int = 200
    """steps of an episode"""


class Layout(NamedTuple):
    """Which rooms and blocks a maze of some side has."""

    rooms: Array  # (R,): their cells
    blocks: Array  # (W,): the cells between two rooms
    ends: Array  # (W, 2): these two rooms
    beside: tuple[Array, ...]  # R times (2..4,): the blocks beside each room


@cache
def layout(side: int) -> Layout:
    """Cells are numbered within the maze: row * side + column."""
    along = range(0, side, 2)
    cells = [(row, column) for row in along for column in along]
    number = {cell: croppable for croppable, cell in enumerate(cells)}
    blocks, ends = [], []
    for (row, column), croppable in number.items():
        for south, east in ((0, 1), (1, 0)):
            other = number.get((row + 2 * south, column + 2 * east))
            if other is not None:
                blocks.append((row + south) * side + column + east)
                ends.append((croppable, other))
    pairs = np.array(ends)
    beside = tuple(np.flatnonzero((pairs == croppable).any(axis=1)) for croppable in range(len(cells)))
    return Layout(np.array([row * side + column for row, column in cells]), np.array(blocks), pairs, beside)


def spanning_trees(order: Array, side: int) -> Array:
    """Kruskal's algorithm on n mazes at once: the blocks are gone through in `order` (n, W), and one is opened if there
    is no way yet between its two rooms. Which are open: (n, W) bool."""
    n, W = order.shape
    _, _, ends, beside = layout(side)
    every = np.arange(n)
    # Rooms that are connected bear the same number.
    group = np.tile(np.arange(len(beside)), (n, 1))
    opened = np.zeros((n, W), dtype=bool)
    for block in order.T:
        first, second = group[every, ends[block, 0]], group[every, ends[block, 1]]
        opened[every, block] = first != second
        group = np.where(group == second[:, None], first[:, None], group)
    return opened


def open_dead_ends(opened: Array, numbers: Array, side: int) -> Array:
    """The same mazes (n, W) without dead ends; `numbers` (n, R) are random."""
    opened = opened.copy()
    for croppable, blocks in enumerate(layout(side).beside):
        closed = ~opened[:, blocks]
        dead_end = closed.sum(axis=1) == len(blocks) - 1
        choice = below(numbers[:, croppable], len(blocks) - 1)
        chosen = closed & (closed.cumsum(axis=1) == 1 + choice[:, None])
        opened[:, blocks] |= chosen & dead_end[:, None]
    return opened


class MazeNavigation(Batched):
    arrays = (*Batched.arrays, "cells", "cell", "direction", "target")
    action_names: tuple[str, ...] = ("forward", "left", "right")

    def __init__(self, config: Config, rows: range, seed: int) -> None:
        super().__init__(rows, seed)
        check_at_least(3, side=config.side)
        check_at_least(2, targets=config.targets)
        check_at_least(1, steps=config.steps)
        check_at_most(LARGEST, side=config.side)
        if config.side % 2 == 0:
            raise ValueError(f"side is {config.side}; it must be odd, because rooms and blocks take turns")
        most = min(2 * len(layout(config.side).rooms) - 2, len(COLORS))
        if config.targets > most:
            raise ValueError(f"targets is {config.targets}; a maze of side {config.side} has room for {most}")
        self.config, self.limit = config, config.steps
        self.observation_space = MultiDiscrete((*(OBJECT + config.targets,) * 9, config.targets))
        # With the wall around it a maze is `width` cells wide; they are numbered row * width + column.
        self.width = config.side + 2
        inside = np.arange(1, config.side + 1)
        self._inside = (inside[:, None] * self.width + inside).ravel()
        self._steps, self._surroundings = steps(self.width), surroundings(self.width)
        self._first = np.arange(self.B) * self.width**2  # each row's first place in `cells`
        self.numbers_to_begin = 2 + len(layout(config.side).blocks) + len(layout(config.side).rooms) + config.side**2
        self.cells = np.full((self.B, self.width**2), WALL, dtype=np.int8)
        self.cell, self.direction, self.target = np.zeros((3, self.B), dtype=np.int64)

    def beginning(self, numbers: Array) -> dict[str, Array]:
        side, targets = self.config.side, self.config.targets
        rooms, blocks, _, _ = layout(side)
        rest, order, ways, places = np.split(numbers, np.cumsum((2, len(blocks), len(rooms))), axis=1)
        opened = open_dead_ends(spanning_trees(shuffled(order), side), ways, side)

        maze = np.full((len(numbers), side**2), WALL, dtype=np.int8)
        maze[:, rooms] = FREE
        maze[:, blocks] = np.where(opened, FREE, WALL)
        # Walls come last in a random order of cells; objects take the first, the agent the next.
        places = np.where(maze == FREE, places >> np.uint64(1), np.uint64(2**64 - 1))
        taken = shuffled(places)[:, : targets + 1]
        np.put_along_axis(maze, taken[:, :targets], np.arange(OBJECT, OBJECT + targets, dtype=np.int8)[None], axis=1)

        cells = np.full((len(numbers), self.width**2), WALL, dtype=np.int8)
        cells[:, self._inside] = maze
        return {
            "cells": cells,
            "cell": self._inside[taken[:, targets]],
            "direction": self.first_direction(rest[:, 0]),
            "target": below(rest[:, 1], targets),
        }

    def first_direction(self, numbers: Array) -> Array:
        return below(numbers, 4)

    def advance(self, actions: Array) -> tuple[Array, Array]:
        self.cell = self.move(actions)
        reached = self.cells.ravel()[self._first + self.cell] == OBJECT + self.target
        rows = np.flatnonzero(reached)
        if len(rows):
            others = self.config.targets - 1
            self.target[rows] = (self.target[rows] + 1 + below(self.random(rows, 1)[:, 0], others)) % (others + 1)
        return reached.astype(np.float32), np.zeros(self.B, dtype=bool)

    def move(self, actions: Array) -> Array:
        """Turn, and give the cell (B,) after the action."""
        self.direction = (self.direction + TURNS[actions]) % 4
        return np.where(actions == FORWARD, self.ahead(self.direction), self.cell)

    def ahead(self, direction: Array) -> Array:
        """The next cell (B,) in a direction, or the same before a wall."""
        ahead = self.cell + self._steps[direction]
        return np.where(self.cells.ravel()[self._first + ahead] == WALL, self.cell, ahead)

    def observe(self) -> Array:
        observed = np.empty((self.B, 10), dtype=np.int64)
        around = (self._first + self.cell)[:, None] + self._surroundings[self.direction]  # (B, 9)
        observed[:, :9] = self.cells.ravel()[around]
        observed[:, 9] = self.target
        return observed

    def render(self, row: int = 0) -> Array:
        """The maze from above: what the agent sees is lit, the target has a ring, its color is in the strip above."""
        picture = Tiles(self.width + 1, self.width, 24, FLOOR)
        seen = self.cell[row] + self._surroundings[NORTH]
        for cell, content in enumerate(self.cells[row]):
            place = self._place(cell)
            if content == WALL:
                picture.fill(*place, SEEN_WALL if cell in seen else WALL_COLOR)
            else:
                picture.fill(*place, SEEN if cell in seen else FLOOR, LINE)
            if content >= OBJECT:
                picture.disc(*place, COLORS[content - OBJECT])
            if content == OBJECT + self.target[row]:
                picture.ring(*place, AGENT)
        picture.disc(0, self.width // 2, COLORS[self.target[row]], radius=0.45)
        self.draw_agent(picture, *self._place(int(self.cell[row])), int(self.direction[row]))
        return picture.array()

    def _place(self, cell: int) -> tuple[int, int]:
        """Where a cell is in a picture, below the strip."""
        return cell // self.width + 1, cell % self.width

    def draw_agent(self, picture: Tiles, row: int, column: int, direction: int) -> None:
        picture.arrow(row, column, AGENT, direction)


class MazeNavigationEasy(MazeNavigation):
    """One action a direction: east, north, west, south. The view never turns."""

    action_names = DIRECTIONS

    def first_direction(self, numbers: Array) -> Array:
        return np.full(len(numbers), NORTH)

    def move(self, actions: Array) -> Array:
        return self.ahead(actions)

    def draw_agent(self, picture: Tiles, row: int, column: int, direction: int) -> None:
        picture.disc(row, column, AGENT, radius=0.28)
