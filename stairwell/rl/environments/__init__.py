"""The first paper's environments, by the names under which gymnasium knows them.

environment = make("stairwell/Corridor-v0", rows=range(256), seed=1, length=30)
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any

from . import corridor, maze, water_maze
from .batched import Array, Batched, Position, Step
from .corridor import Corridor, PassiveTMaze
from .maze import MazeNavigation, MazeNavigationEasy
from .water_maze import WaterMaze

__all__ = [
    "ENVIRONMENTS", "Array", "Batched", "Corridor", "MazeNavigation", "MazeNavigationEasy", "PassiveTMaze", "Position",
    "Step", "WaterMaze", "make",
]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    title: str
    config: type[Any]
    environment: Any


ENVIRONMENTS = {
    "stairwell/Corridor-v0": Entry("Corridor", corridor.Config, Corridor),
    "stairwell/PassiveTMaze-v0": Entry("passive T-maze", corridor.TMazeConfig, PassiveTMaze),
    "stairwell/MazeNavigation-v0": Entry("Maze Navigation", maze.Config, MazeNavigation),
    "stairwell/MazeNavigationEasy-v0": Entry("Maze Navigation Easy", maze.Config, MazeNavigationEasy),
    "stairwell/WaterMaze-v0": Entry("Water Maze", water_maze.Config, WaterMaze),
}


def make(name: str, rows: range, seed: int, **options: Any) -> Batched:
    """An environment by name. Options are the fields of its Config."""
    if name not in ENVIRONMENTS:
        near = difflib.get_close_matches(name, ENVIRONMENTS, n=1, cutoff=0)
        raise ValueError(f"unknown environment '{name}'; did you mean '{near[0]}'?")
    entry = ENVIRONMENTS[name]
    known = [field.name for field in fields(entry.config)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option '{option}'; it has: {', '.join(known)}")
    environment: Batched = entry.environment(entry.config(**options), rows, seed)
    return environment
