"""The two schedules of Feedback's training loops: threads share the streams, or the columns of each product.

The engine chooses by a cost model (`share_columns` in stairwell/fast/csrc/call.h). Each record has the time of forward
and backward with both schedules and with the chosen one, interleaved, and the ratio of the chosen to the better one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from bench.speed import VOCABULARY, Case, Step, full_state, make_model, sizes, spread, time_interleaved
from stairwell import FeedbackConfig
from stairwell.fast.feedback import FeedbackEngine
from stairwell.fast.native import NativeBackend

Schedule = Literal["auto", "streams", "columns"]
ROUNDS = 5
BATCHES = (1, 2, 4, 8, 16, 24)
SHAPES = {  # width and layers
    "width-64": (64, 2),
    "width-128": (128, 4),
    "width-256": (256, 4),
    "width-384": (384, 6),
    "width-512": (512, 4),
    "width-768": (768, 4),
}
CASES = tuple(SHAPES)


def make_step(case: Case, schedule: Schedule) -> Step:
    model = make_model(case, FeedbackConfig(**sizes(case)), "auto").train()
    model.core.engine = FeedbackEngine(NativeBackend(schedule=schedule))
    tokens, targets = torch.randint(VOCABULARY, (2, case.B, case.segment))
    state = full_state(model, case.B)

    def step() -> None:
        losses, _ = model.nll(tokens, targets, state)
        losses.mean().backward()

    return step


def measure_shape(name: str, B: int) -> dict[str, Any]:
    width, layers = SHAPES[name]
    heads = max(1, width // 64)
    case = Case(name, B=B, width=width, layers=layers, heads=heads, memory=32, segment=16)
    steps = {schedule: make_step(case, schedule) for schedule in get_args(Schedule)}
    times = time_interleaved(steps, ROUNDS, warm_up=1)
    median = {schedule: statistics.median(taken) for schedule, taken in times.items()}
    better = min(median["streams"], median["columns"])
    return {
        "case": name,
        "rows": B,
        **{f"{schedule}_milliseconds": round(1000 * seconds, 2) for schedule, seconds in median.items()},
        "columns_over_streams": round(median["columns"] / median["streams"], 2),
        "auto_over_better": round(median["auto"] / better, 2),
        "spread": max(spread(taken) for taken in times.values()),
        "rounds": ROUNDS,
    }


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    return [measure_shape(name, B) for name in cases for B in BATCHES]
