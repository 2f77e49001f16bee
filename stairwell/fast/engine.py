"""Base class of the fast engines."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stairwell.fast import native


class FastEngine:
    """An engine in PyTorch. Subclasses implement `__call__`, and override `in_native` if they also have native code."""

    def in_native(self, core: Any, like: Tensor) -> bool:
        """Return whether native code runs for inputs with the device and dtype of `like`."""
        return False

    def name(self, core: Any, like: Tensor) -> str:
        if self.in_native(core, like):
            return f"fast (C++, {native.INSTRUCTION_SETS[native.BEST_INSTRUCTION_SET]})"
        return "fast (PyTorch)"

    def follows_autocast(self, core: Any, like: Tensor) -> bool:
        """Return whether projections and feed-forwards are operations that autocast can cast. They are not if the
        engine runs a whole call as one operation."""
        return False

    def why_not(self, core: Any, like: Tensor) -> str:
        """Return why the engine cannot run, or an empty string."""
        if name := core.changed_module():
            return f"{name} was replaced or has hooks, but a fast engine does not call modules"
        return ""
