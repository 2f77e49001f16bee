"""Water Maze: find a goal that is invisible from afar, then find it again (Fan et al., arXiv 2002.09402, 6.1, 7.3,
Figures 6 and 10; after Morris, 1981).

The pool is a grid without inner walls. Each episode has a random goal and a random label per cell. The agent observes
the label of its cell, the label of the goal, and whether the goal is within the 3x3 cells around it, but not where
(7.3: "the agent can see if the goal is within a 3x3 area around it"). Reaching the goal gives a reward of 1 and moves
the agent to a random cell. An agent that remembers how it continued from a cell it has seen before is back sooner.

The paper leaves the following open; this is our choice:
- Actions: one per direction (east, north, west, south). Walking into the edge of the pool does nothing.
- The labels are a random permutation of all cells, so no two cells have the same label.
- The agent starts in, and is moved to, a uniformly random cell other than the goal.
- An episode is truncated after `max_steps` steps: the agent does not observe the time.
- Observation: the label of the agent's cell, the label of the goal, and 1 if the goal is within the 3x3 cells, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell import configs
from stairwell.tasks.generated import check_at_least, check_at_most

from ..spaces import MultiDiscrete
from .batched_env import Array, BatchedEnv, random_integers, random_permutations
from .grid import AGENT, DIRECTIONS, MOVES, VISIBLE, WALL, Color, TileImage

SHALLOW, DEEP = np.array([205, 228, 246]), np.array([120, 174, 222])
MAX_SIDE = 1001
GOAL: Color = (215, 45, 45)


@dataclass(frozen=True)
class WaterMazeConfig(configs.Config):
    side: int = 15
    """Number of cells along each side of the pool."""
    max_steps: int = 200
    """Number of steps after which an episode is truncated."""


class WaterMaze(BatchedEnv):
    state_names = (*BatchedEnv.state_names, "labels", "goal", "cell")
    action_names = DIRECTIONS

    def __init__(self, config: WaterMazeConfig, indices: range, seed: int) -> None:
        super().__init__(indices, seed)
        check_at_least(2, side=config.side)
        check_at_least(1, max_steps=config.max_steps)
        check_at_most(MAX_SIDE, side=config.side)
        self.config, self.max_steps = config, config.max_steps
        self.num_cells = config.side**2
        self.observation_space = MultiDiscrete((self.num_cells, self.num_cells, 2))
        self.reset_random_count = 2 + self.num_cells
        self.labels = np.zeros((self.num_envs, self.num_cells), dtype=np.int32)
        self.goal, self.cell = np.zeros((2, self.num_envs), dtype=np.int64)
        self._envs = np.arange(self.num_envs)
        self._next_cell = _transitions(config.side)

    def initial_states(self, random: Array) -> dict[str, Array]:
        goal = random_integers(random[:, 0], self.num_cells)
        cell = self._random_cell_except(goal, random[:, 1])
        return {"labels": random_permutations(random[:, 2:]), "goal": goal, "cell": cell}

    def apply_actions(self, actions: Array) -> tuple[Array, Array]:
        self.cell = self._next_cell[self.cell, actions]
        reached = self.cell == self.goal
        envs = np.flatnonzero(reached)
        if len(envs):
            self.cell[envs] = self._random_cell_except(self.goal[envs], self.random(envs, 1)[:, 0])
        return reached.astype(np.float32), np.zeros(self.num_envs, dtype=bool)

    def observe(self) -> Array:
        side = self.config.side
        south = self.goal // side - self.cell // side
        east = self.goal % side - self.cell % side
        near = (abs(south) <= 1) & (abs(east) <= 1)
        observations = np.empty((self.num_envs, 3), dtype=np.int64)
        observations[:, 0] = self.labels[self._envs, self.cell]
        observations[:, 1] = self.labels[self._envs, self.goal]
        observations[:, 2] = near
        return observations

    def render(self, index: int = 0) -> Array:
        """Return an image of the pool from above. Higher labels are darker, visible cells are highlighted, the goal is
        red."""
        side = self.config.side
        image = TileImage(side + 2, side + 2, 20, WALL)
        agent, goal = divmod(int(self.cell[index]), side), divmod(int(self.goal[index]), side)
        for cell, label in enumerate(self.labels[index]):
            y, x = divmod(cell, side)
            visible = max(abs(y - agent[0]), abs(x - agent[1])) <= 1
            water = SHALLOW + (DEEP - SHALLOW) * (label / self.num_cells)
            if visible:
                water = (water + 2 * np.array(VISIBLE)) / 3
            image.fill(y + 1, x + 1, tuple(water.astype(int)), (240, 247, 252))
        image.fill(goal[0] + 1, goal[1] + 1, GOAL)
        image.disc(agent[0] + 1, agent[1] + 1, AGENT, radius=0.3)
        return image.to_array()

    def _random_cell_except(self, goal: Array, random: Array) -> Array:
        return (goal + 1 + random_integers(random, self.num_cells - 1)) % self.num_cells


def _transitions(side: int) -> Array:
    """Return the cell after a step from each cell in each direction: (cells, 4)."""
    cells = np.indices((side, side)).reshape(2, -1).T  # (cells, 2)
    following = np.clip(cells[:, None] + MOVES, 0, side - 1)
    return following @ (side, 1)
