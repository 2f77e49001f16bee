"""Provenance of a measured number: command, commit, machine and time."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from stairwell.version import __version__


def provenance(command: str | None = None) -> dict[str, Any]:
    """Return the provenance as JSON; `command` defaults to that of this process."""
    return {
        "command": command or current_command(),
        "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "stairwell": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": f"{processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
    }


def current_command() -> str:
    """Return the command line of this process without its output folder."""
    program, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    if "--out" in arguments:
        index = arguments.index("--out")
        del arguments[index : index + 2]
    return shlex.join(["stairwell" if program == "__main__.py" else program, *arguments])


def commit() -> str:
    """Return the commit of the checkout that the package runs from, or its version."""
    source = Path(__file__).resolve().parent.parent
    if not (source / ".git").exists():
        return f"stairwell {__version__} as installed"
    command = ["git", "-C", str(source), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def processor() -> str:
    """Return the name of the processor as far as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
