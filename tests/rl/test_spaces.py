"""Spaces are converted to and from JSON and gymnasium, and unsupported ones raise."""

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
def test_spaces_survive_json(space: Space) -> None:
    # Strict JSON: infinities are strings.
    text = json.dumps(space.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == space
    assert hash(from_json(json.loads(text))) == hash(space)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_gymnasium(space: Space) -> None:
    theirs = to_gymnasium(space)
    theirs.seed(0)
    assert from_gymnasium(theirs) == space
    assert theirs.contains(theirs.sample())


def test_bounds_dtype_and_order_are_converted_to_gymnasium() -> None:
    box = to_gymnasium(SPACES[5])
    assert isinstance(box, spaces.Box) and box.dtype == np.float64
    assert box.low.tolist() == [-1, -math.inf] and box.high.tolist() == [1, 2.5]
    named = to_gymnasium(SPACES[7])
    assert isinstance(named, spaces.Dict) and list(named.spaces) == ["z", "a"]
    grid = to_gymnasium(SPACES[2])
    assert isinstance(grid, spaces.MultiDiscrete) and grid.nvec.tolist() == [[2, 3], [4, 5]]


def test_gymnasium_spaces_are_converted() -> None:
    assert from_gymnasium(spaces.MultiBinary((2, 2))) == MultiDiscrete((2, 2, 2, 2), (2, 2))
    assert from_gymnasium(gymnasium.make("CartPole-v1").action_space) == Discrete(2)
    cart = from_gymnasium(gymnasium.make("CartPole-v1").observation_space)
    assert isinstance(cart, Box) and cart.shape == (4,) and isinstance(cart.low, tuple) and cart.low[1] == -math.inf


@pytest.mark.parametrize(
    "space, message",
    [
        (spaces.Text(3), "^observation is a Text, which is not supported; supported are Discrete"),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])), r"^observation\['a'\]\[1\] is a Text"),
        (spaces.Discrete(3, start=1), r"^observation is Discrete\(3, start=1\), which does not start at 0"),
        (spaces.MultiDiscrete([2, 2], start=[0, 1]), "does not start at 0"),
        (spaces.Sequence(spaces.Discrete(2)), "is a Sequence"),
    ],
)
def test_unsupported_spaces_raise_with_their_path(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_gymnasium(space, "observation")


def test_the_mission_of_minigrid_is_not_supported() -> None:
    import minigrid  # noqa: F401

    space = gymnasium.make("MiniGrid-MemoryS9-v0").observation_space
    with pytest.raises(ValueError, match=r"space\['mission'\] is a MissionSpace, .*FilterObservation"):
        from_gymnasium(space)
    assert isinstance(space, spaces.Dict)
    assert from_gymnasium(space["image"]) == Box((7, 7, 3), 0.0, 255.0, "uint8")


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Discrete(0), r"Discrete has sizes \[0\]"),
        (lambda: MultiDiscrete(()), "there must be at least one size"),
        (lambda: MultiDiscrete((2, 2), (3,)), r"2 sizes but shape \(3,\)"),
        (lambda: Box((2,), (0.0, 0.0, 0.0)), r"`low` of a Box of shape \(2,\) has 3 numbers"),
        (lambda: Box((2,), dtype="complex64"), "Box has dtype complex64"),
        (lambda: Dict(()), "Dict is empty"),
        (lambda: Tuple(()), "Tuple is empty"),
        (lambda: from_json({"type": "round"}), "unknown space type 'round'; the types are discrete"),
    ],
)
def test_invalid_spaces_raise(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_own_environments_work_without_gymnasium() -> None:
    """In a process that cannot import it."""
    program = """
import sys
sys.modules["gymnasium"] = None
import stairwell.rl
from stairwell.rl.spaces import Discrete, from_json, to_gymnasium
assert from_json(Discrete(3).to_json()) == Discrete(3)
stairwell.rl.make("stairwell/WaterMaze-v0", range(2), 0).reset()
for attempt in (lambda: to_gymnasium(Discrete(3)), lambda: __import__("stairwell.rl.gym")):
    try:
        attempt()
    except ImportError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == 'gymnasium 1.1 or newer is not installed: pip install "gymnasium>=1.1"\n' * 2
