"""Measure everything that docs/performance.md shows of one machine, in one run.

Each benchmark runs in its own new process, one after the other, between two measurements of the machine itself. If one
fails, the others still run, and the exit status is 1. The tables are written at the end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from bench import plot, table
from bench.records import ROOT

BENCHMARKS = (
    "speed",
    "decode",
    "translate",
    "memory",
    "limit",
    "profile",
    "schedules",
    "staircase",
    "scaling",
    "agents",
)


def commands(names: Sequence[str]) -> list[list[str]]:
    """Return the arguments of `python -m bench` of each process."""
    return [["machine", "start"], *([name] for name in names), ["machine", "end"]]


def run(names: Sequence[str] = BENCHMARKS) -> int:
    """Run the benchmarks, print the minutes of each, and write the tables. Return the exit status."""
    minutes: dict[str, float] = {}
    failed = []
    for arguments in commands(names or BENCHMARKS):
        name, started = " ".join(arguments), time.perf_counter()
        print(f"== python -m bench {name}", flush=True)
        if subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, check=False).returncode:
            failed.append(name)
        minutes[name] = (time.perf_counter() - started) / 60
    table.write()
    plot.write()
    for name, taken in minutes.items():
        print(f"{taken:6.1f} minutes  {name}{'  FAILED' if name in failed else ''}")
    print(f"{sum(minutes.values()):6.1f} minutes in total")
    return bool(failed)
