"""Colors of the models: one per core, the same in reports, exported pages and plots (after Okabe and Ito, 2008)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Color(NamedTuple):
    light: str
    "On a light background and in PNG files."
    dark: str
    "On a dark background."
    dashes: tuple[float, ...] = ()
    "Lengths of dashes and gaps of a line; empty for a solid line."


# A color is referred to by its index: `var(--c0)` in CSS is PALETTE[0].
PALETTE = (
    Color("#0072b2", "#4ba8ec"),
    Color("#d55e00", "#f58142"),
    Color("#00875f", "#2fc596"),
    Color("#a8467f", "#e28cc3", (7, 4)),
    Color("#a87400", "#e6b13a", (2, 4)),
    Color("#3793c4", "#9fd8f7", (9, 3, 2, 3)),
    Color("#4d5259", "#c5cad1", (4, 3)),
    Color("#7b5b3a", "#c9a581", (1, 4)),
    Color("#5f4bb6", "#b5a7f5", (6, 2)),
    Color("#66700f", "#c2cc5a", (3, 3)),
)
CORE_COLORS = {
    "feedback": 0,
    "transformer-xl": 1,
    "lstm": 2,
    "staircase": 3,
    "cached-staircase": 4,
    "global-cached-staircase": 5,
    "deltanet": 6,
    "universal": 7,
}
TEXT, MUTED, RULE, BACKGROUND = "#1c2026", "#59626e", "#e2e0db", "#ffffff"  # of plots, as on the light page


def assign_colors(cores: Sequence[str]) -> list[int]:
    """Return one palette index per model, given their cores.

    The first model of a core gets the color of that core. Others get a free color, of no other core if possible."""
    chosen: list[int] = []
    for core in cores:
        free = [color for color in range(len(PALETTE)) if color not in chosen]
        unreserved = [color for color in free if color not in CORE_COLORS.values()]
        spare = unreserved or free or [len(chosen) % len(PALETTE)]
        own = CORE_COLORS.get(core)
        chosen.append(own if own is not None and own in free else spare[0])
    return chosen


def css_variables(theme: str) -> str:
    """Return the CSS variables --c0, --c1, ... of the `light` or the `dark` theme."""
    return " ".join(f"--c{i}: {getattr(color, theme)};" for i, color in enumerate(PALETTE))
