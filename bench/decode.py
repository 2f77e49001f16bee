"""Decoding speed: one token per stream and step, all models interleaved in one process.

Feedback has one memory, Transformer-XL one per layer, so Feedback projects, stores and reads less. Before timing, each
session must agree with its model; otherwise the benchmark stops. The peer is Hugging Face's GPT-2 with its own cache
(pip install transformers) and, for one stream, in CTranslate2; a peer that is missing is skipped with a message.

The cases of 32 streams also measure Feedback with keys and values in bfloat16. The case `parts` measures how much of
their time is attention.

The cases `single-...` decode one stream with parameters in float32, bfloat16 and int8, beside the memory bandwidth that
the same process measures between them. Their ratios are those of each round; the median and the range are shown.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from bench import gpt2
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
    model: str  # feedback, feedback-own-kv, transformer-xl or gpt2
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


BATCH_OF_32 = (
    Decoder("feedback", 32),
    Decoder("feedback-own-kv", 32),
    Decoder("transformer-xl", 32),
    Decoder("feedback", 32, "bfloat16"),
)
CASES = {
    case.name: case
    for case in (
        Case(
            "b1",
            (Decoder("feedback", 1), Decoder("feedback-own-kv", 1), Decoder("transformer-xl", 1), Decoder("gpt2", 1)),
            steps=32,
        ),
        Case("b32-span512", BATCH_OF_32),
        Case("b32-span2048", BATCH_OF_32, span=2048, steps=3),
        # A state of Transformer-XL is 8 times as large, once per layer. Without shared keys and values, a session of
        # Feedback has them once per layer.
        Case("equal-state", (Decoder("feedback", 64), Decoder("feedback-own-kv", 8), Decoder("transformer-xl", 8))),
    )
}


PARTS_SPANS, PARTS_STREAMS, GROUPS = (1, 512, 2048), 32, (16, 8, 4)
SINGLE_ROUNDS = 9
BANDWIDTH_BYTES = 1 << 28
SINGLES = {
    "single-8x512": Case("single-8x512", (Decoder("feedback", 1),), steps=64),
    "single-4x256": Case("single-4x256", (Decoder("feedback", 1),), steps=256, layers=4, width=256, heads=4),
}


def make_model(case: Case, name: str) -> LanguageModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": case.width, "layers": case.layers, "heads": case.heads, "memory": case.span}
    core = (
        TransformerXLConfig(**sizes)
        if name == "transformer-xl"
        else FeedbackConfig(**sizes, share_kv=name != "feedback-own-kv")
    )
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


def make_gpt2(case: Case) -> Any:
    return gpt2.gpt2_model(case.layers, case.width, case.heads, case.span, VOCABULARY)


def make_step(case: Case, decoder: Decoder) -> tuple[Step, int]:
    if decoder.model == "gpt2":
        return gpt2.transformers_step(make_gpt2(case), decoder.B)
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


def peer_steps(case: Case, folder: Path) -> dict[str, Step]:
    """Return the steps of a GPT-2 of the same size. CTranslate2 loads its model here, from files in `folder`."""
    steps: dict[str, Step] = {}
    try:
        model = make_gpt2(case)
        steps["gpt2"] = partial(repeat, gpt2.transformers_step(model, 1)[0], case.steps)
        for name, compute_type in (("ctranslate2", "float32"), ("ctranslate2-int8", "int8")):
            steps[name], steps[f"{name}-short"] = gpt2.ctranslate2_steps(model, folder / "gpt2", compute_type)
    except ImportError as missing:
        print(f"peer skipped: {missing}", file=sys.stderr)
    return steps


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
    with tempfile.TemporaryDirectory() as folder:
        peers = peer_steps(case, Path(folder))
    reads = bandwidth_steps()
    times = time_interleaved({**steps, **peers, **reads}, SINGLE_ROUNDS, warm_up=1)
    rounds = range(SINGLE_ROUNDS)
    fastest = min(reads, key=lambda name: statistics.median(times[name]))
    bandwidth = [BANDWIDTH_BYTES / times[fastest][i] for i in rounds]
    rates = {name: [case.steps / times[name][i] for i in rounds] for name in (*steps, *({"gpt2"} & set(peers)))}
    for name in ("ctranslate2", "ctranslate2-int8"):
        if name in peers:
            # Without reading the prompt, which the short generation does too.
            short = times[f"{name}-short"]
            rates[name] = [(gpt2.ROOM - 1) / (times[name][i] - short[i]) for i in rounds]

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
    for name in rates:
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
            for peer in ("gpt2", "ctranslate2"):
                if peer in rates:
                    record[f"over_{peer}"] = ratio([rates[name][i] / rates[peer][i] for i in rounds])
        records.append(record)
    return records


def measure_parts() -> list[dict[str, Any]]:
    """Measure how much of a step of many streams is attention, and how fast it reads keys and values.

    The rest of a step is the time with a span of one token."""
    records: list[dict[str, Any]] = []
    reads = bandwidth_steps()
    for name in ("feedback", "transformer-xl"):
        cases = {span: Case("parts", (), span=span) for span in PARTS_SPANS}
        steps: dict[Any, Step] = {
            span: partial(repeat, session_step(make_model(case, name), PARTS_STREAMS)[0], 4)
            for span, case in cases.items()
        }
        times = time_interleaved({**steps, **reads}, ROUNDS, warm_up=1)
        median = {key: statistics.median(taken) for key, taken in times.items()}
        for span, case in cases.items():
            attention = (median[span] - median[min(cases)]) / 4
            read = case.layers * PARTS_STREAMS * span * 2 * case.width * 4
            record = {
                "case": "parts",
                "what": name,
                "span": span,
                "streams": PARTS_STREAMS,
                "milliseconds": round(1000 * median[span] / 4, 2),
                "attention_milliseconds": round(1000 * attention, 2),
                "read_megabytes": round(read / 2**20),
                "bandwidth": round(BANDWIDTH_BYTES / min(median[way] for way in reads) / 1e9, 1),
                "spread": spread(times[span]),
            }
            if attention > 0:
                record["gigabytes_per_second"] = round(read / attention / 1e9, 1)
            records.append(record)
    return records


def measure_groups() -> list[dict[str, Any]]:
    """Measure Feedback with all streams in one step, and with a step per group of streams. A group's keys and values
    may stay in cache from layer to layer, but each group reads all parameters."""
    records: list[dict[str, Any]] = []
    for span in PARTS_SPANS[1:]:
        model = make_model(Case("groups", (), span=span), "feedback")
        steps = {
            size: partial(run_all, [session_step(model, size)[0] for _ in range(PARTS_STREAMS // size)])
            for size in (PARTS_STREAMS, *(size for size in GROUPS if size < PARTS_STREAMS))
        }
        times = time_interleaved(steps, ROUNDS, warm_up=1)
        for size, taken in times.items():
            ratios = [whole / part for whole, part in zip(times[PARTS_STREAMS], taken, strict=True)]
            records.append(
                {
                    "case": "groups",
                    "what": "feedback",
                    "span": span,
                    "streams": PARTS_STREAMS,
                    "group": size,
                    "tokens_per_second": round(PARTS_STREAMS / statistics.median(taken), 1),
                    "over_one_group": f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                    "spread": spread(taken),
                }
            )
    return records


def run_all(steps: Sequence[Step]) -> None:
    for step in steps:
        step()


def measure_one(name: str) -> list[dict[str, Any]]:
    if name == "flat":
        return measure_flat()
    if name == "parts":
        return measure_parts()
    if name == "groups":
        return measure_groups()
    return measure_single(SINGLES[name]) if name in SINGLES else measure_case(CASES[name])


def measure(cases: Sequence[str] = (*SINGLES, *CASES, "parts", "groups", "flat")) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_one(name)]
