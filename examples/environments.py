"""Render the environments of Fan et al. after some random steps: docs/pictures/corridor.png and others.

python examples/environments.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.image
import numpy as np

from stairwell.rl import make

# File name: environment, its options, number of steps, number of actions to choose from.
IMAGES = {
    "corridor": ("stairwell/Corridor-v0", {"length": 20}, 8, 1),
    "maze-navigation": ("stairwell/MazeNavigation-v0", {}, 40, 3),
    "maze-navigation-easy": ("stairwell/MazeNavigationEasy-v0", {}, 40, 4),
    "water-maze": ("stairwell/WaterMaze-v0", {}, 40, 4),
}


def render(image: str) -> np.ndarray:
    name, options, steps, actions = IMAGES[image]
    env = make(name, range(1), seed=1, **options)
    env.reset()
    for action in np.random.default_rng(0).integers(0, actions, (steps, 1)):
        env.step(action)
    return env.render()


def main(folder: Path) -> None:
    for image in IMAGES:
        matplotlib.image.imsave(folder / f"{image}.png", render(image), pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs/pictures")
