"""Spaces are saved as JSON, come from gymnasium and go back, and say what is not supported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from stairwell.rl.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    Tuple,
    from_gymnasium,
    from_json,
    to_gymnasium,
)

SPACES: list[Space] = [
    Discrete(5),
    MultiDiscrete((2, 3, 4)),
    MultiDiscrete((2, 3, 4, 5), (2, 2)),
    Box((3,)),
    Box((7, 7, 3), 0.0, 255.0, "uint8"),
    Box((2,), (-1.0, -math.inf), (1.0, 2.5), "float64"),
    Box(()),
    Dict((("z", Discrete(2)), ("a", Box((1,), -1.0, 1.0)))),
    Tuple((Discrete(2), Dict((("inner", Tuple((MultiDiscrete((2, 2)),))),)))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back_from_json(space: Space) -> None:
    # Strict JSON: infinities are words.
    text = json.dumps(space.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == space
    assert hash(from_json(json.loads(text))) == hash(space)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back_from_gymnasium(space: Space) -> None:
    theirs = to_gymnasium(space)
    theirs.seed(0)
    assert from_gymnasium(theirs) == space
    assert theirs.contains(theirs.sample())


def test_gymnasium_gets_the_bounds_type_and_order() -> None:
    box = to_gymnasium(SPACES[5])
    assert isinstance(box, spaces.Box) and box.dtype == np.float64
    assert box.low.tolist() == [-1, -math.inf] and box.high.tolist() == [1, 2.5]
    named = to_gymnasium(SPACES[7])
    assert isinstance(named, spaces.Dict) and list(named.spaces) == ["z", "a"]
    grid = to_gymnasium(SPACES[2])
    assert isinstance(grid, spaces.MultiDiscrete) and grid.nvec.tolist() == [[2, 3], [4, 5]]


def test_what_gymnasium_has_becomes_ours() -> None:
    assert from_gymnasium(spaces.MultiBinary((2, 2))) == MultiDiscrete((2, 2, 2, 2), (2, 2))
    assert from_gymnasium(gymnasium.make("CartPole-v1").action_space) == Discrete(2)
    cart = from_gymnasium(gymnasium.make("CartPole-v1").observation_space)
    assert isinstance(cart, Box) and cart.shape == (4,) and isinstance(cart.low, tuple) and cart.low[1] == -math.inf


@pytest.mark.parametrize(
    "space, told",
    [
        (spaces.Text(3), "^observation is a Text, which is not supported; supported are Discrete"),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])), r"^observation\['a'\]\[1\] is a Text"),
        (spaces.Discrete(3, start=1), r"^observation is Discrete\(3, start=1\), which does not begin at 0"),
        (spaces.MultiDiscrete([2, 2], start=[0, 1]), "does not begin at 0"),
        (spaces.Sequence(spaces.Discrete(2)), "is a Sequence"),
    ],
)
def test_what_is_not_supported_is_told_with_its_place(space: spaces.Space[Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_gymnasium(space, "observation")


def test_a_minigrid_observation_names_the_part_that_is_not_supported() -> None:
    import minigrid  # noqa: F401

    space = gymnasium.make("MiniGrid-MemoryS9-v0").observation_space
    with pytest.raises(ValueError, match=r"space\['mission'\] is a MissionSpace, .*FilterObservation"):
        from_gymnasium(space)
    assert isinstance(space, spaces.Dict)
    assert from_gymnasium(space["image"]) == Box((7, 7, 3), 0.0, 255.0, "uint8")


@pytest.mark.parametrize(
    "build, told",
    [
        (lambda: Discrete(0), r"Discrete of sizes \[0\]"),
        (lambda: MultiDiscrete(()), "there must be some"),
        (lambda: MultiDiscrete((2, 2), (3,)), r"2 sizes in shape \(3,\)"),
        (lambda: Box((2,), (0.0, 0.0, 0.0)), r"3 numbers as `low` of a Box of shape \(2,\)"),
        (lambda: Box((2,), dtype="complex64"), "Box of complex64"),
        (lambda: Dict(()), "without parts"),
        (lambda: Tuple(()), "without parts"),
        (lambda: from_json({"kind": "round"}), "unknown kind of space 'round'; there are: discrete"),
    ],
)
def test_mistakes_are_told(build: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build()


def test_everything_but_gymnasium_works_without_gymnasium() -> None:
    """In a process of its own that cannot import it."""
    program = """
import sys
sys.modules["gymnasium"] = None
import stairwell.rl
from stairwell.rl.spaces import Discrete, from_json, to_gymnasium
assert from_json(Discrete(3).to_json()) == Discrete(3)
environment = stairwell.rl.make("stairwell/WaterMaze-v0", range(2), 0)
environment.reset()
for attempt in (lambda: to_gymnasium(Discrete(3)), lambda: __import__("stairwell.rl.gym")):
    try:
        attempt()
    except ImportError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "gymnasium 1.1 or newer is not installed: pip install 'stairwell[rl]'\n" * 2
