"""Decoding speed: one token a row and step, every contestant in one process, taking turns.

Feedback keeps one memory where Transformer-XL keeps one a layer: less to project, less to keep, less to read. Before
anything is timed each session must agree with its model; nothing is printed otherwise. The peer is Hugging Face's
GPT-2 with its own cache (pip install transformers); if it is missing it is left out and said so.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.speed import SYMBOLS, Step, full_state, spread
from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, TransformerXLConfig
from stairwell.decode import Session

ROUNDS = 9
LONG = 10_000  # tokens of the flat-cost measurement


@dataclass(frozen=True)
class Contestant:
    kind: str  # a name in KINDS
    B: int


@dataclass(frozen=True)
class Case:
    """A shape and who decodes it; ratios are against Feedback, the first."""

    name: str
    contestants: tuple[Contestant, ...]
    span: int = 512
    steps: int = 8  # timed at a time
    layers: int = 8
    width: int = 512
    heads: int = 8


CASES = {
    case.name: case
    for case in (
        Case("b1", (Contestant("feedback", 1), Contestant("transformer-xl", 1), Contestant("gpt2", 1)), steps=32),
        Case("b32-span512", (Contestant("feedback", 32), Contestant("transformer-xl", 32))),
        Case("b32-span2048", (Contestant("feedback", 32), Contestant("transformer-xl", 32)), span=2048, steps=3),
        # The state of Transformer-XL is as many times larger as it has layers.
        Case("equal-state", (Contestant("feedback", 64), Contestant("transformer-xl", 8))),
    )
}


def make_model(case: Case, kind: str) -> LanguageModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": case.width, "layers": case.layers, "heads": case.heads, "memory": case.span}
    core = FeedbackConfig(**sizes) if kind == "feedback" else TransformerXLConfig(**sizes)
    return LanguageModel(LanguageModelConfig(core=core, inputs=SYMBOLS)).eval()


def session_step(model: LanguageModel, B: int) -> tuple[Step, int]:
    """A step, and the bytes of the state that it carries."""
    state = full_state(model, B)
    session = Session(model, state)
    tokens = torch.zeros(B, dtype=torch.int64)

    def step() -> None:
        nonlocal tokens
        tokens = session.step(tokens).argmax(-1)

    return step, state.nbytes


def gpt2_step(case: Case, B: int) -> tuple[Step, int]:
    """A GPT-2 with as many layers of the same width, its cache as long as the span. Its own cache grows by a token a
    step; after 64 it begins again, so that it is timed at about the length of the span."""
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": case.width, "n_layer": case.layers, "n_head": case.heads}
    sizes |= {"n_positions": case.span + 64, "bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=SYMBOLS, **sizes)).eval()
    K = case.width // case.heads
    past = torch.randn(2, case.layers, B, case.heads, case.span, K)
    cache: Any = None
    tokens = torch.zeros(B, 1, dtype=torch.int64)

    @torch.no_grad()
    def step() -> None:
        nonlocal cache, tokens
        if cache is None or cache.get_seq_length() >= case.span + 64:
            cache = DynamicCache()
            for l in range(case.layers):
                cache.update(past[0, l], past[1, l], l)
        out = model(tokens, past_key_values=cache, use_cache=True)
        tokens = out.logits[:, -1:].argmax(-1)

    return step, past.numel() * past.element_size()


def make_step(case: Case, contestant: Contestant) -> tuple[Step, int]:
    if contestant.kind == "gpt2":
        return gpt2_step(case, contestant.B)
    return session_step(make_model(case, contestant.kind), contestant.B)


@torch.no_grad()
def check_equal(case: Case, kind: str) -> None:
    """A session against its model at this shape, two rows from a full memory: logits and the state after."""
    model = make_model(case, kind)
    tokens = torch.randint(SYMBOLS, (2, 6))
    state = full_state(model, 2)
    session = Session(model, state)
    logits, after = model(tokens, state)
    stepped = torch.stack([session.step(tokens[:, t]) for t in range(tokens.shape[1])], 1)
    pairs = [(stepped, logits), *zip((t for _, t in session.state().tensors()), (t for _, t in after.tensors()))]
    for ours, theirs in pairs:
        error = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1)
        if not error < 1e-3:
            sys.exit(f"the session of {kind} differs from its model at '{case.name}' (relative error {error:.2g})")


def measure_case(case: Case) -> list[dict[str, Any]]:
    steps: dict[Contestant, tuple[Step, int]] = {}
    for contestant in case.contestants:
        try:
            steps[contestant] = make_step(case, contestant)
        except ImportError as missing:
            print(f"{contestant.kind} left out: {missing}", file=sys.stderr)
            continue
        if contestant.kind != "gpt2":
            check_equal(case, contestant.kind)
    for step, _ in steps.values():
        for _ in range(case.steps):  # until everything is warm
            step()
    times: dict[Contestant, list[float]] = {contestant: [] for contestant in steps}
    for _ in range(ROUNDS):  # in turns, so that a slow moment of the machine hits everyone
        for contestant, (step, _) in steps.items():
            began = time.perf_counter()
            for _ in range(case.steps):
                step()
            times[contestant].append((time.perf_counter() - began) / case.steps)
    rates = {contestant: contestant.B / statistics.median(taken) for contestant, taken in times.items()}
    return [
        {
            "case": case.name,
            "what": contestant.kind,
            "rows": contestant.B,
            "span": case.span,
            "state_megabytes": round(state_bytes / 2**20, 1),
            "tokens_per_second": round(rates[contestant], 1),
            "spread": spread(times[contestant]),
            "rounds": ROUNDS,
            "feedback_over_this": round(rates[case.contestants[0]] / rates[contestant], 2),
        }
        for contestant, (_, state_bytes) in steps.items()
    ]


def measure_flat(tokens: int = LONG) -> list[dict[str, Any]]:
    """Time per token by the thousand, from a fresh state on: flat once the memory is full."""
    case = CASES["b1"]
    records = []
    for kind in ("feedback", "transformer-xl"):
        model = make_model(case, kind)
        session = Session(model, model.init_state(1))
        token = torch.zeros(1, dtype=torch.int64)
        for first in range(0, tokens, 1000):
            times = []
            for _ in range(min(1000, tokens - first)):
                began = time.perf_counter()
                token = session.step(token).argmax(-1)
                times.append(time.perf_counter() - began)
            median = statistics.median(times)
            records.append({"case": "flat", "what": kind, "after": first, "milliseconds": round(median * 1000, 3)})
    return records


def measure(cases: Sequence[str] = (*CASES, "flat")) -> list[dict[str, Any]]:
    return [record for name in cases for record in (measure_flat() if name == "flat" else measure_case(CASES[name]))]
