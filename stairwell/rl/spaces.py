"""Observation and action spaces as values that are saved as JSON, so that loading a run does not need gymnasium.

    Discrete(n)            one of 0 .. n - 1
    MultiDiscrete(nvec)    integers, each with its own number of values, in an array of `shape`
    Box(shape, low, high)  an array of numbers within bounds
    Dict, Tuple            named and numbered spaces

`from_gymnasium` and `to_gymnasium` convert. Unsupported spaces raise an error that names the path to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stairwell.errors import install_command

if TYPE_CHECKING:
    import gymnasium

GYMNASIUM = "gymnasium>=1.1"
MISSING_GYMNASIUM = f"gymnasium 1.1 or newer is not installed: {install_command(GYMNASIUM)}"


@dataclass(frozen=True)
class Discrete:
    n: int
    """Number of values, counted from 0."""

    def __post_init__(self) -> None:
        _check_nvec((self.n,), "Discrete")

    def to_json(self) -> dict[str, Any]:
        return {"type": "discrete", "n": self.n}


@dataclass(frozen=True)
class MultiDiscrete:
    nvec: tuple[int, ...]
    """Number of values of each element, in row-major order."""
    shape: tuple[int, ...] = ()
    """Shape of the array; by default a vector."""

    def __post_init__(self) -> None:
        _check_nvec(self.nvec, "MultiDiscrete")
        if not self.shape:
            object.__setattr__(self, "shape", (len(self.nvec),))
        if math.prod(self.shape) != len(self.nvec):
            raise ValueError(f"MultiDiscrete has {len(self.nvec)} sizes but shape {self.shape}")

    def to_json(self) -> dict[str, Any]:
        return {"type": "multi-discrete", "nvec": list(self.nvec), "shape": list(self.shape)}


@dataclass(frozen=True)
class Box:
    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    """Lower bound, one for all elements or one per element in row-major order."""
    high: float | tuple[float, ...] = math.inf
    """Upper bound, like `low`."""
    dtype: str = "float32"
    """Element type of the array."""

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            bound = getattr(self, name)
            if isinstance(bound, tuple) and len(bound) != math.prod(self.shape):
                raise ValueError(
                    f"`{name}` of a Box of shape {self.shape} has {len(bound)} numbers; "
                    "it must have one, or one per element"
                )
        if np.dtype(self.dtype).kind not in "fiub":
            raise ValueError(f"Box has dtype {self.dtype}; it must be real, such as float32 or uint8")

    def to_json(self) -> dict[str, Any]:
        bounds = {"low": _bound_to_json(self.low), "high": _bound_to_json(self.high)}
        return {"type": "box", "shape": list(self.shape), **bounds, "dtype": self.dtype}


@dataclass(frozen=True)
class Dict:
    spaces: tuple[tuple[str, Space], ...]
    """Names and spaces, in order."""

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("Dict is empty; it must contain at least one space")

    def to_json(self) -> dict[str, Any]:
        return {"type": "dict", "spaces": [[name, space.to_json()] for name, space in self.spaces]}


@dataclass(frozen=True)
class Tuple:
    spaces: tuple[Space, ...]

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("Tuple is empty; it must contain at least one space")

    def to_json(self) -> dict[str, Any]:
        return {"type": "tuple", "spaces": [space.to_json() for space in self.spaces]}


Space = Discrete | MultiDiscrete | Box | Dict | Tuple
TYPES = ("discrete", "multi-discrete", "box", "dict", "tuple")


def from_json(data: Mapping[str, Any]) -> Space:
    match data.get("type"):
        case "discrete":
            return Discrete(data["n"])
        case "multi-discrete":
            return MultiDiscrete(tuple(data["nvec"]), tuple(data["shape"]))
        case "box":
            low, high = _bound_from_json(data["low"]), _bound_from_json(data["high"])
            return Box(tuple(data["shape"]), low, high, data["dtype"])
        case "dict":
            return Dict(tuple((name, from_json(space)) for name, space in data["spaces"]))
        case "tuple":
            return Tuple(tuple(from_json(space) for space in data["spaces"]))
        case other:
            raise ValueError(f"unknown space type '{other}'; the types are {', '.join(TYPES)}")


def from_gymnasium(space: gymnasium.Space[Any], path: str = "space") -> Space:
    """Convert a gymnasium space; `path` names it in errors. MultiBinary becomes MultiDiscrete with two values each."""
    try:
        from gymnasium import spaces
    except ImportError as missing:
        raise ImportError(MISSING_GYMNASIUM) from missing

    if isinstance(space, spaces.Discrete):
        _check_start(space.start, space, path)
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        _check_start(space.start, space, path)
        return MultiDiscrete(tuple(space.nvec.ravel().tolist()), space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape), space.shape)
    if isinstance(space, spaces.Box):
        return Box(space.shape, _bound(space.low), _bound(space.high), str(space.dtype))
    if isinstance(space, spaces.Dict):
        return Dict(tuple((name, from_gymnasium(child, f"{path}['{name}']")) for name, child in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return Tuple(tuple(from_gymnasium(child, f"{path}[{i}]") for i, child in enumerate(space.spaces)))
    raise ValueError(
        f"{path} is a {type(space).__name__}, which is not supported; supported are Discrete, MultiDiscrete, "
        "MultiBinary, Box, Dict and Tuple (a wrapper such as FilterObservation can remove it)"
    )


def to_gymnasium(space: Space) -> gymnasium.Space[Any]:
    try:
        from gymnasium import spaces
    except ImportError as missing:
        raise ImportError(MISSING_GYMNASIUM) from missing

    match space:
        case Discrete(n):
            return spaces.Discrete(n)
        case MultiDiscrete(nvec, shape):
            return spaces.MultiDiscrete(np.array(nvec).reshape(shape))
        case Box(shape, low, high, dtype):
            bounds = [np.broadcast_to(np.reshape(b, shape if isinstance(b, tuple) else ()), shape) for b in (low, high)]
            scalar: Any = np.dtype(dtype).type
            return spaces.Box(bounds[0].astype(scalar), bounds[1].astype(scalar), shape, scalar)
        case Dict(children):
            # Pairs, because gymnasium sorts the names of a plain dict.
            return spaces.Dict([(name, to_gymnasium(child)) for name, child in children])
        case Tuple(children):
            return spaces.Tuple([to_gymnasium(child) for child in children])


def _check_nvec(nvec: tuple[int, ...], name: str) -> None:
    if not nvec or min(nvec) < 1:
        raise ValueError(f"{name} has sizes {list(nvec)}; there must be at least one size, each at least 1")


def _check_start(start: Any, space: object, path: str) -> None:
    if np.any(start):
        raise ValueError(f"{path} is {space}, which does not start at 0; only spaces that start at 0 are supported")


def _bound(values: np.ndarray[Any, Any]) -> float | tuple[float, ...]:
    numbers = [float(value) for value in values.ravel()]
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _bound_to_json(bound: float | tuple[float, ...]) -> Any:
    """Return a bound for JSON, which has no infinity: it is written as a string."""
    if isinstance(bound, tuple):
        return [_bound_to_json(number) for number in bound]
    return str(bound) if math.isinf(bound) else bound


def _bound_from_json(bound: Any) -> float | tuple[float, ...]:
    return tuple(float(number) for number in bound) if isinstance(bound, list) else float(bound)
