"""Which engine a model's core runs on."""

from __future__ import annotations

from stairwell.cores import Core
from stairwell.errors import UserError


def choose_engine(core: Core, engine: str) -> None:
    """Give the core the engine asked for: `reference`, `fast`, or `auto`, which is fast where that is possible."""
    if engine not in ("auto", "fast", "reference"):
        raise UserError(f"engine must be auto, fast or reference, not '{engine}'")
    found, why = None, "the reference was asked for"
    if engine != "reference":
        from stairwell import fast

        found, why = fast.find(core)
        if found is None and engine == "fast":
            raise UserError(f"no fast engine: {why}; use engine auto or reference")
    core.engine, core.engine_name = found, why if found is not None else "the reference engine"
