"""The environments of Fan et al. (arXiv 2002.09402), by their gymnasium names.

env = make("stairwell/Corridor-v0", indices=range(256), seed=1, length=30)
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any

from . import corridor, maze, water_maze
from .batched_env import Array, BatchedEnv, StepResult
from .corridor import Corridor, PassiveTMaze
from .maze import MazeNavigation, MazeNavigationEasy
from .water_maze import WaterMaze

__all__ = [
    "ENVIRONMENTS", "Array", "BatchedEnv", "Corridor", "MazeNavigation", "MazeNavigationEasy", "PassiveTMaze",
    "StepResult", "WaterMaze", "make",
]  # fmt: skip


@dataclass(frozen=True)
class EnvSpec:
    title: str
    config: type[Any]
    env: Any


ENVIRONMENTS = {
    "stairwell/Corridor-v0": EnvSpec("Corridor", corridor.CorridorConfig, Corridor),
    "stairwell/PassiveTMaze-v0": EnvSpec("passive T-maze", corridor.TMazeConfig, PassiveTMaze),
    "stairwell/MazeNavigation-v0": EnvSpec("Maze Navigation", maze.MazeConfig, MazeNavigation),
    "stairwell/MazeNavigationEasy-v0": EnvSpec("Maze Navigation Easy", maze.MazeConfig, MazeNavigationEasy),
    "stairwell/WaterMaze-v0": EnvSpec("Water Maze", water_maze.WaterMazeConfig, WaterMaze),
}


def make(name: str, indices: range, seed: int, **options: Any) -> BatchedEnv:
    """Return a batched environment by name. The options are the fields of its Config."""
    if name not in ENVIRONMENTS:
        closest = difflib.get_close_matches(name, ENVIRONMENTS, n=1, cutoff=0)
        raise ValueError(f"unknown environment '{name}'; did you mean '{closest[0]}'?")
    spec = ENVIRONMENTS[name]
    names = [field.name for field in fields(spec.config)]
    for option in options:
        if option not in names:
            raise ValueError(f"{name} has no option '{option}'; its options are {', '.join(names)}")
    env: BatchedEnv = spec.env(spec.config(**options), indices, seed)
    return env
