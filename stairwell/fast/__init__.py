"""Engines built for speed: the same results as the cores' own walks, from the same parameters.

`engine, why = find(core)`, then `core.engine = engine`; with none the reference runs, and `why` says why.
"""

from __future__ import annotations

from stairwell.cores.core import Core, Engine
from stairwell.cores.feedback import Feedback
from stairwell.cores.staircase import GlobalCachedStaircase, Staircase
from stairwell.cores.transformer_xl import TransformerXL
from stairwell.cores.universal import Universal
from stairwell.fast import native, staircase, transformer_xl
from stairwell.fast.feedback import FeedbackEngine

# Cores whose engine is one function; that of the Staircases chooses call by call.
WALKS: dict[type[Core], Engine] = {
    TransformerXL: transformer_xl.walk,
    Universal: transformer_xl.walk,
    Staircase: staircase.walk,
    GlobalCachedStaircase: staircase.walk,
}


def find(core: Core) -> tuple[Engine | None, str]:
    """The best engine for a core, or none, and why in plain words."""
    if isinstance(core, Staircase) and type(core) in WALKS and staircase.in_native(core, next(core.parameters())):
        return WALKS[type(core)], f"the fast {type(core).__name__} engine runs, in C++ ({instructions()})"
    if type(core) in WALKS:
        return WALKS[type(core)], f"the fast {type(core).__name__} engine runs, in PyTorch"
    if type(core) is not Feedback:
        return None, f"there is no fast engine for {type(core).__name__}; the reference runs"
    like = next(core.parameters())
    if native.supports(like):
        return FeedbackEngine(), f"the fast Feedback engine runs, in C++ ({instructions()})"
    return FeedbackEngine(), f"the fast Feedback engine runs, in PyTorch: {native.why_not(like)}"


def instructions() -> str:
    return native.INSTRUCTION_SETS[native.BEST]


def describe() -> str:
    """Which back end the fast engines have here, and why."""
    if native.MISSING:
        return f"fast engines: PyTorch ({native.MISSING})"
    return (
        f"fast engines: Feedback and Staircases of small chunks in C++ with {instructions()} on the CPU, "
        "PyTorch otherwise"
    )


__all__ = ["describe", "find"]
