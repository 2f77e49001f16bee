"""Observations and actions of any space as plain named arrays, one a leaf of the space.

leaves(space)                   {"observation.image": Box(...), "observation.direction": Discrete(4)}
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
FAR = 1e6  # a bound beyond this is none


def leaves(space: Space, path: str = ROOT) -> dict[str, Leaf]:
    """The spaces that hold numbers themselves, by their paths."""
    if isinstance(space, Dict | Tuple):
        found: dict[str, Leaf] = {}
        for name, part in _parts(space):
            found |= leaves(part, f"{path}.{name}")
        return found
    return {path: space}


def flatten(space: Space, values: Any, path: str = ROOT) -> dict[str, Array]:
    """What gymnasium gives for many rows at once, by the same paths. Nothing is checked here."""
    if isinstance(space, Dict | Tuple):
        found: dict[str, Array] = {}
        for name, part in _parts(space):
            found |= flatten(part, values[name], f"{path}.{name}")
        return found
    return {path: np.asarray(values)}


def shape(leaf: Leaf) -> tuple[int, ...]:
    """Of one row."""
    return () if isinstance(leaf, Discrete) else leaf.shape


def frame_bytes(space: Space) -> int:
    """Bytes of one observation as rollouts keep it (`as_tensor`)."""
    return sum(math.prod(shape(leaf)) * _width(leaf) for leaf in leaves(space).values())


def _width(leaf: Leaf) -> int:
    kind = np.dtype(leaf.dtype) if isinstance(leaf, Box) else np.dtype(np.int64)
    return 1 if kind == np.uint8 else 4 if kind.kind == "f" else 8


def real_numbers(space: Space) -> int:
    """Numbers of one observation that encoders read as float32."""
    return sum(math.prod(leaf.shape) for leaf in leaves(space).values() if isinstance(leaf, Box))


def symbols(space: Space) -> int:
    """Values of one observation for which encoders have a vector each."""
    found = (leaf for leaf in leaves(space).values() if not isinstance(leaf, Box))
    return sum(leaf.n if isinstance(leaf, Discrete) else sum(leaf.sizes) for leaf in found)


def bounds(box: Box) -> tuple[Array, Array]:
    """The lowest and highest value of each place, in row-major order."""
    size = int(np.prod(box.shape))
    low, high = (np.broadcast_to(np.asarray(bound, dtype=np.float64), size) for bound in (box.low, box.high))
    return low, high


def scaling(box: Box) -> tuple[Array, Array]:
    """The middle and half the width of each place: (x - middle) / half is in -1 .. 1. Without bounds, 0 and 1."""
    low, high = bounds(box)
    bounded = (abs(low) < FAR) & (abs(high) < FAR) & (high > low)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    return (high + low) / 2, (high - low) / 2


def fault(leaf: Leaf, values: Array, rows: int) -> str:
    """What is wrong with the values of `rows` rows, in words; nothing if they are as the space says."""
    wanted = (rows, *shape(leaf))
    if values.shape != wanted:
        return f"has shape {values.shape}, not {wanted}"
    if isinstance(leaf, Box):
        if values.dtype.kind not in "fiub":
            return f"is of {values.dtype}, not numbers"
        return "" if np.isfinite(values).all() else "holds NaN or infinity"
    if values.dtype.kind not in "iub":
        return f"is of {values.dtype}, not whole numbers"
    sizes = np.asarray(leaf.n if isinstance(leaf, Discrete) else np.reshape(leaf.sizes, leaf.shape))
    wrong = (values < 0) | (values >= sizes)
    return f"holds {values[wrong][0]}, which is out of its range" if wrong.any() else ""


def _parts(space: Dict | Tuple) -> list[tuple[Any, Space]]:
    return list(space.parts) if isinstance(space, Dict) else list(enumerate(space.parts))
