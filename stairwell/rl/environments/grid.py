"""Shared parts of grid environments: directions, the cells around an agent, and images made of tiles.

Cell (row, column) of a grid of width W has the index `row * W + column`. Rows go south, columns east. Directions are
ordered east, north, west, south, so that a left turn adds 1.
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
MOVES = np.array([(0, 1), (-1, 0), (0, -1), (1, 0)])  # (rows, columns) of a step in each direction

# The first eight are as distinct as eight colors can be; the first two are the blue and green of the paper's corridor.
COLORS: tuple[Color, ...] = (
    (38, 110, 215), (40, 165, 70), (215, 45, 45), (250, 195, 20),
    (145, 65, 195), (25, 185, 200), (240, 125, 20), (235, 110, 180),
    (120, 80, 45), (130, 150, 25), (20, 50, 110), (150, 150, 150),
)  # fmt: skip
WALL: Color = (62, 68, 80)
FLOOR: Color = (246, 246, 242)
VISIBLE: Color = (255, 238, 170)
VISIBLE_WALL: Color = (128, 122, 96)
LINE: Color = (222, 222, 216)
AGENT: Color = (20, 20, 24)


def move_offsets(width: int) -> Array:
    """Return what a step in each direction adds to a cell's index: (4,)."""
    return MOVES @ (width, 1)


def view_offsets(width: int) -> Array:
    """Return what to add to a cell's index for the 3x3 cells around it, for an agent that faces each direction: (4, 9).
    The top row is ahead of the agent, the left column is on its left."""
    view = np.array([(up, right) for up in (1, 0, -1) for right in (-1, 0, 1)])  # (9, 2)
    ahead = move_offsets(width)
    return ahead[:, None] * view[:, 0] + np.roll(ahead, 1)[:, None] * view[:, 1]


class TileImage:
    """An image of rows x columns square tiles."""

    def __init__(self, rows: int, columns: int, size: int, background: Color = FLOOR) -> None:
        self.size = size
        self.pixels = np.empty((rows * size, columns * size, 3), dtype=np.float64)
        self.pixels[:] = background

    def fill(self, row: int, column: int, color: Color, border: Color | None = None) -> None:
        tile = self._tile(row, column)
        tile[:] = color
        if border is not None:
            tile[0], tile[:, 0] = border, border

    def disc(self, row: int, column: int, color: Color, radius: float = 0.36) -> None:
        self._blend(row, column, color, _disc(self.size, radius))

    def ring(self, row: int, column: int, color: Color, radius: float = 0.48, hole: float = 0.42) -> None:
        self._blend(row, column, color, _disc(self.size, radius) - _disc(self.size, hole))

    def arrow(self, row: int, column: int, color: Color, direction: int) -> None:
        """Draw an arrowhead that points in a direction."""
        self._blend(row, column, color, np.rot90(_arrow(self.size), direction))

    def door(self, row: int, column: int, color: Color) -> None:
        """Draw a panel with a handle."""
        self.fill(row, column, color)
        self._blend(row, column, AGENT, np.roll(_disc(self.size, 0.08), self.size // 4, axis=1))

    def to_array(self) -> Array:
        return np.rint(self.pixels).astype(np.uint8)

    def _tile(self, row: int, column: int) -> Array:
        size = self.size
        return self.pixels[row * size : (row + 1) * size, column * size : (column + 1) * size]

    def _blend(self, row: int, column: int, color: Color, alpha: Array) -> None:
        """Blend a color into a tile with opacity alpha (size, size)."""
        tile = self._tile(row, column)
        tile += alpha[..., None] * (np.array(color) - tile)


def _coverage(size: int, inside: Any) -> Array:
    """Return the share of each pixel inside a shape: (size, size). `inside` takes x and y from -0.5 to 0.5."""
    samples = 4
    x = (np.arange(size * samples) + 0.5) / (size * samples) - 0.5
    mask: Array = inside(x[None, :], x[:, None])
    return mask.reshape(size, samples, size, samples).mean(axis=(1, 3))


@cache
def _disc(size: int, radius: float) -> Array:
    return _coverage(size, lambda x, y: x**2 + y**2 < radius**2)


@cache
def _arrow(size: int) -> Array:
    """Return an arrowhead pointing east, notched at the back."""
    return _coverage(size, lambda x, y: (abs(y) < 0.55 * (0.42 - x)) & (x > -0.36 + 0.42 * (0.4 - abs(y))))
