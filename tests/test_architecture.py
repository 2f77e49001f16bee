"""Imports point downward only, including those inside functions, and there are no import cycles."""

from __future__ import annotations

import pytest

from tools import architecture

pytestmark = pytest.mark.quick


def test_every_module_is_in_a_layer() -> None:
    assert {architecture.part_of(name) for name in architecture.graph()} == set(architecture.ORDER)


def test_no_layer_imports_a_higher_one() -> None:
    assert architecture.upward(architecture.graph()) == []


def test_there_are_no_import_cycles() -> None:
    assert architecture.cycles(architecture.graph()) == []


def test_the_table_of_contributing_has_every_package() -> None:
    text = (architecture.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name.strip(" `").removesuffix("/").removesuffix(".py") for cell in table for name in cell.split(",")}
    assert set(architecture.ORDER) - {"version"} <= named


def test_upward_imports_and_cycles_are_detected() -> None:
    edges = {"stairwell.state": {"stairwell.cli"}, "stairwell.cli": {"stairwell.state", "stairwell"}}
    assert architecture.upward(edges) == ["stairwell.state imports stairwell.cli", "stairwell.cli imports stairwell"]
    assert architecture.cycles(edges) == ["stairwell.cli -> stairwell.state -> stairwell.cli"]


def test_imports_inside_functions_and_relative_imports_are_detected() -> None:
    def imports(name: str) -> set[str]:
        modules = architecture.modules()
        return architecture.imports(name, modules[name], modules)

    assert {"stairwell.runs.launch", "stairwell.cli.display"} <= imports("stairwell.cli.train")
    assert "stairwell.tasks.scores" in imports("stairwell.tasks.random_walk")
