"""Tokens per second of every generated task, over those that the fastest small model trains on.

Each task is measured alone, with as many threads as torch uses. The fastest small model is an LSTM with one layer of
width 32, far smaller than any preset.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from stairwell import LanguageModel, LanguageModelConfig, LSTMConfig
from stairwell.runs import preset

TASKS = ("random-walk", "algorithmic", "copy", "reverse", "counting", "parity", "s5")
BATCH, LENGTH, REPEATS = 128, 32, 5


def token_rate(process: Any, seconds: float = 1.0) -> float:
    """Return the tokens per second of a function that processes BATCH * LENGTH tokens: the median of REPEATS runs."""
    process()
    rates = []
    for _ in range(REPEATS):
        calls, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            process()
            calls += 1
        rates.append(calls * BATCH * LENGTH / (time.perf_counter() - started))
    return statistics.median(rates)


def training_rate() -> float:
    """Return the tokens per second of training steps of the small LSTM: forward, backward and Adam on fixed tokens."""
    model = LanguageModel(LanguageModelConfig(core=LSTMConfig(width=32, layers=1), inputs=4, outputs=64))
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(4, (BATCH, LENGTH)), torch.randint(64, (BATCH, LENGTH))
    state = model.init_state(BATCH)

    def step() -> None:
        optimizer.zero_grad()
        losses, _ = model.nll(tokens, targets, state)
        losses.mean().backward()
        optimizer.step()

    return token_rate(step)


def measure() -> list[dict[str, Any]]:
    trained = training_rate()
    records: list[dict[str, Any]] = [{"case": "data", "what": "small LSTM trains", "tokens_per_second": round(trained)}]
    for name in TASKS:
        batch_source = preset(f"{name}/lstm").make_tasks()[0].batch_source(range(BATCH), BATCH, seed=0)
        generated = token_rate(lambda batch_source=batch_source: batch_source.read(LENGTH))
        records.append(
            {
                "case": "data",
                "what": name,
                "tokens_per_second": round(generated),
                "ratio": round(generated / trained, 1),
            }
        )
    return records
