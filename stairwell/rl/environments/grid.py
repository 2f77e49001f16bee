"""What environments on a grid share: directions, the cells around an agent, and pictures made of tiles.

Cell (row, column) of a grid of width W has the number `row * W + column`; rows are counted southwards, columns
eastwards. Directions are east, north, west, south, so that a left turn is the next one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Color = tuple[int, int, int]

DIRECTIONS = ("east", "north", "west", "south")
EAST, NORTH, WEST, SOUTH = range(4)
STEPS = np.array([(0, 1), (-1, 0), (0, -1), (1, 0)])  # (rows, columns) of a step in each direction

# The first eight are as far apart as eight colors can be; the first two are the corridor's blue and green.
COLORS: tuple[Color, ...] = (
    (38, 110, 215), (40, 165, 70), (215, 45, 45), (250, 195, 20),
    (145, 65, 195), (25, 185, 200), (240, 125, 20), (235, 110, 180),
    (120, 80, 45), (130, 150, 25), (20, 50, 110), (150, 150, 150),
)  # fmt: skip
WALL: Color = (62, 68, 80)
FLOOR: Color = (246, 246, 242)
SEEN: Color = (255, 238, 170)
SEEN_WALL: Color = (128, 122, 96)
LINE: Color = (222, 222, 216)
AGENT: Color = (20, 20, 24)


def steps(width: int) -> Array:
    """(4,): what a step in each direction adds to the number of a cell."""
    return STEPS @ (width, 1)


def surroundings(width: int) -> Array:
    """(4, 9): what to add to the number of a cell for the 3x3 cells around it, the way it lies before an agent that
    looks in each direction: the top row is ahead, the left column is on its left."""
    places = np.array([(up, right) for up in (1, 0, -1) for right in (-1, 0, 1)])  # (9, 2)
    ahead = steps(width)
    return ahead[:, None] * places[:, 0] + np.roll(ahead, 1)[:, None] * places[:, 1]


class Tiles:
    """A picture of rows x columns square tiles."""

    def __init__(self, rows: int, columns: int, size: int, ground: Color = FLOOR) -> None:
        self.size = size
        self.pixels = np.empty((rows * size, columns * size, 3), dtype=np.float64)
        self.pixels[:] = ground

    def fill(self, row: int, column: int, color: Color, border: Color | None = None) -> None:
        tile = self._tile(row, column)
        tile[:] = color
        if border is not None:
            tile[0], tile[:, 0] = border, border

    def disc(self, row: int, column: int, color: Color, radius: float = 0.36) -> None:
        self._cover(row, column, color, _disc(self.size, radius))

    def ring(self, row: int, column: int, color: Color, radius: float = 0.48, hole: float = 0.42) -> None:
        self._cover(row, column, color, _disc(self.size, radius) - _disc(self.size, hole))

    def arrow(self, row: int, column: int, color: Color, direction: int) -> None:
        """An arrowhead that points in a direction."""
        self._cover(row, column, color, np.rot90(_arrow(self.size), direction))

    def door(self, row: int, column: int, color: Color) -> None:
        """A panel with a handle."""
        self.fill(row, column, color)
        self._cover(row, column, AGENT, np.roll(_disc(self.size, 0.08), self.size // 4, axis=1))

    def array(self) -> Array:
        return np.rint(self.pixels).astype(np.uint8)

    def _tile(self, row: int, column: int) -> Array:
        size = self.size
        return self.pixels[row * size : (row + 1) * size, column * size : (column + 1) * size]

    def _cover(self, row: int, column: int, color: Color, part: Array) -> None:
        """Lay a color over the part (0 to 1) of each pixel that a shape covers."""
        tile = self._tile(row, column)
        tile += part[..., None] * (np.array(color) - tile)


def _coverage(size: int, inside: Any) -> Array:
    """(size, size): how much of each pixel lies inside a shape, whose test takes x and y from -0.5 to 0.5."""
    fine = 4
    x = (np.arange(size * fine) + 0.5) / (size * fine) - 0.5
    mask: Array = inside(x[None, :], x[:, None])
    return mask.reshape(size, fine, size, fine).mean(axis=(1, 3))


@cache
def _disc(size: int, radius: float) -> Array:
    return _coverage(size, lambda x, y: x**2 + y**2 < radius**2)


@cache
def _arrow(size: int) -> Array:
    """Pointing east, notched at the back."""
    return _coverage(size, lambda x, y: (abs(y) < 0.55 * (0.42 - x)) & (x > -0.36 + 0.42 * (0.4 - abs(y))))
