"""Time of a Feedback training step by part.

torch's profiler measures the two native loops and the operations around them, but not the parts of a loop. The share of
attention is estimated with a second model whose memory has one position: the difference is the cost of the others
(scores, softmax, weighted sums, positions and their gradients). Profiling itself takes some time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from bench import speed
from bench.speed import ROUNDS, WARM_UP, Case
from stairwell import FeedbackConfig
from stairwell.fast import native

CASES = ("b16", "b64", "b256", "small")
STEP, FORWARD, BACKWARD = "bench: step", "stairwell::feedback_forward", "stairwell::feedback_backward"
ADAM = "Optimizer.step#Adam.step"


def seconds_by_name(case: Case, rounds: int) -> dict[str, float]:
    """Return the total time of each profiled range per step."""
    step = speed.stairwell_step(case, FeedbackConfig(**speed.sizes(case)), "fast")
    for _ in range(WARM_UP):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(rounds):
            with record_function(STEP):
                step()
    return {event.key: event.cpu_time_total / 1e6 / rounds for event in profiler.key_averages()}


def parts(case: Case, rounds: int) -> dict[str, float]:
    """Return the seconds of a step by part. They add up to the whole step."""
    full, one_slot = seconds_by_name(case, rounds), seconds_by_name(replace(case, memory=1), rounds)
    # Noise must not make a part negative.
    attention = {loop: min(max(full[loop] - one_slot[loop], 0.0), full[loop]) for loop in (FORWARD, BACKWARD)}
    around_forward = full["FeedbackSegment"] - full[FORWARD]
    around_backward = full["FeedbackSegmentBackward"] - full[BACKWARD]
    split = {
        "forward loop: attention to all slots but one": attention[FORWARD],
        "forward loop: projections, feed-forward, norms": full[FORWARD] - attention[FORWARD],
        "forward: allocation of saved activations": around_forward,
        "backward loop: attention to all slots but one": attention[BACKWARD],
        "backward loop: projections, feed-forward, norms": full[BACKWARD] - attention[BACKWARD],
        "backward: parameter gradients over all tokens": around_backward,
        "Adam": full[ADAM],
    }
    rest = full[STEP] - sum(split.values())
    split["embedding, last norm, head, loss"] = min(around_the_core(case, rounds), rest)
    return {**split, "rest: keys and values of the state, folding, new state": full[STEP] - sum(split.values())}


def around_the_core(case: Case, rounds: int) -> float:
    """Return the seconds of forward and backward of a model without its core, timed separately."""
    model = speed.make_model(case, FeedbackConfig(**speed.sizes(case)), "fast")
    tokens, targets = torch.randint(speed.VOCABULARY, (2, case.B, case.segment))

    def step() -> None:
        x = model.norm(model.embed(tokens, torch.ones_like(tokens)))
        model.head.losses(x, targets)[0].mean().backward()

    return statistics.median(speed.time_interleaved({"": step}, rounds)[""])


def measure_case(case: Case, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    if native.UNAVAILABLE_REASON:
        sys.exit(f"profiling needs the native engine: {native.UNAVAILABLE_REASON}")
    speed.check_equal(case)
    split = parts(case, rounds)
    whole = sum(split.values())
    return [
        {
            "case": case.name,
            "what": name,
            "milliseconds": round(seconds * 1000, 2),
            "share": round(seconds / whole, 3),
            "rounds": rounds,
        }
        for name, seconds in split.items()
    ]


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_case(speed.CASES[name])]
