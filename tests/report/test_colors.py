"""Colors: one per core, and different ones for models of the same core."""

from __future__ import annotations

from stairwell.cores import CORES
from stairwell.report.colors import CORE_COLORS, PALETTE, assign_colors, css_variables


def test_cores_have_their_own_color_in_any_order() -> None:
    assert set(CORE_COLORS) <= set(CORES) and len(set(CORE_COLORS.values())) == len(CORE_COLORS)
    assert assign_colors(list(CORE_COLORS)) == list(CORE_COLORS.values())
    assert assign_colors(["lstm", "feedback"]) == [CORE_COLORS["lstm"], CORE_COLORS["feedback"]]


def test_further_models_of_a_core_get_spare_colors() -> None:
    first, second, other = assign_colors(["staircase", "staircase", "memory-network"])
    assert first == CORE_COLORS["staircase"] and not {second, other} & set(CORE_COLORS.values()) and second != other
    assert len(set(assign_colors(["lstm"] * len(PALETTE)))) == len(PALETTE)
    assert len(assign_colors(["lstm"] * 2 * len(PALETTE))) == 2 * len(PALETTE)


def test_css_has_all_colors_of_both_themes() -> None:
    for i, color in enumerate(PALETTE):
        assert f"--c{i}: {color.light};" in css_variables("light")
        assert f"--c{i}: {color.dark};" in css_variables("dark")
