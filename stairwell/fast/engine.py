"""What the fast engines have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stairwell.fast import native


class FastEngine:
    """An engine in PyTorch; subclasses walk, and say so where native code does it."""

    def in_native(self, core: Any, like: Tensor) -> bool:
        """Whether native loops run for inputs such as `like`."""
        return False

    def name(self, core: Any, like: Tensor) -> str:
        if self.in_native(core, like):
            return f"fast (C++, {native.INSTRUCTION_SETS[native.BEST]})"
        return "fast (PyTorch)"

    def follows_autocast(self, core: Any, like: Tensor) -> bool:
        """Whether projections and feed-forwards are operations that autocast casts; not where all of a call is one
        operation of the engine's own."""
        return False

    def why_not(self, core: Any, like: Tensor) -> str:
        if name := core.changed_module():
            return f"{name} was replaced or has hooks, and a fast engine reads parameters instead of calling modules"
        return ""
