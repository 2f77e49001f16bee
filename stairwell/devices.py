"""What a tensor's device allows: one definition of each question for all packages."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def on_accelerator(x: Tensor) -> bool:
    """Return whether `x` is on an accelerator, where reading a value waits for everything that was launched before."""
    return x.device.type != "cpu"


def autocast_type(x: Tensor) -> torch.dtype | None:
    """Return the type that autocast now casts products on the device of `x` to; none if it is off."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which operations on the device of `x` keep the types of their inputs."""
    return nullcontext() if autocast_type(x) is None else torch.autocast(x.device.type, enabled=False)
