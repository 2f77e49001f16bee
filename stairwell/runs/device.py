"""The device that runs use, and what `stairwell info` prints."""

from __future__ import annotations

import os
import platform
import re

import torch

from stairwell import fast
from stairwell.errors import UserError
from stairwell.version import __version__

MAX_REASON = 200  # characters of PyTorch's error message


def choose_device(name: str) -> torch.device:
    """Return the device of that name; auto is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    valid = re.fullmatch(r"cpu|mps|(cuda|xpu)(:\d{1,3})?", name)
    if valid is None:
        raise UserError(f"--device {name!r} is not a device; choose auto, cpu, cuda, cuda:0 (or another index) or mps")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on devices without storage, such as meta
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = (str(error).splitlines() or [""])[0][:MAX_REASON]
        raise UserError(f"--device {name} cannot be used: {reason}") from None
    return device


def information() -> dict[str, str]:
    """Return versions, device, engine and number of threads."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "stairwell": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": f"{device} ({name})",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "engine": fast.describe(),
    }
