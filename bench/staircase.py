"""Cost of passes: training steps of Staircases over those of a Transformer-XL with the same parameters.

Every model has a context of 256 tokens (Cached: 384) and segments of 256. Each ratio of times is reported with the
ratio of multiplications, counted here, and with the ratio measured on GPUs in the Staircase paper (arXiv 2106.04279,
tables 2 and 3). Before timing, each fast engine must agree with its reference in values and gradients; otherwise the
benchmark stops. The width is small enough for a CPU.

Small chunks are a separate case, because there the overhead of calls exceeds the work. Native code is compared with the
reference, with the PyTorch engine (used without native code) and with a Feedback of the same sizes and window.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.speed import VOCABULARY, Step, spread, time_interleaved
from stairwell import LanguageModel, LanguageModelConfig
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import CachedStaircaseConfig, GlobalCachedStaircaseConfig, StaircaseConfig
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.fast import staircase as staircase_engine

B, T = 8, 256
SIZES: dict[str, Any] = {"width": 256, "layers": 4, "heads": 4}
ROUNDS = 5
WARM_UP = 2  # steps that fill the memory
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Model:
    name: str
    core: Any
    paper: float | None = None  # time over that of Transformer-XL


SMALL_SIZES: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4}
SMALL_T = 32
CASES = ("passes", "small-chunks")


@dataclass(frozen=True)
class SmallChunks:
    name: str
    core: Any
    batch: int

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

MODELS = (
    Model("transformer-xl", TransformerXLConfig(memory=256, **SIZES), 1.0),
    Model("staircase-2", StaircaseConfig(passes=2, chunk=128, **SIZES), 1.7),
    Model("staircase-4", StaircaseConfig(passes=4, chunk=64, **SIZES), 3.3),
    Model("staircase-8", StaircaseConfig(passes=8, chunk=32, **SIZES), 6.4),
    Model("cached-1", CachedStaircaseConfig(passes=3, chunk=128, compute=1, **SIZES), 1.4),
)


def multiplications(core: Any) -> float:
    """Return the multiplications per token in all layers and passes, for a segment of T tokens after a full memory.

    A token at a pass costs its projections and feed-forward, and three products (keys, positions, values) per visible
    slot. A slot of the state costs its key and value, once per pass at which it is visible.
    """
    D, F, HK = core.width, core.F, core.heads * core.K
    token, slot, attend = 4 * D * HK + 2 * D * F, 2 * D * HK, 3 * HK
    if isinstance(core, TransformerXLConfig):
        return core.layers * (token + slot * core.memory / T + attend * core.memory)
    C, N, E = core.chunk, core.N, core.computed
    # In a full step, a token at pass n attends to N - n chunks and on average to half of its own.
    visible = sum((N - n) * C + (C + 1) / 2 for n in range(1, E + 1))
    projected = sum(n * C for n in range(1, E))  # chunk -d at pass n + d > d, from the state
    if E < N:
        projected += (N - 1) * C + (T - C)  # the cache of the state, and new entries for later chunks
    return core.layers * (token * E + slot * projected / T + attend * visible)


def model_for(core: Any, engine: str) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=core, inputs=VOCABULARY), engine)


def training_step(core: Any, engine: str, batch: int = B, length: int = T) -> Step:
    model = model_for(core, engine).train()
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(VOCABULARY, (2, batch, length))
    state = model.init_state(batch)
    grows = isinstance(core, GlobalCachedStaircaseConfig)  # then every segment starts from the initial state

    def step() -> None:
        nonlocal state
        optimizer.zero_grad()
        losses, after = model.nll(tokens, targets, state)
        losses.mean().backward()
        optimizer.step()
        state = model.init_state(batch) if grows else after.detach()

    return step


def results(core: Any, engine: str) -> list[torch.Tensor]:
    """Return losses, final state and all gradients of a second segment, for a batch of two."""
    model = model_for(core, engine).double().eval()  # in float32 rounding can flip a ReLU
    tokens, targets = torch.randint(VOCABULARY, (2, 2, T))
    with torch.no_grad():
        _, state = model.nll(tokens, targets, model.init_state(2))
    losses, state = model.nll(tokens, targets, state)
    losses.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [losses.detach(), *(tensor.detach() for _, tensor in state.tensors() if tensor.numel()), *gradients]


def check_equal(model: Model | SmallChunks) -> None:
    fast, reference = results(model.core, "fast"), results(model.core, "reference")
    for ours, theirs in zip(fast, reference, strict=True):
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))
        if not error < TOLERANCE:
            sys.exit(f"the fast engine of {model.name} differs from the reference ({error:.2g}); nothing was measured")


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    records = measure_passes() if "passes" in cases else []
    if "small-chunks" in cases:
        records += [measure_small(model) for model in SMALL_CHUNKS]
    return records


def measure_passes() -> list[dict[str, Any]]:
    steps: dict[tuple[str, str], Step] = {}
    for model in MODELS:
        check_equal(model)
        for engine in ("fast", "reference"):
            steps[model.name, engine] = training_step(model.core, engine)
    times = time_interleaved(steps, ROUNDS, WARM_UP)
    return [record(model, times) for model in MODELS]


def in_pytorch(step: Step) -> Step:
    """Return the same step with the PyTorch engine."""

    def run() -> None:
        limit, staircase_engine.MAX_NATIVE_TOKENS = staircase_engine.MAX_NATIVE_TOKENS, 0
        try:
            step()
        finally:
            staircase_engine.MAX_NATIVE_TOKENS = limit

    return run


def measure_small(model: SmallChunks) -> dict[str, Any]:
    check_equal(model)
    core, batch = model.core, model.batch
    steps = {
        "fast": training_step(core, "fast", batch, SMALL_T),
        "pytorch": in_pytorch(training_step(core, "fast", batch, SMALL_T)),
        "reference": training_step(core, "reference", batch, SMALL_T),
        "feedback": training_step(model.feedback, "fast", batch, SMALL_T),
    }
    times = time_interleaved(steps, ROUNDS, WARM_UP)
    median = {key: statistics.median(taken) for key, taken in times.items()}
    return {
        "case": "small-chunks",
        "what": model.name,
        "rows": batch,
        "tokens_per_second": round(batch * SMALL_T / median["fast"]),
        "spread": spread(times["fast"]),
        "rounds": ROUNDS,
        "long_diagonals_over_fast": round(median["pytorch"] / median["fast"], 2),
        "reference_over_fast": round(median["reference"] / median["fast"], 2),
        "time_over_feedback": round(median["fast"] / median["feedback"], 2),
    }


def record(model: Model, times: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    base = MODELS[0]
    fast, reference = times[model.name, "fast"], times[model.name, "reference"]
    median = statistics.median(fast)
    over = median / statistics.median(times[base.name, "fast"])
    counted = multiplications(model.core) / multiplications(base.core)
    return {
        "case": "staircase",
        "what": model.name,
        "parameters": sum(parameter.numel() for parameter in model_for(model.core, "reference").parameters()),
        "tokens_per_second": round(B * T / median),
        "spread": spread(fast),
        "rounds": ROUNDS,
        "time_over_transformer_xl": round(over, 2),
        "operations_over_transformer_xl": round(counted, 2),
        "time_over_operations": round(over / counted, 2),
        "paper": model.paper,
        "reference_over_fast": round(statistics.median(reference) / median, 2),
    }
