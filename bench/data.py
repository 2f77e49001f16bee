"""Whether data keeps up: tokens a second of every generated task, over those of the fastest small model.

Each is measured alone, on as many threads as torch uses, in one run. The fastest small model is an LSTM of width 32
and one layer, far smaller than any preset.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from stairwell import LanguageModel, LanguageModelConfig, LSTMConfig
from stairwell.runs import preset

TASKS = ("random-walk", "algorithmic", "copy", "reverse", "counting", "parity", "s5")
ROWS, LENGTH, REPEATS = 128, 32, 5


def rate(read: Any, seconds: float = 1.0) -> float:
    """Tokens a second of a function that handles ROWS * LENGTH of them: the median of REPEATS, after a warm-up."""
    read()
    rates = []
    for _ in range(REPEATS):
        calls, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            read()
            calls += 1
        rates.append(calls * ROWS * LENGTH / (time.perf_counter() - began))
    return statistics.median(rates)


def consumption() -> float:
    """Training steps of the small LSTM, forward, backward and Adam, on tokens that are already there."""
    model = LanguageModel(LanguageModelConfig(core=LSTMConfig(width=32, layers=1), inputs=4, outputs=64))
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(4, (ROWS, LENGTH)), torch.randint(64, (ROWS, LENGTH))
    state = model.init_state(ROWS)

    def step() -> None:
        optimizer.zero_grad()
        losses, _ = model.nll(tokens, targets, state)
        losses.mean().backward()
        optimizer.step()

    return rate(step)


def measure() -> list[dict[str, Any]]:
    consumed = consumption()
    records: list[dict[str, Any]] = [
        {"case": "data", "what": "small LSTM trains", "tokens_per_second": round(consumed)}
    ]
    for name in TASKS:
        batch_source = preset(f"{name}/lstm").make_tasks()[0].batch_source(range(ROWS), ROWS, seed=0)
        delivered = rate(lambda batch_source=batch_source: batch_source.read(LENGTH))
        records.append(
            {
                "case": "data",
                "what": name,
                "tokens_per_second": round(delivered),
                "ratio": round(delivered / consumed, 1),
            }
        )
    return records
