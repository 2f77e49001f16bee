"""How the time for a token of training grows: with the place in the stream, the memory, the rows, the threads.

Each is changed alone, from 4 layers of width 256, memory 100, segments of 64; Feedback beside our Transformer-XL,
taking turns. All begin with a full memory, apart from `stream`, which begins with an empty one.
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
from bench.speed import Case, Step, spread, stairwell_step, take_turns
from stairwell import FeedbackConfig, TransformerXLConfig

CASES = ("stream", "memory", "rows", "threads")
BASE, FEW, MANY = Case("base", B=16), Case("base", B=4), Case("base", B=64)
MODELS: dict[str, Any] = {"feedback": FeedbackConfig, "transformer-xl": TransformerXLConfig}
STREAM, GROUP = 10_000, 1_000  # tokens; a median over each group of them
SLOTS = (16, 64, 256, 1024)
ROWS = (1, 4, 16, 64, 256)
THREADS = (1, 2)
ROUNDS = 5


def steps_for(case: Case, full: bool = True) -> dict[str, Step]:
    return {name: stairwell_step(case, kind(**speed.sizes(case)), "auto", full=full) for name, kind in MODELS.items()}


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


def at_each(axis: str, cases: dict[int, Case]) -> list[dict[str, Any]]:
    return [
        record(what, axis, at, case, times)
        for at, case in cases.items()
        for what, times in take_turns(steps_for(case), ROUNDS).items()
    ]


def along_a_stream(case: Case = FEW, tokens: int = STREAM, group: int = GROUP) -> list[dict[str, Any]]:
    """Every segment of one stream, in groups."""
    for step in steps_for(case).values():  # others than those that are timed, so that these begin with nothing read
        step()
    steps = steps_for(case, full=False)
    times: dict[str, dict[int, list[float]]] = {name: {} for name in steps}
    for read in range(0, tokens, case.segment):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].setdefault(read // group * group, []).append(time.perf_counter() - began)
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


def with_threads(case: Case = MANY, counts: Sequence[int] = THREADS) -> list[dict[str, Any]]:
    records = []
    for count in counts:
        with threads(count):
            records += at_each("threads", {count: case})
    return records


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    axes = {
        "stream": along_a_stream,
        "memory": lambda: at_each("memory", {slots: replace(BASE, memory=slots) for slots in SLOTS}),
        "rows": lambda: at_each("rows", {rows: replace(BASE, B=rows) for rows in ROWS}),
        "threads": with_threads,
    }
    speed.check_equal(BASE)
    return [found for name in cases for found in axes[name]()]
