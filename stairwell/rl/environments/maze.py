"""Maze Navigation: reach colored objects in a random maze with a 3x3 view (Fan et al., arXiv 2002.09402, 4.2.2, 6.1,
7.2, Figures 4, 6 and 10).

Each episode has a new maze, made by Kruskal's algorithm and without dead ends, with objects of different colors. One
color is the target. Reaching its object gives a reward of 1 and a new target. The agent observes the 3x3 cells around
it and the target's color, but not its location or direction. The actions of `MazeNavigation` are forward, left and
right; `MazeNavigationEasy` has one action per direction and no orientation.

The paper leaves the following open; this is our choice:
- A maze of side n has n x n cells, each free or blocked, surrounded by a wall. Cells with two even coordinates are
  rooms; a block between two rooms can be opened. A 9x9 maze has 25 rooms.
- A dead end is a room with one open side. Rooms are visited row by row; if a room is still a dead end, one of its
  closed blocks is opened, chosen uniformly.
- Objects and the agent start in different free cells. Objects stay in place and can be walked over. The target's object
  looks like the others. A new target is one of the other colors.
- With an orientation, the top row of the view is ahead of the agent and the initial direction is random. Without one,
  north is up.
- Walking into a wall does nothing.
- An episode is truncated after `max_steps` steps: the agent does not observe the time.
- Observation: the 3x3 cells, row by row (0 free, 1 wall, c + 2 object of color c), then the target's color.

Letters: B environments, n some of them, R rooms, W blocks between rooms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from stairwell import configs
from stairwell.tasks.generated import check_at_least, check_at_most

from ..spaces import MultiDiscrete
from .batched_env import Array, BatchedEnv, random_integers, random_permutations
from .grid import (
    AGENT,
    COLORS,
    DIRECTIONS,
    FLOOR,
    LINE,
    NORTH,
    VISIBLE,
    VISIBLE_WALL,
    TileImage,
    move_offsets,
    view_offsets,
)
from .grid import WALL as WALL_COLOR

FORWARD, LEFT, RIGHT = range(3)
FREE, WALL, OBJECT = range(3)  # an object of color c is OBJECT + c
MAX_SIDE = 201  # 64 mazes of this side take half a minute
TURNS = np.array([0, 1, -1])


@dataclass(frozen=True)
class MazeConfig(configs.Config):
    side: int = 9
    """Number of cells along each side of the maze (odd)."""
    targets: int = 8
    """Number of objects, each of its own color."""
    max_steps: int = 200
    """Number of steps after which an episode is truncated."""


class Layout(NamedTuple):
    """Rooms and blocks of a maze of a given side."""

    rooms: Array  # (R,): cell indices
    blocks: Array  # (W,): indices of the cells between two rooms
    ends: Array  # (W, 2): the rooms on both sides of each block
    blocks_of_room: tuple[Array, ...]  # R arrays (2..4,): the blocks next to each room


@cache
def layout(side: int) -> Layout:
    """Return the layout. A cell's index within the maze is row * side + column."""
    even = range(0, side, 2)
    cells = [(row, column) for row in even for column in even]
    room_of_cell = {cell: room for room, cell in enumerate(cells)}
    blocks, ends = [], []
    for (row, column), room in room_of_cell.items():
        for south, east in ((0, 1), (1, 0)):
            other = room_of_cell.get((row + 2 * south, column + 2 * east))
            if other is not None:
                blocks.append((row + south) * side + column + east)
                ends.append((room, other))
    pairs = np.array(ends)
    blocks_of_room = tuple(np.flatnonzero((pairs == room).any(axis=1)) for room in range(len(cells)))
    return Layout(np.array([row * side + column for row, column in cells]), np.array(blocks), pairs, blocks_of_room)


def spanning_trees(order: Array, side: int) -> Array:
    """Run Kruskal's algorithm on n mazes at once: go through the blocks in `order` (n, W) and open a block if its two
    rooms are not connected yet. Return which blocks are open: (n, W) bool."""
    n, W = order.shape
    _, _, ends, blocks_of_room = layout(side)
    mazes = np.arange(n)
    # Connected rooms have the same component number.
    component = np.tile(np.arange(len(blocks_of_room)), (n, 1))
    opened = np.zeros((n, W), dtype=bool)
    for block in order.T:
        first, second = component[mazes, ends[block, 0]], component[mazes, ends[block, 1]]
        opened[mazes, block] = first != second
        component = np.where(component == second[:, None], first[:, None], component)
    return opened


def open_dead_ends(opened: Array, random: Array, side: int) -> Array:
    """Return the mazes (n, W) with further blocks opened so that there are no dead ends. random (n, R) uint64"""
    opened = opened.copy()
    for room, blocks in enumerate(layout(side).blocks_of_room):
        closed = ~opened[:, blocks]
        dead_end = closed.sum(axis=1) == len(blocks) - 1
        choice = random_integers(random[:, room], len(blocks) - 1)
        chosen = closed & (closed.cumsum(axis=1) == 1 + choice[:, None])
        opened[:, blocks] |= chosen & dead_end[:, None]
    return opened


