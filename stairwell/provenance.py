"""What a number needs to be believed: the command, the code, the machine, the time."""

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
    """As plain JSON; `command` is what was typed, taken from this process if not given."""
    return {
        "command": command or typed(),
        "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "stairwell": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": f"{processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
    }


def typed() -> str:
    """This process as a command to type, without the folder that it writes to, which is nobody else's."""
    program, words = Path(sys.argv[0]).name, sys.argv[1:]
    if "--out" in words:
        place = words.index("--out")
        words = words[:place] + words[place + 2 :]
    return shlex.join(["stairwell" if program == "__main__.py" else program, *words])


def commit() -> str:
    """The commit that the package runs from, if it runs from a checkout."""
    source = Path(__file__).resolve().parent.parent
    if not (source / ".git").exists():
        return f"stairwell {__version__} as installed"
    asked = ["git", "-C", str(source), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def processor() -> str:
    """The processor's name, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
