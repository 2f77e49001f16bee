"""The architecture: imports point downward only, lazy ones included, and have no cycles."""

from __future__ import annotations

import pytest

from tools import architecture

pytestmark = pytest.mark.quick


def test_every_module_is_in_a_room() -> None:
    assert {architecture.room(name) for name in architecture.graph()} <= set(architecture.ROOMS)


def test_no_room_knows_one_above_it() -> None:
    assert architecture.upward(architecture.graph()) == []


def test_no_modules_know_each_other_in_a_circle() -> None:
    assert architecture.circles(architecture.graph()) == []


def test_lazy_relative_and_upward_imports_are_found() -> None:
    """The reading itself, on imports that break the rule."""
    edges = {"stairwell.state": {"stairwell.cli"}, "stairwell.cli": {"stairwell.state", "stairwell"}}
    assert architecture.upward(edges) == ["stairwell.state imports stairwell.cli", "stairwell.cli imports stairwell"]
    assert architecture.circles(edges) == ["stairwell.cli -> stairwell.state -> stairwell.cli"]
    lazy = architecture.imports(
        "stairwell.cli.train", architecture.PACKAGE / "cli" / "training.py", architecture.modules()
    )
    assert {"stairwell.runs.launch", "stairwell.cli.display"} <= lazy
    relative = architecture.imports(
        "stairwell.tasks.random_walk", architecture.PACKAGE / "tasks" / "random_walk.py", architecture.modules()
    )
    assert "stairwell.tasks.scores" in relative
