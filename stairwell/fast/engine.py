"""What the fast engines have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stairwell.devices import autocast_type, on_accelerator
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

    def why_not(self, core: Any, like: Tensor) -> str:
        """On the CPU a fast engine computes in the parameters' type whatever autocast says. An accelerator is faster in
        the narrow type, which only the reference's operations are cast to."""
        if on_accelerator(like) and (narrow := autocast_type(like)) is not None:
            return f"autocast to {narrow} casts the operations of the reference only"
        if name := core.changed_module():
            return f"{name} was replaced or has hooks, and a fast engine reads parameters instead of calling modules"
        return ""
