"""Training time per token as a function of the position in the stream, memory size, batch size and threads.

Each is varied alone, from 4 layers of width 256, memory 100, segments of 64; Feedback and our Transformer-XL are
interleaved. All cases start with a full memory except `stream`, which starts with an empty one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from bench import speed
from bench.speed import Case, Step, spread, stairwell_step, time_interleaved
from stairwell import FeedbackConfig, TransformerXLConfig

CASES = ("stream", "memory", "rows", "threads")
BASE, FEW, MANY = Case("base", B=16), Case("base", B=4), Case("base", B=64)
MODELS: dict[str, Any] = {"feedback": FeedbackConfig, "transformer-xl": TransformerXLConfig}
STREAM, GROUP = 10_000, 1_000  # tokens; medians are computed per group
SLOTS = (16, 64, 256, 1024)
ROWS = (1, 4, 16, 64, 256)
THREADS = (1, 2)
ROUNDS = 5


def steps_for(case: Case, full: bool = True) -> dict[str, Step]:
    return {
        name: stairwell_step(case, config_class(**speed.sizes(case)), "auto", full=full)
        for name, config_class in MODELS.items()
    }


def record(what: str, axis: str, at: int, case: Case, times: list[float]) -> dict[str, Any]:
    each = statistics.median(times) / (case.B * case.segment)
    return {
        "case": axis,
        "what": what,
        "at": at,
        "microseconds_per_token": round(each * 1e6, 2),
        "spread": spread(times),
        "rounds": len(times),
    }


def measure_axis(axis: str, cases: dict[int, Case]) -> list[dict[str, Any]]:
    return [
        record(what, axis, at, case, times)
        for at, case in cases.items()
        for what, times in time_interleaved(steps_for(case), ROUNDS).items()
    ]


def measure_stream(case: Case = FEW, tokens: int = STREAM, group: int = GROUP) -> list[dict[str, Any]]:
    """Time every segment of one stream."""
    for step in steps_for(
        case
    ).values():  # a warm-up with other models, since the timed ones must start with an empty memory
        step()
    steps = steps_for(case, full=False)
    times: dict[str, dict[int, list[float]]] = {name: {} for name in steps}
    for read in range(0, tokens, case.segment):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].setdefault(read // group * group, []).append(time.perf_counter() - started)
    return [
        record(name, "stream", first, case, taken) for name, groups in times.items() for first, taken in groups.items()
    ]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_threads(case: Case = MANY, counts: Sequence[int] = THREADS) -> list[dict[str, Any]]:
    records = []
    for count in counts:
        with threads(count):
            records += measure_axis("threads", {count: case})
    return records


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    axes = {
        "stream": measure_stream,
        "memory": lambda: measure_axis("memory", {slots: replace(BASE, memory=slots) for slots in SLOTS}),
        "rows": lambda: measure_axis("rows", {rows: replace(BASE, B=rows) for rows in ROWS}),
        "threads": measure_threads,
    }
    speed.check_equal(BASE)
    return [record for name in cases for record in axes[name]()]
