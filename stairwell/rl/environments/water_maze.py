"""Water Maze: find a place that nothing marks from afar, then find it again (Fan et al., arXiv 2002.09402, 6.1, 7.3,
Figures 6 and 10; after Morris, 1981).

The pool is a grid without walls inside. An episode has a goal and a number for every cell, both drawn anew. The agent
observes the number of its own cell, that of the goal, and whether the goal is within the 3x3 cells around it, but not
where (7.3: "the agent can see if the goal is within a 3x3 area around it"). Reaching the goal gives a reward of 1 and
moves the agent to a random cell: an agent that remembers how it continued from a cell that it sees again is back
sooner. An episode ends after `steps` steps.

What the paper does not print is settled here:
- Actions: one a direction, east, north, west, south; at the edge of the pool nothing happens.
- The numbers are a random order of all cells, so that no two cells have the same.
- The agent starts, and is moved to, any cell but the goal, each with the same probability.
- The agent does not see the clock, so that the end after `steps` is a truncation.
- Observation: the number of its cell, the number of the goal's, and 1 if the goal is within the 3x3 cells, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell import configs
from stairwell.tasks.generated import check_at_least, check_at_most

from ..spaces import MultiDiscrete
from .batched import Array, Batched, below, shuffled
from .grid import AGENT, DIRECTIONS, SEEN, STEPS, WALL, Color, Tiles

SHALLOW, DEEP = np.array([205, 228, 246]), np.array([120, 174, 222])
LARGEST = 1001  # cells along a side
GOAL: Color = (215, 45, 45)


@dataclass(frozen=True)
class Config(configs.Config):
    side: int = 15
    """cells along each side of the pool"""
    steps: int = 200
    """steps of an episode"""


class WaterMaze(Batched):
    arrays = (*Batched.arrays, "numbers", "goal", "cell")
    action_names = DIRECTIONS

    def __init__(self, config: Config, rows: range, seed: int) -> None:
        super().__init__(rows, seed)
        check_at_least(2, side=config.side)
        check_at_least(1, steps=config.steps)
        check_at_most(LARGEST, side=config.side)
        self.config, self.limit = config, config.steps
        self.cells = config.side**2
        self.observation_space = MultiDiscrete((self.cells, self.cells, 2))
        self.numbers_to_begin = 2 + self.cells
        self.numbers = np.zeros((self.B, self.cells), dtype=np.int32)  # of each cell
        self.goal, self.cell = np.zeros((2, self.B), dtype=np.int64)
        self._rows = np.arange(self.B)
        self._next = _transitions(config.side)

    def beginning(self, numbers: Array) -> dict[str, Array]:
        goal = below(numbers[:, 0], self.cells)
        return {"numbers": shuffled(numbers[:, 2:]), "goal": goal, "cell": self._elsewhere(goal, numbers[:, 1])}

    def advance(self, actions: Array) -> tuple[Array, Array]:
        self.cell = self._next[self.cell, actions]
        reached = self.cell == self.goal
        rows = np.flatnonzero(reached)
        if len(rows):
            self.cell[rows] = self._elsewhere(self.goal[rows], self.random(rows, 1)[:, 0])
        return reached.astype(np.float32), np.zeros(self.B, dtype=bool)

    def observe(self) -> Array:
        side = self.config.side
        south = self.goal // side - self.cell // side
        east = self.goal % side - self.cell % side
        near = (abs(south) <= 1) & (abs(east) <= 1)
        seen = np.empty((self.B, 3), dtype=np.int64)
        seen[:, 0] = self.numbers[self._rows, self.cell]
        seen[:, 1] = self.numbers[self._rows, self.goal]
        seen[:, 2] = near
        return seen

    def render(self, row: int = 0) -> Array:
        """The pool from above, darker where the number is higher; what the agent sees is lit, the goal is red."""
        side = self.config.side
        picture = Tiles(side + 2, side + 2, 20, WALL)
        at, goal = divmod(int(self.cell[row]), side), divmod(int(self.goal[row]), side)
        for cell, number in enumerate(self.numbers[row]):
            y, x = divmod(cell, side)
            seen = max(abs(y - at[0]), abs(x - at[1])) <= 1
            water = SHALLOW + (DEEP - SHALLOW) * (number / self.cells)
            if seen:
                water = (water + 2 * np.array(SEEN)) / 3
            picture.fill(y + 1, x + 1, tuple(water.astype(int)), (240, 247, 252))
        picture.fill(goal[0] + 1, goal[1] + 1, GOAL)
        picture.disc(at[0] + 1, at[1] + 1, AGENT, radius=0.3)
        return picture.array()

    def _elsewhere(self, goal: Array, numbers: Array) -> Array:
        """Random cells that are not the goal."""
        return (goal + 1 + below(numbers, self.cells - 1)) % self.cells


def _transitions(side: int) -> Array:
    """(cells, 4): the cell after a step in each direction."""
    places = np.indices((side, side)).reshape(2, -1).T  # (cells, 2)
    after = np.clip(places[:, None] + STEPS, 0, side - 1)
    return after @ (side, 1)
