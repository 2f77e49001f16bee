"""Steps a second of the batched environments, resets included, on one thread.

Each is taken with uniformly random actions, which are drawn beforehand. Rows whose episode ends are reset at once.
`together` begins all episodes at one time; `apart` spreads the clocks of the rows evenly, so that some row ends at
almost every step.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from stairwell.rl import ENVIRONMENTS, make

ROWS, STEPS, REPEATS = 256, 1000, 5


def seconds(name: str, apart: bool) -> float:
    """Of STEPS steps, after a warm-up of half as many."""
    environment = make(name, range(ROWS), seed=0)
    actions = np.random.default_rng(0).integers(0, environment.action_space.n, (STEPS + STEPS // 2, ROWS))
    environment.reset()
    if apart:
        environment.time = np.arange(ROWS) * environment.limit // ROWS
    began = 0.0
    for t, action in enumerate(actions):
        if t == STEPS // 2:
            began = time.perf_counter()
        _, _, terminated, truncated = environment.step(action)
        over = terminated | truncated
        if over.any():
            environment.reset(over)
    return time.perf_counter() - began


def measure() -> list[dict[str, Any]]:
    records = []
    for name, entry in ENVIRONMENTS.items():
        for apart in (False, True):
            times = [seconds(name, apart) for _ in range(REPEATS)]
            records.append(
                {
                    "case": "environments",
                    "what": entry.title,
                    "ends": "apart" if apart else "together",
                    "rows": ROWS,
                    "steps_per_second": round(ROWS * STEPS / statistics.median(times)),
                }
            )
    return records
