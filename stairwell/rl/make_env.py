"""Environments by name: stairwell's own, which need nothing else, or those of gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stairwell.errors import UserError

from .environments import ENVIRONMENTS, make
from .rows import OwnRows, Rows


def full_name(name: str) -> str:
    """`corridor` and `maze-navigation` are short for stairwell's own environments."""
    return SHORT.get(name.lower(), name)


def open_rows(name: str, options: Mapping[str, Any], rows: range, seed: int) -> Rows:
    """An environment by its name; its options are those of its Config, or of gymnasium's `make`."""
    name = full_name(name)
    if name in ENVIRONMENTS:
        try:
            return OwnRows(make(name, rows, seed, **options))
        except ValueError as error:
            raise UserError(str(error)) from None
    from .gymnasium_rows import open_gymnasium  # gymnasium may be missing

    return open_gymnasium(name, options, rows, seed)


def _short(title: str) -> str:
    return title.lower().replace(" ", "-")


SHORT = {_short(entry.title): name for name, entry in ENVIRONMENTS.items()} | {
    "maze": "stairwell/MazeNavigation-v0",
    "maze-easy": "stairwell/MazeNavigationEasy-v0",
    "t-maze": "stairwell/PassiveTMaze-v0",
}
