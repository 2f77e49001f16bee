"""How near a training step is to what the machine can do at most: matrix products and nothing else.

In one process, taking turns, with the same number of threads, all in float32:

    square             torch.mm of two matrices of 2048 x 2048: the machine's own rate
    MODEL products     the products of a step of that model, alone, by torch.mm, in the shapes that the model allows
    MODEL              the whole step: forward, backward, Adam

A rate is the number of floating-point operations of `bench.flops` over the time taken. What a step does besides, such
as softmax, norms and Adam, takes time and counts as no operation, so that no step reaches 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from bench import speed
from bench.flops import Product, products, training_flops
from bench.speed import ROUNDS, SYMBOLS, Case, Step, spread, stairwell_step, take_turns
from stairwell import FeedbackConfig, TransformerXLConfig

CASES = ("b16", "b64", "b256")
SQUARE = 2048
MODELS = {"feedback": FeedbackConfig, "transformer-xl": TransformerXLConfig}


def flops_of(product: Product) -> int:
    rows, columns, depth, times = product
    return 2 * rows * columns * depth * times


def products_step(shapes: Sequence[Product]) -> Step:
    """All of them, one after the other, into memory that is there already."""
    made = [
        (torch.randn(rows, depth), torch.randn(columns, depth).T, torch.empty(rows, columns), times)
        for rows, columns, depth, times in shapes
    ]

    def step() -> None:
        for left, right, out, times in made:
            for _ in range(times):
                torch.mm(left, right, out=out)

    return step


def measure_case(case: Case, square: int = SQUARE, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    speed.check_equal(case)
    one = (square, square, square, 1)
    steps: dict[str, Step] = {"square": products_step([one])}
    flops: dict[str, int] = {"square": flops_of(one)}
    for name, kind in MODELS.items():
        core = kind(**speed.sizes(case))
        shapes = products(core, case.B, case.segment, SYMBOLS)
        steps[f"{name} products"] = products_step(shapes)
        flops[f"{name} products"] = sum(map(flops_of, shapes))
        steps[name] = stairwell_step(case, core, "auto")
        flops[name] = training_flops(core, case.B, case.segment, SYMBOLS)
    times = take_turns(steps, rounds)
    rates = {name: flops[name] / statistics.median(taken) / 1e9 for name, taken in times.items()}

    def record(name: str) -> dict[str, Any]:
        shares = {"of_square": rates[name] / rates["square"]}
        if name in MODELS:
            shares["of_products"] = rates[name] / rates[f"{name} products"]
        return {
            "case": case.name,
            "what": name,
            "gigaflop": round(flops[name] / 1e9, 2),
            "gigaflop_per_second": round(rates[name], 1),
            "spread": spread(times[name]),
            "rounds": rounds,
            **{share: round(value, 2) for share, value in shares.items()},
        }

    return [record(name) for name in steps]


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_case(speed.CASES[name])]
