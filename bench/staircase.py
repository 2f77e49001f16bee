"""What passes cost: training steps of Staircases over those of a Transformer-XL with the same parameters.

Every model sees 256 tokens (Cached: 384) and reads segments of 256. Beside each ratio of times stand the ratio of
multiplications, counted here, and what the Staircase paper measured on GPUs (arXiv 2106.04279, tables 2 and 3).
Before anything is timed each fast engine must agree with its reference, values and gradients; nothing is printed
otherwise. The width is small enough for a CPU.

Small chunks are measured apart: there calls cost more than operations, so beside the reference stands the engine for
long diagonals, which is what runs where no native code was built, and a Feedback of the same sizes and window.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.speed import SYMBOLS, Step, spread
from stairwell import LanguageModel, LanguageModelConfig
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import CachedStaircaseConfig, GlobalCachedStaircaseConfig, StaircaseConfig
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.fast import staircase as engine_of_staircases

B, T = 8, 256
SIZES: dict[str, Any] = {"width": 256, "layers": 4, "heads": 4}
ROUNDS = 5
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Contestant:
    name: str
    core: Any
    paper: float | None = None  # time over Transformer-XL


SMALL_SIZES: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4}
SMALL_T = 32
CASES = ("passes", "small-chunks")


@dataclass(frozen=True)
class SmallChunks:
    name: str
    core: Any
    rows: int

    @property
    def feedback(self) -> FeedbackConfig:
        window = self.core.chunk * self.core.passes if isinstance(self.core, StaircaseConfig) else SMALL_T
        return FeedbackConfig(memory=window - 1, share_kv=False, attend_to_current=True, **SMALL_SIZES)


SMALL_CHUNKS = (
    SmallChunks("staircase C=1 N=4", StaircaseConfig(chunk=1, passes=4, **SMALL_SIZES), 32),
    SmallChunks("staircase C=2 N=4", StaircaseConfig(chunk=2, passes=4, **SMALL_SIZES), 32),
    SmallChunks("staircase C=2 N=4", StaircaseConfig(chunk=2, passes=4, **SMALL_SIZES), 128),
    SmallChunks("cached C=1 N=17 M=1", CachedStaircaseConfig(chunk=1, passes=17, compute=1, **SMALL_SIZES), 32),
    SmallChunks("cached C=1 N=17 M=1", CachedStaircaseConfig(chunk=1, passes=17, compute=1, **SMALL_SIZES), 256),
    SmallChunks("cached C=2 N=8 M=2", CachedStaircaseConfig(chunk=2, passes=8, compute=2, **SMALL_SIZES), 32),
    SmallChunks("global C=2 M=1", GlobalCachedStaircaseConfig(chunk=2, compute=1, **SMALL_SIZES), 32),
)

CONTESTANTS = (
    Contestant("transformer-xl", TransformerXLConfig(memory=256, **SIZES), 1.0),
    Contestant("staircase-2", StaircaseConfig(passes=2, chunk=128, **SIZES), 1.7),
    Contestant("staircase-4", StaircaseConfig(passes=4, chunk=64, **SIZES), 3.3),
    Contestant("staircase-8", StaircaseConfig(passes=8, chunk=32, **SIZES), 6.4),
    Contestant("cached-1", CachedStaircaseConfig(passes=3, chunk=128, compute=1, **SIZES), 1.4),
)


def multiplications(core: Any) -> float:
    """What one token costs in a layer stack, all passes counted, when a segment of T follows a full memory.

    A token at a pass costs its projections and feed-forward, and three products (keys, positions, values) with each
    slot that it sees; a slot handed in with the state costs its key and value, once for each pass that it is seen at.
    """
    D, F, HK = core.width, core.F, core.heads * core.K
    token, slot, look = 4 * D * HK + 2 * D * F, 2 * D * HK, 3 * HK
    if isinstance(core, TransformerXLConfig):
        return core.layers * (token + slot * core.memory / T + look * core.memory)
    C, N, E = core.chunk, core.N, core.computed
    # On a full diagonal a token at pass n sees (N - n) chunks and half of its own; at segments' edges nothing differs.
    seen = sum((N - n) * C + (C + 1) / 2 for n in range(1, E + 1))
    projected = sum(n * C for n in range(1, E))  # chunk -d at pass n + d > d, from the state
    if E < N:
        projected += (N - 1) * C + (T - C)  # the cache: what is handed in, and what is put there for later chunks
    return core.layers * (token * E + slot * projected / T + look * seen)


def model_for(core: Any, engine: str) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=core, inputs=SYMBOLS), engine)


def training_step(core: Any, engine: str, rows: int = B, length: int = T) -> Step:
    model = model_for(core, engine).train()
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(SYMBOLS, (2, rows, length))
    state = model.init_state(rows)
    grows = isinstance(core, GlobalCachedStaircaseConfig)  # then every segment begins anew

    def step() -> None:
        nonlocal state
        optimizer.zero_grad()
        losses, after = model.nll(tokens, targets, state)
        losses.mean().backward()
        optimizer.step()
        state = model.init_state(rows) if grows else after.detach()

    return step


def results(core: Any, engine: str) -> list[torch.Tensor]:
    """Losses, final state and every gradient of a second segment, two rows."""
    model = model_for(core, engine).double().eval()  # in float32 one ReLU on its edge is already a visible difference
    tokens, targets = torch.randint(SYMBOLS, (2, 2, T))
    with torch.no_grad():
        _, state = model.nll(tokens, targets, model.init_state(2))
    losses, state = model.nll(tokens, targets, state)
    losses.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [losses.detach(), *(tensor.detach() for _, tensor in state.tensors() if tensor.numel()), *gradients]


def check_equal(contestant: Contestant | SmallChunks) -> None:
    fast, reference = results(contestant.core, "fast"), results(contestant.core, "reference")
    for ours, theirs in zip(fast, reference, strict=True):
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))
        if not error < TOLERANCE:
            sys.exit(f"the fast engine of {contestant.name} differs from the reference ({error:.2g}); no figures")


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    found = measure_passes() if "passes" in cases else []
    if "small-chunks" in cases:
        found += [measure_small(contestant) for contestant in SMALL_CHUNKS]
    return found


def measure_passes() -> list[dict[str, Any]]:
    steps: dict[tuple[str, str], Step] = {}
    for contestant in CONTESTANTS:
        check_equal(contestant)
        for engine in ("fast", "reference"):
            steps[contestant.name, engine] = training_step(contestant.core, engine)
    times = in_turns(steps, ROUNDS)
    return [record(contestant, times) for contestant in CONTESTANTS]


def in_turns(steps: dict[Any, Step], rounds: int) -> dict[Any, list[float]]:
    """Times of each step, taken in turns, so that a slow moment of the machine hits everyone."""
    times: dict[Any, list[float]] = {key: [] for key in steps}
    for step in steps.values():
        for _ in range(2):  # until the memory is full and everything is warm
            step()
    for _ in range(rounds):
        for key, step in steps.items():
            began = time.perf_counter()
            step()
            times[key].append(time.perf_counter() - began)
    return times


def by_long_diagonals(step: Step) -> Step:
    """The same step with the engine for long diagonals."""

    def run() -> None:
        short, engine_of_staircases.SMALL = engine_of_staircases.SMALL, 0
        try:
            step()
        finally:
            engine_of_staircases.SMALL = short

    return run


def measure_small(contestant: SmallChunks) -> dict[str, Any]:
    check_equal(contestant)
    core, rows = contestant.core, contestant.rows
    steps = {
        "fast": training_step(core, "fast", rows, SMALL_T),
        "long": by_long_diagonals(training_step(core, "fast", rows, SMALL_T)),
        "reference": training_step(core, "reference", rows, SMALL_T),
        "feedback": training_step(contestant.feedback, "fast", rows, SMALL_T),
    }
    times = in_turns(steps, ROUNDS)
    median = {key: statistics.median(taken) for key, taken in times.items()}
    return {
        "case": "small-chunks",
        "what": contestant.name,
        "rows": rows,
        "tokens_per_second": round(rows * SMALL_T / median["fast"]),
        "spread": spread(times["fast"]),
        "rounds": ROUNDS,
        "long_diagonals_over_fast": round(median["long"] / median["fast"], 2),
        "reference_over_fast": round(median["reference"] / median["fast"], 2),
        "time_over_feedback": round(median["fast"] / median["feedback"], 2),
    }


def record(contestant: Contestant, times: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    base = CONTESTANTS[0]
    fast, reference = times[contestant.name, "fast"], times[contestant.name, "reference"]
    median = statistics.median(fast)
    over = median / statistics.median(times[base.name, "fast"])
    counted = multiplications(contestant.core) / multiplications(base.core)
    return {
        "case": "staircase",
        "what": contestant.name,
        "parameters": sum(parameter.numel() for parameter in model_for(contestant.core, "reference").parameters()),
        "tokens_per_second": round(B * T / median),
        "spread": spread(fast),
        "rounds": ROUNDS,
        "time_over_transformer_xl": round(over, 2),
        "operations_over_transformer_xl": round(counted, 2),
        "time_over_operations": round(over / counted, 2),
        "paper": contestant.paper,
        "reference_over_fast": round(statistics.median(reference) / median, 2),
    }