class MazeNavigation(BatchedEnv):
    state_names = (*BatchedEnv.state_names, "cells", "cell", "direction", "target")
    action_names: tuple[str, ...] = ("forward", "left", "right")

    def __init__(self, config: MazeConfig, indices: range, seed: int) -> None:
        super().__init__(indices, seed)
        check_at_least(3, side=config.side)
        check_at_least(2, targets=config.targets)
        check_at_least(1, max_steps=config.max_steps)
        check_at_most(MAX_SIDE, side=config.side)
        if config.side % 2 == 0:
            raise ValueError(f"side is {config.side}; it must be odd, because rooms and blocks alternate")
        max_targets = min(2 * len(layout(config.side).rooms) - 2, len(COLORS))
        if config.targets > max_targets:
            raise ValueError(f"targets is {config.targets}; a maze of side {config.side} holds at most {max_targets}")
        self.config, self.max_steps = config, config.max_steps
        self.observation_space = MultiDiscrete((*(OBJECT + config.targets,) * 9, config.targets))
        # `cells` includes the surrounding wall: the index of a cell is row * width + column.
        self.width = config.side + 2
        inside = np.arange(1, config.side + 1)
        self._inside = (inside[:, None] * self.width + inside).ravel()
        self._move_offsets, self._view_offsets = move_offsets(self.width), view_offsets(self.width)
        self._first_cell = np.arange(self.num_envs) * self.width**2  # of each environment in `cells.ravel()`
        self.reset_random_count = 2 + len(layout(config.side).blocks) + len(layout(config.side).rooms) + config.side**2
        self.cells = np.full((self.num_envs, self.width**2), WALL, dtype=np.int8)
        self.cell, self.direction, self.target = np.zeros((3, self.num_envs), dtype=np.int64)

    def initial_states(self, random: Array) -> dict[str, Array]:
        side, targets = self.config.side, self.config.targets
        rooms, blocks, _, _ = layout(side)
        rest, order, dead_ends, priority = np.split(random, np.cumsum((2, len(blocks), len(rooms))), axis=1)
        opened = open_dead_ends(spanning_trees(random_permutations(order), side), dead_ends, side)

        maze = np.full((len(random), side**2), WALL, dtype=np.int8)
        maze[:, rooms] = FREE
        maze[:, blocks] = np.where(opened, FREE, WALL)
        # Walls come last in a random order of cells. Objects take the first cells, the agent takes the next.
        priority = np.where(maze == FREE, priority >> np.uint64(1), np.uint64(2**64 - 1))
        taken = random_permutations(priority)[:, : targets + 1]
        np.put_along_axis(maze, taken[:, :targets], np.arange(OBJECT, OBJECT + targets, dtype=np.int8)[None], axis=1)

        cells = np.full((len(random), self.width**2), WALL, dtype=np.int8)
        cells[:, self._inside] = maze
        return {
            "cells": cells,
            "cell": self._inside[taken[:, targets]],
            "direction": self.initial_direction(rest[:, 0]),
            "target": random_integers(rest[:, 1], targets),
        }

    def initial_direction(self, random: Array) -> Array:
        return random_integers(random, 4)

    def apply_actions(self, actions: Array) -> tuple[Array, Array]:
        self.cell = self.move(actions)
        reached = self.cells.ravel()[self._first_cell + self.cell] == OBJECT + self.target
        envs = np.flatnonzero(reached)
        if len(envs):
            others = self.config.targets - 1
            step = 1 + random_integers(self.random(envs, 1)[:, 0], others)
            self.target[envs] = (self.target[envs] + step) % (others + 1)
        return reached.astype(np.float32), np.zeros(self.num_envs, dtype=bool)

    def move(self, actions: Array) -> Array:
        """Turn the agents and return their cells (B,) after the action."""
        self.direction = (self.direction + TURNS[actions]) % 4
        return np.where(actions == FORWARD, self.ahead(self.direction), self.cell)

    def ahead(self, direction: Array) -> Array:
        """Return the next cell (B,) in a direction, or the current one in front of a wall."""
        ahead = self.cell + self._move_offsets[direction]
        return np.where(self.cells.ravel()[self._first_cell + ahead] == WALL, self.cell, ahead)

    def observe(self) -> Array:
        observations = np.empty((self.num_envs, 10), dtype=np.int64)
        view = (self._first_cell + self.cell)[:, None] + self._view_offsets[self.direction]  # (B, 9)
        observations[:, :9] = self.cells.ravel()[view]
        observations[:, 9] = self.target
        return observations

    def render(self, index: int = 0) -> Array:
        """Return an image of the maze from above. Visible cells are highlighted, the target has a ring, and its color
        is shown above the maze."""
        image = TileImage(self.width + 1, self.width, 24, FLOOR)
        visible = self.cell[index] + self._view_offsets[NORTH]
        for cell, content in enumerate(self.cells[index]):
            tile = self._tile(cell)
            if content == WALL:
                image.fill(*tile, VISIBLE_WALL if cell in visible else WALL_COLOR)
            else:
                image.fill(*tile, VISIBLE if cell in visible else FLOOR, LINE)
            if content >= OBJECT:
                image.disc(*tile, COLORS[content - OBJECT])
            if content == OBJECT + self.target[index]:
                image.ring(*tile, AGENT)
        image.disc(0, self.width // 2, COLORS[self.target[index]], radius=0.45)
        self.draw_agent(image, *self._tile(int(self.cell[index])), int(self.direction[index]))
        return image.to_array()

    def _tile(self, cell: int) -> tuple[int, int]:
        """Return the row and column of a cell's tile in the image, below the target's color."""
        return cell // self.width + 1, cell % self.width

    def draw_agent(self, image: TileImage, row: int, column: int, direction: int) -> None:
        image.arrow(row, column, AGENT, direction)


class MazeNavigationEasy(MazeNavigation):
    """Maze Navigation with one action per direction (east, north, west, south). The view does not rotate."""

    action_names = DIRECTIONS

    def initial_direction(self, random: Array) -> Array:
        return np.full(len(random), NORTH)

    def move(self, actions: Array) -> Array:
        return self.ahead(actions)

    def draw_agent(self, image: TileImage, row: int, column: int, direction: int) -> None:
        image.disc(row, column, AGENT, radius=0.28)
