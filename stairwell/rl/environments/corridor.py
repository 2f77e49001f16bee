"""Corridor: remember a color while walking down a long hallway (Fan et al., arXiv 2002.09402, 4.1.1 and Figure 3).

The agent starts before a colored object, walks down a corridor and goes through the door of that color at its end.

What the paper does not print is settled here:
- The object's color is seen in the first cell only, the doors' colors in the last only; the hallway between looks the
  same everywhere. Observation: the object's color, then each door's, 0 where there is none, color c as c + 1.
- Actions: 0 walks on, i + 1 goes through door i. Doors can be reached in the last cell only and walking ends there;
  elsewhere these actions do nothing. It takes `length` steps to the last cell and one more through a door.
- The reward is 1 for the right door and 0 for a wrong one, which ends the episode too: the mean return is the rate of
  success, and chance is one over the number of colors.
- Door i has color i. "The only task is to remember the color": where the doors stand is nothing to find out. With
  `shuffled` they change places from episode to episode.

`PassiveTMaze` is the same under its name elsewhere (Bakker, 2001; Ni et al., arXiv 2307.03864): two doors, which are
the arms of a T, a clock that allows `length` + 1 steps, and a penalty of 1 / `length` for each step up to the junction
after which the agent is behind one that only walked. (Ni et al. have a fourth action, which walks back.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell import configs
from stairwell.tasks.generated import check_at_least

from ..spaces import MultiDiscrete
from .batched import Array, Batched, below, shuffled
from .grid import AGENT, COLORS, EAST, FLOOR, LINE, SEEN, WALL, Tiles


@dataclass(frozen=True)
class Config(configs.Config):
    length: int = 100
    """steps from the object to the doors"""
    colors: int = 2
    """colors of objects, and doors"""
    shuffled: bool = False
    """let the doors change places from episode to episode"""
    limit: int = 0
    """steps until an episode is cut short; 0 allows 4 for each that is needed"""
    penalty: float = 0.0
    """what an agent that never walks loses in `length` steps"""


class Corridor(Batched):
    arrays = (*Batched.arrays, "color", "doors", "cell")

    def __init__(self, config: Config, rows: range, seed: int) -> None:
        super().__init__(rows, seed)
        check_at_least(1, length=config.length)
        check_at_least(2, colors=config.colors)
        check_at_least(0, limit=config.limit)
        if config.colors > len(COLORS):
            raise ValueError(f"colors is {config.colors}; there are {len(COLORS)}")
        self.config = config
        self.limit = config.limit or 4 * (config.length + 1)
        self.observation_space = MultiDiscrete((config.colors + 1,) * (config.colors + 1))
        self.action_names = ("forward", *(f"door {i + 1}" for i in range(config.colors)))
        self.numbers_to_begin = 1 + config.colors
        self.color = np.zeros(self.B, dtype=np.int64)
        self.doors = np.zeros((self.B, config.colors), dtype=np.int64)  # (B, doors): the color of each
        self.cell = np.zeros(self.B, dtype=np.int64)
        self._rows = np.arange(self.B)

    @property
    def shortest(self) -> int:
        return min(self.limit, self.config.length + 1)

    def beginning(self, numbers: Array) -> dict[str, Array]:
        n = self.config.colors
        doors = shuffled(numbers[:, 1:]) if self.config.shuffled else np.arange(n)
        return {"color": below(numbers[:, 0], n), "doors": doors, "cell": np.array(0)}

    def advance(self, actions: Array) -> tuple[Array, Array]:
        length, penalty = self.config.length, self.config.penalty
        through = (actions > 0) & (self.cell == length)
        right = self.doors[self._rows, actions - 1] == self.color
        self.cell = np.minimum(self.cell + (actions == 0), length)
        rewards = (through & right).astype(np.float32)
        if penalty:
            behind = (self.cell < self.time) & (self.time <= length)
            rewards -= behind * np.float32(penalty / length)
        return rewards, through

    def observe(self) -> Array:
        seen = np.zeros((self.B, self.config.colors + 1), dtype=np.int64)
        seen[:, 0] = (self.color + 1) * (self.cell == 0)
        seen[:, 1:] = (self.doors + 1) * (self.cell == self.config.length)[:, None]
        return seen

    def render(self, row: int = 0) -> Array:
        """The hallway from the object on the left to the doors on the right; where colors are seen it is lit."""
        length, n, cell = self.config.length, self.config.colors, int(self.cell[row])
        size = max(6, min(24, 800 // (length + 5)))
        # With an even number of doors there is none straight ahead.
        height = n + 2 + (n % 2 == 0)
        middle = height // 2
        picture = Tiles(height, length + 5, size, WALL)
        for column in range(1, length + 3):
            picture.fill(middle, column, SEEN if cell == 0 and column < 3 else FLOOR, LINE)
        for place in range(1, height - 1):
            picture.fill(place, length + 2, SEEN if cell == length else FLOOR, LINE)
        picture.disc(middle, 1, COLORS[self.color[row]])
        places = [place for place in range(1, height - 1) if n % 2 or place != middle]
        for place, color in zip(places, self.doors[row]):
            picture.door(place, length + 3, COLORS[color])
        picture.arrow(middle, cell + 2, AGENT, EAST)
        return picture.array()


@dataclass(frozen=True)
class TMazeConfig(configs.Config):
    length: int = 100
    """steps from the start to the junction"""


class PassiveTMaze(Corridor):
    def __init__(self, config: TMazeConfig, rows: range, seed: int) -> None:
        check_at_least(1, length=config.length)
        super().__init__(Config(length=config.length, limit=config.length + 1, penalty=1.0), rows, seed)
