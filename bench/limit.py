"""Training steps compared with the speed of matrix products alone, the upper limit of the machine.

Interleaved in one process, with the same number of threads, in float32:

    square             torch.mm of two matrices of 2048 x 2048: the machine's peak rate
    MODEL products     only the products of a step of the model, by torch.mm, in the shapes that the model allows
    MODEL              the whole step: forward, backward, Adam

A rate is the number of operations of `bench.flops` divided by the time. Softmax, norms and Adam take time but are not
counted, so no step reaches the rate of its products.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from bench import speed
from bench.flops import Product, products, training_flops
from bench.speed import ROUNDS, VOCABULARY, Case, Step, spread, stairwell_step, time_interleaved
from stairwell import FeedbackConfig, TransformerXLConfig

CASES = ("b16", "b64", "b256", "small")
SQUARE = 2048
MODELS = {"feedback": FeedbackConfig, "transformer-xl": TransformerXLConfig}


def flops_of(product: Product) -> int:
    rows, columns, depth, times = product
    return 2 * rows * columns * depth * times


def products_step(shapes: Sequence[Product]) -> Step:
    """Return a step that computes all products one after the other, into preallocated outputs."""
    operands = [
        (torch.randn(rows, depth), torch.randn(columns, depth).T, torch.empty(rows, columns), times)
        for rows, columns, depth, times in shapes
    ]

    def step() -> None:
        for left, right, out, times in operands:
            for _ in range(times):
                torch.mm(left, right, out=out)

    return step


def measure_case(case: Case, square: int = SQUARE, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    speed.check_equal(case)
    one = (square, square, square, 1)
    steps: dict[str, Step] = {"square": products_step([one])}
    flops: dict[str, int] = {"square": flops_of(one)}
    for name, config_class in MODELS.items():
        core = config_class(**speed.sizes(case))
        shapes = products(core, case.B, case.segment, VOCABULARY)
        steps[f"{name} products"] = products_step(shapes)
        flops[f"{name} products"] = sum(map(flops_of, shapes))
        steps[name] = stairwell_step(case, core, "auto")
        flops[name] = training_flops(core, case.B, case.segment, VOCABULARY)
    times = time_interleaved(steps, rounds)
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
