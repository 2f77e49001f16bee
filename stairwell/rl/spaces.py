"""What an agent observes and does, as small values that are saved as JSON: loading a run needs no gymnasium.

    Discrete(n)            one of 0..n-1
    MultiDiscrete(sizes)   one number a place, each with its own size, in an array of `shape`
    Box(shape, low, high)  an array of numbers within bounds
    Dict, Tuple            named and numbered parts, each a space

`from_gymnasium` and `to_gymnasium` convert; what stairwell has no encoder for is an error that names the place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium

MISSING_GYMNASIUM = "gymnasium 1.1 or newer is not installed: pip install 'stairwell[rl]'"


@dataclass(frozen=True)
class Discrete:
    n: int
    """how many values there are, from 0 on"""

    def __post_init__(self) -> None:
        _check_sizes((self.n,), "Discrete")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "discrete", "n": self.n}


@dataclass(frozen=True)
class MultiDiscrete:
    sizes: tuple[int, ...]
    """how many values each place has, places in row-major order"""
    shape: tuple[int, ...] = ()
    """how the places are arranged; left out, they are a vector"""

    def __post_init__(self) -> None:
        _check_sizes(self.sizes, "MultiDiscrete")
        if not self.shape:
            object.__setattr__(self, "shape", (len(self.sizes),))
        if math.prod(self.shape) != len(self.sizes):
            raise ValueError(f"MultiDiscrete of {len(self.sizes)} sizes in shape {self.shape}; they must agree")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "multi-discrete", "sizes": list(self.sizes), "shape": list(self.shape)}


@dataclass(frozen=True)
class Box:
    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    """one bound for all places, or one for each in row-major order"""
    high: float | tuple[float, ...] = math.inf
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            bound = getattr(self, name)
            if isinstance(bound, tuple) and len(bound) != math.prod(self.shape):
                raise ValueError(
                    f"{len(bound)} numbers as `{name}` of a Box of shape {self.shape}; give one, or one each"
                )
        if np.dtype(self.dtype).kind not in "fiub":
            raise ValueError(f"Box of {self.dtype}; it must hold real numbers, such as float32 or uint8")

    def to_json(self) -> dict[str, Any]:
        bounds = {"low": _bound_to_json(self.low), "high": _bound_to_json(self.high)}
        return {"kind": "box", "shape": list(self.shape), **bounds, "dtype": self.dtype}


@dataclass(frozen=True)
class Dict:
    parts: tuple[tuple[str, Space], ...]
    """names and their spaces, in order"""

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a Dict space without parts; it needs at least one")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "dict", "parts": [[name, part.to_json()] for name, part in self.parts]}


@dataclass(frozen=True)
class Tuple:
    parts: tuple[Space, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a Tuple space without parts; it needs at least one")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "tuple", "parts": [part.to_json() for part in self.parts]}


Space = Discrete | MultiDiscrete | Box | Dict | Tuple
KINDS = ("discrete", "multi-discrete", "box", "dict", "tuple")


def from_json(data: Mapping[str, Any]) -> Space:
    match data.get("kind"):
        case "discrete":
            return Discrete(data["n"])
        case "multi-discrete":
            return MultiDiscrete(tuple(data["sizes"]), tuple(data["shape"]))
        case "box":
            low, high = _bound_from_json(data["low"]), _bound_from_json(data["high"])
            return Box(tuple(data["shape"]), low, high, data["dtype"])
        case "dict":
            return Dict(tuple((name, from_json(part)) for name, part in data["parts"]))
        case "tuple":
            return Tuple(tuple(from_json(part) for part in data["parts"]))
        case kind:
            raise ValueError(f"unknown kind of space '{kind}'; there are: {', '.join(KINDS)}")


def from_gymnasium(space: gymnasium.Space[Any], place: str = "space") -> Space:
    """Our form of a gymnasium space; `place` is what an error calls it. MultiBinary becomes MultiDiscrete of twos."""
    try:
        from gymnasium import spaces
    except ImportError as missing:
        raise ImportError(MISSING_GYMNASIUM) from missing

    if isinstance(space, spaces.Discrete):
        _check_starts_at_zero(space.start, space, place)
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        _check_starts_at_zero(space.start, space, place)
        return MultiDiscrete(tuple(space.nvec.ravel().tolist()), space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape), space.shape)
    if isinstance(space, spaces.Box):
        return Box(space.shape, _bound(space.low), _bound(space.high), str(space.dtype))
    if isinstance(space, spaces.Dict):
        return Dict(tuple((name, from_gymnasium(part, f"{place}['{name}']")) for name, part in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return Tuple(tuple(from_gymnasium(part, f"{place}[{i}]") for i, part in enumerate(space.spaces)))
    raise ValueError(
        f"{place} is a {type(space).__name__}, which is not supported; supported are Discrete, MultiDiscrete, "
        "MultiBinary, Box, Dict and Tuple (a wrapper such as FilterObservation leaves parts out)"
    )


def to_gymnasium(space: Space) -> gymnasium.Space[Any]:
    try:
        from gymnasium import spaces
    except ImportError as missing:
        raise ImportError(MISSING_GYMNASIUM) from missing

    match space:
        case Discrete(n):
            return spaces.Discrete(n)
        case MultiDiscrete(sizes, shape):
            return spaces.MultiDiscrete(np.array(sizes).reshape(shape))
        case Box(shape, low, high, dtype):
            bounds = [np.broadcast_to(np.reshape(b, shape if isinstance(b, tuple) else ()), shape) for b in (low, high)]
            kind: Any = np.dtype(dtype).type
            return spaces.Box(bounds[0].astype(kind), bounds[1].astype(kind), shape, kind)
        case Dict(named):
            # Pairs, because gymnasium sorts the names of a plain dict.
            return spaces.Dict([(name, to_gymnasium(part)) for name, part in named])
        case Tuple(parts):
            return spaces.Tuple([to_gymnasium(part) for part in parts])


def _check_sizes(sizes: tuple[int, ...], kind: str) -> None:
    if not sizes or min(sizes) < 1:
        raise ValueError(f"{kind} of sizes {list(sizes)}; there must be some, each at least 1")


def _check_starts_at_zero(start: Any, space: object, place: str) -> None:
    if np.any(start):
        raise ValueError(f"{place} is {space}, which does not begin at 0; only values from 0 on are supported")


def _bound(values: np.ndarray[Any, Any]) -> float | tuple[float, ...]:
    numbers = [float(value) for value in values.ravel()]
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _bound_to_json(bound: float | tuple[float, ...]) -> Any:
    """JSON has no infinity, so that it is written as a word."""
    if isinstance(bound, tuple):
        return [_bound_to_json(number) for number in bound]
    return str(bound) if math.isinf(bound) else bound


def _bound_from_json(bound: Any) -> float | tuple[float, ...]:
    return tuple(float(number) for number in bound) if isinstance(bound, list) else float(bound)
