"""Corridor: remember a color while walking down a long hallway (Fan et al., arXiv 2002.09402, 4.1.1 and Figure 3).

The agent starts in front of a colored object, walks down a corridor and must take the door of that color at its end.

The paper leaves the following open; this is our choice:
- The object's color is visible in the first cell only, the doors' colors in the last cell only. The hallway looks the
  same everywhere. Observation: the object's color, then each door's color; 0 if not visible, c + 1 for color c.
- Actions: 0 walks forward, i + 1 takes door i. Doors can be taken in the last cell only; elsewhere these actions do
  nothing. The last cell is `length` steps away, and taking a door is one more step.
- The reward is 1 for the right door and 0 for a wrong one. Both end the episode. The mean return is the success rate,
  and chance level is 1 / `colors`.
- Door i has color i, since "the only task is to remember the color". With `shuffled` the order of the doors is random
  in each episode.

`PassiveTMaze` is the same task as known elsewhere (Bakker, 2001; Ni et al., arXiv 2307.03864): two doors, which are the
arms of a T, a time limit of `length` + 1 steps, and a penalty of 1 / `length` for each step up to the junction at which
the agent is behind one that walks forward in every step. (Ni et al. have a fourth action, which walks back.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell import configs
from stairwell.tasks.generated import check_at_least

from ..spaces import MultiDiscrete
from .batched_env import Array, BatchedEnv, random_integers, random_permutations
from .grid import AGENT, COLORS, EAST, FLOOR, LINE, VISIBLE, WALL, TileImage


@dataclass(frozen=True)
class CorridorConfig(configs.Config):
    length: int = 100
    """Number of steps from the object to the doors."""
    colors: int = 2
    """Number of object colors, and of doors."""
    shuffled: bool = False
    """Shuffle the doors in each episode."""
    max_steps: int = 0
    """Number of steps after which an episode is truncated; 0 for 4 times the steps needed."""
    penalty: float = 0.0
    """Sum of penalties of an agent that does not walk for `length` steps."""


class Corridor(BatchedEnv):
    state_names = (*BatchedEnv.state_names, "color", "doors", "cell")

    def __init__(self, config: CorridorConfig, indices: range, seed: int) -> None:
        super().__init__(indices, seed)
        check_at_least(1, length=config.length)
        check_at_least(2, colors=config.colors)
        check_at_least(0, max_steps=config.max_steps)
        if config.colors > len(COLORS):
            raise ValueError(f"colors is {config.colors}; it must be at most {len(COLORS)}")
        self.config = config
        self.max_steps = config.max_steps or 4 * (config.length + 1)
        self.observation_space = MultiDiscrete((config.colors + 1,) * (config.colors + 1))
        self.action_names = ("forward", *(f"door {i + 1}" for i in range(config.colors)))
        self.reset_random_count = 1 + config.colors
        self.color = np.zeros(self.num_envs, dtype=np.int64)
        self.doors = np.zeros((self.num_envs, config.colors), dtype=np.int64)  # (B, doors): the color of each
        self.cell = np.zeros(self.num_envs, dtype=np.int64)
        self._envs = np.arange(self.num_envs)

    @property
    def min_episode_steps(self) -> int:
        return min(self.max_steps, self.config.length + 1)

    def initial_states(self, random: Array) -> dict[str, Array]:
        n = self.config.colors
        doors = random_permutations(random[:, 1:]) if self.config.shuffled else np.arange(n)
        return {"color": random_integers(random[:, 0], n), "doors": doors, "cell": np.array(0)}

    def apply_actions(self, actions: Array) -> tuple[Array, Array]:
        length, penalty = self.config.length, self.config.penalty
        through_door = (actions > 0) & (self.cell == length)
        correct = self.doors[self._envs, actions - 1] == self.color
        self.cell = np.minimum(self.cell + (actions == 0), length)
        rewards = (through_door & correct).astype(np.float32)
        if penalty:
            behind = (self.cell < self.elapsed_steps) & (self.elapsed_steps <= length)
            rewards -= behind * np.float32(penalty / length)
        return rewards, through_door

    def observe(self) -> Array:
        observations = np.zeros((self.num_envs, self.config.colors + 1), dtype=np.int64)
        observations[:, 0] = (self.color + 1) * (self.cell == 0)
        observations[:, 1:] = (self.doors + 1) * (self.cell == self.config.length)[:, None]
        return observations

    def render(self, index: int = 0) -> Array:
        """Return an image of the hallway, from the object on the left to the doors on the right. Visible cells are
        highlighted."""
        length, n, cell = self.config.length, self.config.colors, int(self.cell[index])
        size = max(6, min(24, 800 // (length + 5)))
        # With an even number of doors there is none straight ahead.
        height = n + 2 + (n % 2 == 0)
        middle = height // 2
        image = TileImage(height, length + 5, size, WALL)
        for column in range(1, length + 3):
            image.fill(middle, column, VISIBLE if cell == 0 and column < 3 else FLOOR, LINE)
        for row in range(1, height - 1):
            image.fill(row, length + 2, VISIBLE if cell == length else FLOOR, LINE)
        image.disc(middle, 1, COLORS[self.color[index]])
        door_rows = [row for row in range(1, height - 1) if n % 2 or row != middle]
        for row, color in zip(door_rows, self.doors[index]):
            image.door(row, length + 3, COLORS[color])
        image.arrow(middle, cell + 2, AGENT, EAST)
        return image.to_array()


@dataclass(frozen=True)
class TMazeConfig(configs.Config):
    length: int = 100
    """Number of steps from the start to the junction."""


class PassiveTMaze(Corridor):
    def __init__(self, config: TMazeConfig, indices: range, seed: int) -> None:
        check_at_least(1, length=config.length)
        super().__init__(CorridorConfig(length=config.length, max_steps=config.length + 1, penalty=1.0), indices, seed)
