"""Optimized engines: the same results as the cores' reference forwards, from the same parameters.

`choose_engine(core, "auto")` sets the engine of the core's registry entry. Each call then uses C++, PyTorch or the
reference forward, depending on device and dtype; `core.engine_name` shows which.
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
    """Set the core's engine: `reference`, `fast`, or `auto` (fast if the core has a fast engine)."""
    if engine not in ("auto", "fast", "reference"):
        raise UserError(f"engine must be auto, fast (native code where it is built) or reference, not '{engine}'")
    core.engine = engine_of(core) if engine != "reference" else None
    core.remember_modules()
    if engine == "fast" and core.engine is None:
        raise UserError(f"there is no fast engine for {type(core).__name__}; use engine auto or reference")


def describe() -> str:
    """Return which backends the fast engines use on this machine, and why."""
    if native.UNAVAILABLE_REASON:
        return f"fast engines: PyTorch ({native.UNAVAILABLE_REASON})"
    return (
        "fast engines: Feedback, Staircases with small chunks and DeltaNet in C++ with "
        f"{native.INSTRUCTION_SETS[native.BEST_INSTRUCTION_SET]} on the CPU, PyTorch otherwise"
    )


__all__ = ["choose_engine", "describe"]
