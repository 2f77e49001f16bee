"""Draw the environments of the first paper after some random steps: docs/pictures/corridor.png and others.

python examples/environments.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.image
import numpy as np

from stairwell.rl import make

# Name of the picture: environment, its options, how many steps, actions to choose from.
PICTURES = {
    "corridor": ("stairwell/Corridor-v0", {"length": 20}, 8, 1),
    "maze-navigation": ("stairwell/MazeNavigation-v0", {}, 40, 3),
    "maze-navigation-easy": ("stairwell/MazeNavigationEasy-v0", {}, 40, 4),
    "water-maze": ("stairwell/WaterMaze-v0", {}, 40, 4),
}


def draw(name: str) -> np.ndarray:
    environment_name, options, steps, choices = PICTURES[name]
    environment = make(environment_name, range(1), seed=1, **options)
    environment.reset()
    for action in np.random.default_rng(0).integers(0, choices, (steps, 1)):
        environment.step(action)
    return environment.render()


def main(folder: Path) -> None:
    for name in PICTURES:
        matplotlib.image.imsave(folder / f"{name}.png", draw(name), pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs/pictures")
