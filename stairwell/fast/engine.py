"""What the fast engines have in common."""

from __future__ import annotations

from typing import Any

import torch
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

    def why_not(self, core: Any, like: Tensor) -> str:
        device = like.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return "autocast chooses a type for each operation, so it has to see them all"
        return ""
