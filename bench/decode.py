"""Decoding speed: one token per stream and step, all models interleaved in one process.

Feedback has one memory, Transformer-XL one per layer, so Feedback projects, stores and reads less. Before timing, each
session must agree with its model; otherwise the benchmark stops. The peer is Hugging Face's GPT-2 with its own cache
(pip install transformers); it is skipped with a message if transformers is missing.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bench.speed import VOCABULARY, Step, full_state, spread, time_interleaved
from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, TransformerXLConfig
from stairwell.decode import Session

ROUNDS = 9
LONG = 10_000  # tokens of the case `flat`


@dataclass(frozen=True)
class Decoder:
    model: str  # feedback, transformer-xl or gpt2
    B: int


@dataclass(frozen=True)
class Case:
    """A shape and its decoders; ratios are relative to the first, Feedback."""

    name: str
    decoders: tuple[Decoder, ...]
    span: int = 512
    steps: int = 8  # per timing
    layers: int = 8
    width: int = 512
    heads: int = 8


CASES = {
    case.name: case
    for case in (
        Case("b1", (Decoder("feedback", 1), Decoder("transformer-xl", 1), Decoder("gpt2", 1)), steps=32),
        Case("b32-span512", (Decoder("feedback", 32), Decoder("transformer-xl", 32))),
        Case("b32-span2048", (Decoder("feedback", 32), Decoder("transformer-xl", 32)), span=2048, steps=3),
        # A state of Transformer-XL is 8 times as large, once per layer.
        Case("equal-state", (Decoder("feedback", 64), Decoder("transformer-xl", 8))),
    )
}


def make_model(case: Case, name: str) -> LanguageModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": case.width, "layers": case.layers, "heads": case.heads, "memory": case.span}
    core = FeedbackConfig(**sizes) if name == "feedback" else TransformerXLConfig(**sizes)
    return LanguageModel(LanguageModelConfig(core=core, inputs=VOCABULARY)).eval()


def session_step(model: LanguageModel, B: int) -> tuple[Step, int]:
    """Return a step and the size of its state in bytes."""
    state = full_state(model, B)
    session = Session(model, state)
    tokens = torch.zeros(B, dtype=torch.int64)

    def step() -> None:
        nonlocal tokens
        tokens = session.step(tokens).argmax(-1)

    return step, state.nbytes


def gpt2_step(case: Case, B: int) -> tuple[Step, int]:
    """Return a step of a GPT-2 of the same size, with a cache as long as the span. The cache grows by one token per
    step and is reset after 64, so that it is timed at about the length of the span."""
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": case.width, "n_layer": case.layers, "n_head": case.heads}
    sizes |= {"n_positions": case.span + 64, "bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes)).eval()
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


def make_step(case: Case, decoder: Decoder) -> tuple[Step, int]:
    if decoder.model == "gpt2":
        return gpt2_step(case, decoder.B)
    return session_step(make_model(case, decoder.model), decoder.B)


@torch.no_grad()
def check_equal(case: Case, name: str) -> None:
    """Compare logits and final state of a session and its model, for a batch of two with a full memory."""
    model = make_model(case, name)
    tokens = torch.randint(VOCABULARY, (2, 6))
    state = full_state(model, 2)
    session = Session(model, state)
    logits, after = model(tokens, state)
    stepped = torch.stack([session.step(tokens[:, t]) for t in range(tokens.shape[1])], 1)
    pairs = [(stepped, logits), *zip((t for _, t in session.state().tensors()), (t for _, t in after.tensors()))]
    for ours, theirs in pairs:
        error = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1)
        if not error < 1e-3:
            sys.exit(f"the session of {name} differs from its model at '{case.name}' (relative error {error:.2g})")


def measure_case(case: Case) -> list[dict[str, Any]]:
    steps: dict[Decoder, Step] = {}
    state_bytes: dict[Decoder, int] = {}
    for decoder in case.decoders:
        try:
            step, state_bytes[decoder] = make_step(case, decoder)
        except ImportError as missing:
            print(f"{decoder.model} skipped: {missing}", file=sys.stderr)
            continue
        if decoder.model != "gpt2":
            check_equal(case, decoder.model)
        steps[decoder] = partial(repeat, step, case.steps)
    times = time_interleaved(steps, ROUNDS, warm_up=1)
    rates = {decoder: decoder.B * case.steps / statistics.median(taken) for decoder, taken in times.items()}
    return [
        {
            "case": case.name,
            "what": decoder.model,
            "rows": decoder.B,
            "span": case.span,
            "state_megabytes": round(state_bytes[decoder] / 2**20, 1),
            "tokens_per_second": round(rates[decoder], 1),
            "spread": spread(times[decoder]),
            "rounds": ROUNDS,
            "feedback_over_this": round(rates[case.decoders[0]] / rates[decoder], 2),
        }
        for decoder in steps
    ]


def repeat(step: Step, n: int) -> None:
    for _ in range(n):
        step()


def measure_flat(tokens: int = LONG) -> list[dict[str, Any]]:
    """Measure the time per token for every thousand tokens from the initial state: constant once the memory is full."""
    case = CASES["b1"]
    records = []
    for name in ("feedback", "transformer-xl"):
        model = make_model(case, name)
        session = Session(model, model.init_state(1))
        token = torch.zeros(1, dtype=torch.int64)
        for first in range(0, tokens, 1000):
            times = []
            for _ in range(min(1000, tokens - first)):
                started = time.perf_counter()
                token = session.step(token).argmax(-1)
                times.append(time.perf_counter() - started)
            median = statistics.median(times)
            records.append({"case": "flat", "what": name, "after": first, "milliseconds": round(median * 1000, 3)})
    return records


def measure(cases: Sequence[str] = (*CASES, "flat")) -> list[dict[str, Any]]:
    return [record for name in cases for record in (measure_flat() if name == "flat" else measure_case(CASES[name]))]
