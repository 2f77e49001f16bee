"""Device and autocast checks that several packages share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def on_accelerator(x: Tensor) -> bool:
    """Return whether `x` is on an accelerator, where reading a value waits for all pending kernels."""
    return x.device.type != "cpu"


def autocast_type(x: Tensor) -> torch.dtype | None:
    """Return the dtype of products under autocast on the device of `x`, or None if autocast is off."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context that disables autocast on the device of `x`."""
    return nullcontext() if autocast_type(x) is None else torch.autocast(x.device.type, enabled=False)
