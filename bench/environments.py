"""Steps per second of the batched environments, including resets, on one thread.

Actions are uniformly random and sampled in advance. Environments are reset as soon as their episode ends. `together`
starts all episodes at the same time; `apart` offsets them evenly, so that some episode ends at almost every step.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from stairwell.rl import ENVIRONMENTS, make

BATCH, STEPS, REPEATS = 256, 1000, 5


def seconds(name: str, apart: bool) -> float:
    """Return the time of STEPS steps, after a warm-up of half as many."""
    env = make(name, range(BATCH), seed=0)
    actions = np.random.default_rng(0).integers(0, env.action_space.n, (STEPS + STEPS // 2, BATCH))
    env.reset()
    if apart:
        env.elapsed_steps = np.arange(BATCH) * env.max_steps // BATCH
    started = 0.0
    for t, action in enumerate(actions):
        if t == STEPS // 2:
            started = time.perf_counter()
        _, _, terminated, truncated = env.step(action)
        done = terminated | truncated
        if done.any():
            env.reset(done)
    return time.perf_counter() - started


def measure() -> list[dict[str, Any]]:
    records = []
    for name, spec in ENVIRONMENTS.items():
        for apart in (False, True):
            times = [seconds(name, apart) for _ in range(REPEATS)]
            records.append(
                {
                    "case": "environments",
                    "what": spec.title,
                    "ends": "apart" if apart else "together",
                    "rows": BATCH,
                    "steps_per_second": round(BATCH * STEPS / statistics.median(times)),
                }
            )
    return records
