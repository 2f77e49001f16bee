"""Decoding speed: one token per stream and step, all models interleaved in one process.

Feedback has one memory, Transformer-XL one per layer, so Feedback projects, stores and reads less. Before timing, each
session must agree with its model; otherwise the benchmark stops. The peer is Hugging Face's GPT-2 with its own cache
(pip install transformers); it is skipped with a message if transformers is missing.

The cases of 32 streams also measure Feedback with keys and values in bfloat16.

The cases `single-...` decode one stream with parameters in float32, bfloat16 and int8, beside the memory bandwidth that
the same process measures between them. Their ratios are those of each round; the median and the range are shown.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch

from bench.speed import VOCABULARY, Step, full_state, spread, time_interleaved
from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, TransformerXLConfig
from stairwell.decode import Session
from stairwell.decode.program import cached_program
from stairwell.decode.weights import Cache, Weights, quantize, set_cache_type
from stairwell.fast import native

ROUNDS = 9
LONG = 10_000  # tokens of the case `flat`


@dataclass(frozen=True)
class Decoder:
    model: str  # feedback, transformer-xl or gpt2
    B: int
    cache: Cache = "float32"

    @property
    def name(self) -> str:
        return self.model if self.cache == "float32" else f"{self.model}-{self.cache}-cache"


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


BATCH_OF_32 = (Decoder("feedback", 32), Decoder("transformer-xl", 32), Decoder("feedback", 32, "bfloat16"))
CASES = {
    case.name: case
    for case in (
        Case("b1", (Decoder("feedback", 1), Decoder("transformer-xl", 1), Decoder("gpt2", 1)), steps=32),
        Case("b32-span512", BATCH_OF_32),
        Case("b32-span2048", BATCH_OF_32, span=2048, steps=3),
        # A state of Transformer-XL is 8 times as large, once per layer.
        Case("equal-state", (Decoder("feedback", 64), Decoder("transformer-xl", 8))),
    )
}


SINGLE_ROUNDS = 9
BANDWIDTH_BYTES = 1 << 28
SINGLES = {
    "single-8x512": Case("single-8x512", (Decoder("feedback", 1),), steps=64),
    "single-4x256": Case("single-4x256", (Decoder("feedback", 1),), steps=256, layers=4, width=256, heads=4),
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
    model = make_model(case, decoder.model)
    set_cache_type(model, decoder.cache)
    return session_step(model, decoder.B)


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
            "what": decoder.name,
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


def bandwidth_steps() -> dict[str, Step]:
    """Return steps that read memory which no cache holds, in two ways; the faster one is the bandwidth."""
    numbers = torch.ones(BANDWIDTH_BYTES // 4)
    matrix, vector = numbers.view(-1, 4096), torch.ones(4096)
    return {"sum": lambda: numbers.sum(), "product": lambda: torch.mv(matrix, vector)}


def parameter_bytes(model: LanguageModel) -> int:
    """Return the size of what native code reads of a model for one token."""
    program = cached_program(model).native
    if program is None:
        sys.exit("this benchmark requires the native library; see `stairwell info`")
    return sum(tensor.nbytes for tensor in program.tensors if tensor is not None)


def measure_single(case: Case) -> list[dict[str, Any]]:
    """Measure one stream with every storage of the parameters, GPT-2 of the same size, and the bandwidth."""
    check_equal(case, "feedback")
    steps: dict[str, Step] = {}
    read: dict[str, int] = {}
    for weights in get_args(Weights):
        model = make_model(case, "feedback")
        quantize(model, weights)
        step, _ = session_step(model, 1)
        steps[weights], read[weights] = partial(repeat, step, case.steps), parameter_bytes(model)
    try:
        steps["gpt2"] = partial(repeat, gpt2_step(case, 1)[0], case.steps)
    except ImportError as missing:
        print(f"gpt2 skipped: {missing}", file=sys.stderr)
    reads = bandwidth_steps()
    times = time_interleaved({**steps, **reads}, SINGLE_ROUNDS, warm_up=1)
    rounds = range(SINGLE_ROUNDS)
    fastest = min(reads, key=lambda name: statistics.median(times[name]))
    bandwidth = [BANDWIDTH_BYTES / times[fastest][i] for i in rounds]
    rates = {name: [case.steps / times[name][i] for i in rounds] for name in steps}

    def ratio(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    records: list[dict[str, Any]] = [
        {
            "case": case.name,
            "what": "bandwidth",
            "gigabytes_per_second": round(statistics.median(bandwidth) / 1e9, 1),
            "spread": spread(times[fastest]),
            "rounds": SINGLE_ROUNDS,
            "threads": torch.get_num_threads(),
            "instruction_set": native.INSTRUCTION_SETS[native.BEST_INSTRUCTION_SET],
        }
    ]
    for name in steps:
        record: dict[str, Any] = {
            "case": case.name,
            "what": name,
            "tokens_per_second": round(statistics.median(rates[name]), 1),
            "spread": spread(times[name]),
        }
        if name in read:
            record["megabytes_per_token"] = round(read[name] / 1e6, 1)
            record["of_bandwidth"] = ratio([rates[name][i] * read[name] / bandwidth[i] for i in rounds])
            record["over_float32"] = ratio([rates[name][i] / rates["float32"][i] for i in rounds])
            if "gpt2" in rates:
                record["over_gpt2"] = ratio([rates[name][i] / rates["gpt2"][i] for i in rounds])
        records.append(record)
    return records


def measure_one(name: str) -> list[dict[str, Any]]:
    if name == "flat":
        return measure_flat()
    return measure_single(SINGLES[name]) if name in SINGLES else measure_case(CASES[name])


def measure(cases: Sequence[str] = (*SINGLES, *CASES, "flat")) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_one(name)]
