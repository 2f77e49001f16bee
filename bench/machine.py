"""The speed of the machine itself: memory bandwidth, and the rate of a large matrix product.

`python -m bench page` measures it before and after all other benchmarks, so that their results can be compared with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from bench import decode, limit
from bench.speed import Step, spread, time_interleaved
from stairwell.fast import native

CASES = ("start", "end")
ROUNDS = 9


def measure_case(case: str, square: int = limit.SQUARE) -> list[dict[str, Any]]:
    product = (square, square, square, 1)
    reads = decode.bandwidth_steps()
    steps: dict[str, Step] = {**reads, "square": limit.products_step([product])}
    times = time_interleaved(steps, ROUNDS, warm_up=1)
    fastest = min(reads, key=lambda name: statistics.median(times[name]))
    about = {"rounds": ROUNDS, "instruction_set": native.INSTRUCTION_SETS[native.BEST_INSTRUCTION_SET]}
    gigabytes = decode.BANDWIDTH_BYTES / statistics.median(times[fastest]) / 1e9
    gigaflop = limit.flops_of(product) / statistics.median(times["square"]) / 1e9
    threads = torch.get_num_threads()
    return [
        {"case": case, "what": "bandwidth", "gigabytes_per_second": round(gigabytes, 1), "threads_used": threads,
         "spread": spread(times[fastest]), **about},
        {"case": case, "what": "square product", "gigaflop_per_second": round(gigaflop, 1), "threads_used": threads,
         "spread": spread(times["square"]), **about},
    ]  # fmt: skip


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    return [record for case in cases for record in measure_case(case)]
