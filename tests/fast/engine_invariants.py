"""Invariants that take arguments, for all engine tests."""

from __future__ import annotations

from typing import Any

from tests import invariants


def check(case: invariants.Case, engine: Any, cuts: list[int], position: int, windowed: bool = True) -> None:
    """Check split, causality and batch order with the engine; `windowed`: also window and crop (needs max_crop=3)."""
    case.core.engine = engine
    B, T, _ = case.x.shape
    invariants.split(case, [cut for cut in cuts if cut < T])
    invariants.causal(case, position % T)
    invariants.independent(case, list(range(B))[::-1])
    if windowed:
        invariants.window(case)
        invariants.crop(case, [position % 4] * B)
