"""The house: imports point downward only, lazy ones included, and nobody knows each other in a circle."""

from __future__ import annotations

from tools import house


def test_every_module_is_in_a_room() -> None:
    assert {house.room(name) for name in house.graph()} <= set(house.ROOMS)


def test_no_room_knows_one_above_it() -> None:
    assert house.upward(house.graph()) == []


def test_no_modules_know_each_other_in_a_circle() -> None:
    assert house.circles(house.graph()) == []


def test_lazy_relative_and_upward_imports_are_found() -> None:
    """The reading itself, on imports that break the rule."""
    edges = {"stairwell.state": {"stairwell.cli"}, "stairwell.cli": {"stairwell.state", "stairwell"}}
    assert house.upward(edges) == ["stairwell.state imports stairwell.cli", "stairwell.cli imports stairwell"]
    assert house.circles(edges) == ["stairwell.cli -> stairwell.state -> stairwell.cli"]
    lazy = house.imports("stairwell.cli.training", house.PACKAGE / "cli" / "training.py", house.modules())
    assert {"stairwell.runs.trainings", "stairwell.cli.display"} <= lazy
    relative = house.imports("stairwell.tasks.random_walk", house.PACKAGE / "tasks" / "random_walk.py", house.modules())
    assert "stairwell.tasks.scores" in relative
