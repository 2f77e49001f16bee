"""Where the time of a Feedback training step goes.

torch's profiler tells how long the two loops in C++ and what surrounds them take; it cannot look inside a loop. How
much of a loop is attention is told by a second model whose memory has one slot: what is saved there is what the other
slots cost (scores, softmax, weighted sums, positions and their gradients). Profiling itself costs some time.
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

CASES = ("b16", "b64", "b256")
STEP, FORWARD, BACKWARD = "bench: step", "stairwell::feedback_forward", "stairwell::feedback_backward"
ADAM = "Optimizer.step#Adam.step"


def seconds_by_name(case: Case, rounds: int) -> dict[str, float]:
    """How long each range took in a step, what is inside it included."""
    step = speed.stairwell_step(case, FeedbackConfig(**speed.sizes(case)), "fast")
    for _ in range(WARM_UP):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(rounds):
            with record_function(STEP):
                step()
    return {event.key: event.cpu_time_total / 1e6 / rounds for event in seen.key_averages()}


def parts(case: Case, rounds: int) -> dict[str, float]:
    """Seconds of a step, part by part; they add up to the whole."""
    found, short = seconds_by_name(case, rounds), seconds_by_name(replace(case, memory=1), rounds)
    # A machine that is busy for a moment must not make a part negative.
    attention = {loop: min(max(found[loop] - short[loop], 0.0), found[loop]) for loop in (FORWARD, BACKWARD)}
    around_forward, around_backward = found["Segment"] - found[FORWARD], found["SegmentBackward"] - found[BACKWARD]
    split = {
        "forward loop: attention to all slots but one": attention[FORWARD],
        "forward loop: projections, feed-forward, norms": found[FORWARD] - attention[FORWARD],
        "forward: room for what backward needs": around_forward,
        "backward loop: attention to all slots but one": attention[BACKWARD],
        "backward loop: projections, feed-forward, norms": found[BACKWARD] - attention[BACKWARD],
        "backward: weight gradients over all tokens": around_backward,
        "Adam": found[ADAM],
    }
    rest = found[STEP] - sum(split.values())
    split["embedding, last norm, head, loss"] = min(around_the_core(case, rounds), rest)
    return {**split, "the rest: old keys and values, folding, the state": found[STEP] - sum(split.values())}


def around_the_core(case: Case, rounds: int) -> float:
    """Seconds of a model without its core, forward and backward, timed on its own."""
    model = speed.make_model(case, FeedbackConfig(**speed.sizes(case)), "fast")
    tokens, targets = torch.randint(speed.SYMBOLS, (2, case.B, case.segment))

    def step() -> None:
        x = model.norm(model.embed(tokens, torch.ones_like(tokens)))
        model.head.losses(x, targets)[0].mean().backward()

    return statistics.median(speed.take_turns({"": step}, rounds)[""])


def measure_case(case: Case, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    if native.MISSING:
        sys.exit(f"the profile is of the native engine, which is not here: {native.MISSING}")
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
