"""Engines built for speed: the same results as the cores' own walks, from the same parameters.

`choose_engine(core, "auto")` gives a core the engine of its entry. Which code then runs, C++, PyTorch or the reference
after all, is decided call by call, where device and type are known; `core.engine_name` says it.
"""

from __future__ import annotations

from stairwell.cores import CORES, Core, engine_of
from stairwell.errors import UserError
from stairwell.fast import native
from stairwell.fast.delta import DeltaNetEngine
from stairwell.fast.feedback import FeedbackEngine
from stairwell.fast.staircase import StaircaseEngine
from stairwell.fast.transformer_xl import TransformerXLEngine

CORES["feedback"].engine = FeedbackEngine()
CORES["transformer-xl"].engine = CORES["universal"].engine = TransformerXLEngine()
CORES["deltanet"].engine = DeltaNetEngine()
for _name in ("staircase", "cached-staircase", "global-cached-staircase", "multi-vector-rnn", "memory-network"):
    CORES[_name].engine = StaircaseEngine()


def choose_engine(core: Core, engine: str) -> None:
    """Give the core the engine asked for: `reference`, `fast`, or `auto`, which is fast where there is one."""
    if engine not in ("auto", "fast", "reference"):
        raise UserError(f"engine must be auto, fast or reference, not '{engine}'")
    core.engine = engine_of(core) if engine != "reference" else None
    core.remember_modules()
    if engine == "fast" and core.engine is None:
        raise UserError(f"there is no fast engine for {type(core).__name__}; use engine auto or reference")


def describe() -> str:
    """Which back end the fast engines have here, and why."""
    if native.MISSING:
        return f"fast engines: PyTorch ({native.MISSING})"
    return (
        "fast engines: Feedback, Staircases of small chunks and DeltaNet in C++ with "
        f"{native.INSTRUCTION_SETS[native.BEST]} on the CPU, PyTorch otherwise"
    )


__all__ = ["choose_engine", "describe"]
