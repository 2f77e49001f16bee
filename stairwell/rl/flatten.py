"""Nested spaces and their values as flat dictionaries: one entry per leaf, named by its path.

leaf_spaces(space)              {"observation.image": Box(...), "observation.direction": Discrete(4)}
flatten(space, observations)    {"observation.image": (B, 7, 7, 3), "observation.direction": (B,)}
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .environments import Array
from .spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple

Leaf = Discrete | MultiDiscrete | Box
ROOT = "observation"
ACTION_MASK = "action_mask"  # an entry in addition to the leaves, (B, P) uint8, if the environment masks actions
MAX_BOUND = 1e6  # larger bounds count as unbounded


def leaf_spaces(space: Space, path: str = ROOT) -> dict[str, Leaf]:
    """Return the leaves of a space by path."""
    if isinstance(space, Dict | Tuple):
        leaves: dict[str, Leaf] = {}
        for name, child in _children(space):
            leaves |= leaf_spaces(child, f"{path}.{name}")
        return leaves
    return {path: space}


def flatten(space: Space, values: Any, path: str = ROOT) -> dict[str, Array]:
    """Return the values of a gymnasium vector environment by path. Nothing is checked here."""
    if isinstance(space, Dict | Tuple):
        leaves: dict[str, Array] = {}
        for name, child in _children(space):
            leaves |= flatten(child, values[name], f"{path}.{name}")
        return leaves
    return {path: np.asarray(values)}


def leaf_shape(leaf: Leaf) -> tuple[int, ...]:
    return () if isinstance(leaf, Discrete) else leaf.shape


def leaf_nvec(leaf: Discrete | MultiDiscrete) -> tuple[int, ...]:
    """Return the number of values of each element, in row-major order."""
    return (leaf.n,) if isinstance(leaf, Discrete) else leaf.nvec


def observation_bytes(space: Space) -> int:
    """Return the size of one observation as rollouts store it (`to_tensor`)."""
    return sum(math.prod(leaf_shape(leaf)) * _element_bytes(leaf) for leaf in leaf_spaces(space).values())


def _element_bytes(leaf: Leaf) -> int:
    dtype = np.dtype(leaf.dtype) if isinstance(leaf, Box) else np.dtype(np.int64)
    return 1 if dtype == np.uint8 else 4 if dtype.kind == "f" else 8


def num_box_elements(space: Space) -> int:
    """Return the number of elements of all boxes in a space, which encoders read as float32."""
    return sum(math.prod(leaf.shape) for leaf in leaf_spaces(space).values() if isinstance(leaf, Box))


def num_discrete_values(space: Space) -> int:
    """Return the number of values of all discrete elements in a space: encoders have one embedding for each."""
    return sum(sum(leaf_nvec(leaf)) for leaf in leaf_spaces(space).values() if not isinstance(leaf, Box))


def bounds(box: Box) -> tuple[Array, Array]:
    """Return the lower and upper bound of each element, in row-major order."""
    size = int(np.prod(box.shape))
    low, high = (np.broadcast_to(np.asarray(bound, dtype=np.float64), size) for bound in (box.low, box.high))
    return low, high


def center_and_scale(box: Box) -> tuple[Array, Array]:
    """Return the values with which (x - center) / scale is in [-1, 1]; 0 and 1 for unbounded elements."""
    low, high = bounds(box)
    bounded = (abs(low) < MAX_BOUND) & (abs(high) < MAX_BOUND) & (high > low)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    return (high + low) / 2, (high - low) / 2


def find_error(leaf: Leaf, values: Array, num_envs: int) -> str:
    """Return what is wrong with the values of a vector environment; empty if they are in the space."""
    expected = (num_envs, *leaf_shape(leaf))
    if values.shape != expected:
        return f"has shape {values.shape}, not {expected}"
    if isinstance(leaf, Box):
        if values.dtype.kind not in "fiub":
            return f"has dtype {values.dtype}, which is not numeric"
        return "" if np.isfinite(values).all() else "contains NaN or infinity"
    if values.dtype.kind not in "iub":
        return f"has dtype {values.dtype}, not integers"
    invalid = (values < 0) | (values >= np.reshape(leaf_nvec(leaf), leaf_shape(leaf)))
    return f"contains {values[invalid][0]}, which is out of range" if invalid.any() else ""


def _children(space: Dict | Tuple) -> list[tuple[Any, Space]]:
    return list(space.spaces) if isinstance(space, Dict) else list(enumerate(space.spaces))
