"""Training speed: forward, backward and Adam on one segment, all implementations interleaved in one process.

Before timing, the fast engine must agree with the reference in values and gradients; otherwise the benchmark stops.
Peers are other packages (pip install ".[bench]"); missing ones are skipped with a message. Feedback and our
Transformer-XL start with a full memory; peers start with an empty one and fill it during the warm-up.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell import CORES, FeedbackConfig, LanguageModel, LanguageModelConfig, LSTMConfig, State, TransformerXLConfig
from stairwell.cores.feedback import Feedback, FeedbackState
from stairwell.cores.transformer_xl import TransformerXLState
from stairwell.fast.feedback import FeedbackEngine
from stairwell.fast.feedback_torch import TorchBackend
from stairwell.runs import preset

VOCABULARY = 256
ROUNDS = 7
WARM_UP = 4  # steps before timing; they also fill the longest memory of a peer

Step = Callable[[], None]
Name = TypeVar("Name")


@dataclass(frozen=True)
class Case:
    """A shape. `implementations` are keys of IMPLEMENTATIONS; ratios are relative to the first."""

    name: str
    B: int
    layers: int = 4
    width: int = 256
    heads: int = 4
    memory: int = 100
    segment: int = 64
    dropout: float = 0.0
    inner: int | None = None  # default: 4 * width
    head_width: int | None = None  # default: width / heads
    span: int | None = None  # tokens of the adaptive span of every head; None: no adaptive span
    implementations: tuple[str, ...] = ("feedback", "reference", "transformer-xl", "x-transformers", "feedback-pytorch")


CASES = {
    case.name: case
    for case in (
        Case("b16", B=16),
        Case("b64", B=64),
        # Without a compiler, or on a GPU, the same loops run in PyTorch.
        Case("b16-loops", B=16, implementations=("feedback", "feedback-torch", "reference")),
        Case("b64-loops", B=64, implementations=("feedback", "feedback-torch", "reference")),
        Case("b256", B=256, implementations=("feedback", "transformer-xl", "x-transformers")),
        Case("b16-dropout", B=16, dropout=0.2, implementations=("feedback", "transformer-xl", "x-transformers")),
        Case("b64-dropout", B=64, dropout=0.2, implementations=("feedback", "transformer-xl", "x-transformers")),
        Case(
            "small", B=128, layers=2, width=64, heads=1, memory=16, segment=32,
            implementations=("feedback", "reference", "transformer-xl", "lstm"),
        ),
        # The Feedback paper's model for character-level Penn Treebank, with a smaller batch.
        Case(
            "char-ptb", B=16, layers=6, width=384, memory=512, segment=128,
            implementations=("feedback", "feedback-bf16-kv", "transformer-xl", "x-transformers"),
        ),
        # The paper's model for enwik8 with 4 of its 12 layers, 1,024 of its 8,192 slots and a small batch. Its spans
        # are learned; here every head has a span of 128 tokens and a ramp of 32.
        Case(
            "enwik8", B=8, width=512, heads=8, inner=4096, head_width=128, memory=1024, segment=128, span=128,
            implementations=("feedback", "feedback-bf16-kv", "transformer-xl"),
        ),
    )
}  # fmt: skip


def make_model(case: Case, core: Any, engine: str, model_class: type[LanguageModel] = LanguageModel) -> LanguageModel:
    torch.manual_seed(0)
    model = model_class(LanguageModelConfig(core=core, inputs=VOCABULARY), engine)
    for span in model.core.spans():
        nn.init.constant_(span.ratio, (case.span or 0) / span.longest)
    return model


def full_state(model: LanguageModel, B: int) -> State:
    """Return a state with a full memory of random values. The cost of a step does not depend on the values."""
    state = model.init_state(B)
    if not isinstance(state, FeedbackState | TransformerXLState):
        return state
    tensors = dict(state.tensors())
    tensors["count"] = torch.full_like(tensors["count"], tensors["memory"].shape[1])
    tensors["memory"] = torch.randn_like(tensors["memory"])
    return type(state).from_tensors(tensors)


def stairwell_step(
    case: Case, core: Any, engine: str, full: bool = True, model_class: type[LanguageModel] = LanguageModel
) -> Step:
    model = make_model(case, core, engine, model_class).train()
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(VOCABULARY, (2, case.B, case.segment))
    state = full_state(model, case.B) if full else model.init_state(case.B)

    def step() -> None:
        nonlocal state
        optimizer.zero_grad()
        losses, after = model.nll(tokens, targets, state)
        losses.mean().backward()
        optimizer.step()
        state = after.detach()

    return step


def torch_loops_step(case: Case) -> Step:
    """Return a training step of Feedback without native code."""

    class InPyTorch(LanguageModel):
        def __init__(self, config: LanguageModelConfig, engine: str) -> None:
            super().__init__(config, engine)
            self.core.engine = FeedbackEngine(TorchBackend())

    return stairwell_step(case, FeedbackConfig(**sizes(case)), "auto", model_class=InPyTorch)


class RoundedKeysValues(LanguageModel):
    """A Feedback model that stores keys and values in bfloat16, as with --train.kv_precision bf16."""

    def __init__(self, config: LanguageModelConfig, engine: str) -> None:
        super().__init__(config, engine)
        assert isinstance(self.core, Feedback)
        self.core.kv_precision = "bf16"


def sizes(case: Case) -> dict[str, Any]:
    return {
        "width": case.width, "layers": case.layers, "heads": case.heads, "memory": case.memory,
        "attention_dropout": case.dropout, "relu_dropout": case.dropout, "inner": case.inner,
        "head_width": case.head_width, "adaptive_span": case.span is not None,
    }  # fmt: skip


def lstm_of_equal_size(case: Case) -> LSTMConfig:
    """Return an LSTM of about the same size: it has 8 D^2 parameters per layer, Feedback 10 D^2 and 2 D^2 shared."""
    D, L = case.width, case.layers
    return LSTMConfig(width=round(((10 * L + 2) * D * D / (8 * L)) ** 0.5 / 8) * 8, layers=L)


def x_transformers_step(case: Case) -> Step:
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(
        dim=case.width, depth=case.layers, heads=case.heads, attn_dim_head=case.width // case.heads, ff_mult=4,
        rel_pos_bias=True, attn_dropout=case.dropout, ff_dropout=case.dropout,
    )  # fmt: skip
    model = TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=case.segment,
        max_mem_len=case.memory,
        use_abs_pos_emb=False,
        attn_layers=layers,
    )
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(VOCABULARY, (2, case.B, case.segment))
    memory = None

    def step() -> None:
        nonlocal memory
        optimizer.zero_grad()
        logits, after = model(tokens, mems=memory, return_mems=True)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        memory = [part.detach() for part in after]

    return step


def feedback_pytorch_step(case: Case) -> Step:
    from feedback_transformer_pytorch import FeedbackTransformer

    torch.manual_seed(0)
    model = FeedbackTransformer(
        num_tokens=VOCABULARY, dim=case.width, depth=case.layers, mem_len=case.memory, seq_len=1, heads=case.heads,
        dim_head=case.width // case.heads, attn_dropout=case.dropout, ff_dropout=case.dropout,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(VOCABULARY, (2, case.B, case.segment))
    memory = None

    def step() -> None:
        nonlocal memory
        optimizer.zero_grad()
        logits, after = model(tokens, memory=memory, return_memory=True)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        memory = type(after)(*(part.detach() for part in after))

    return step


IMPLEMENTATIONS: dict[str, Callable[[Case], Step]] = {
    "feedback": lambda case: stairwell_step(case, FeedbackConfig(**sizes(case)), "auto"),
    "feedback-bf16-kv": lambda case: stairwell_step(
        case, FeedbackConfig(**sizes(case)), "auto", model_class=RoundedKeysValues
    ),
    "feedback-torch": torch_loops_step,
    "reference": lambda case: stairwell_step(case, FeedbackConfig(**sizes(case)), "reference"),
    "transformer-xl": lambda case: stairwell_step(case, TransformerXLConfig(**sizes(case)), "auto"),
    "transformer-xl-reference": lambda case: stairwell_step(case, TransformerXLConfig(**sizes(case)), "reference"),
    "lstm": lambda case: stairwell_step(case, lstm_of_equal_size(case), "auto"),
    "x-transformers": x_transformers_step,
    "feedback-pytorch": feedback_pytorch_step,
}


def results(case: Case, engine: str, dtype: torch.dtype, model_class: type[LanguageModel]) -> list[Tensor]:
    """Return losses, final state and all gradients for a batch of two."""
    model = make_model(case, FeedbackConfig(**sizes(case)), engine, model_class).eval()
    tokens, targets = torch.randint(VOCABULARY, (2, 2, case.segment))
    state = full_state(model, 2).to(dtype=dtype)
    losses, state = model.to(dtype).nll(tokens, targets, state)
    losses.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [losses.detach(), *(tensor.detach() for _, tensor in state.tensors()), *gradients]


def check_equal(case: Case, model_class: type[LanguageModel] = LanguageModel) -> None:
    """Compare the fast engine with the reference in float64 at this shape. In float32 only norms are compared: rounding
    can flip a ReLU near zero and change the gradient of a single unit."""
    exact = results(case, "reference", torch.float64, model_class)
    for dtype, allowed in ((torch.float64, 1e-9), (torch.float32, 1e-2)):
        for ours, theirs in zip(results(case, "auto", dtype, model_class), exact, strict=True):
            error = float((ours - theirs).double().norm() / theirs.double().norm().clamp_min(1e-6))
            if not error < allowed:
                sys.exit(
                    f"the fast engine differs from the reference at '{case.name}' in {dtype} "
                    f"(relative error {error:.2g}); nothing was measured"
                )


def measure_case(case: Case) -> list[dict[str, Any]]:
    check_equal(case)
    if "feedback-bf16-kv" in case.implementations:
        check_equal(case, RoundedKeysValues)
    steps: dict[str, Step] = {}
    for name in case.implementations:
        try:
            steps[name] = IMPLEMENTATIONS[name](case)
        except ImportError as missing:
            print(f"{name} skipped: {missing}", file=sys.stderr)
    times = time_interleaved(steps)
    tokens = case.B * case.segment
    return [
        {
            "case": case.name,
            "what": name,
            "tokens_per_second": round(tokens / statistics.median(times[name])),
            "spread": spread(times[name]),
            "rounds": ROUNDS,
            **ratio_fields("feedback_over_this", times[name], times["feedback"]),
            **rounded_over(name, times),
        }
        for name in steps
    ]


def ratio_fields(name: str, numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, Any]:
    """Return the median of the ratios of each round as the field `name`, and their range."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return {name: round(statistics.median(ratios), 2), f"{name}_range": [round(min(ratios), 2), round(max(ratios), 2)]}


def rounded_over(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Return the ratio of Feedback with keys and values in bfloat16 to this implementation, if it was timed."""
    rounded = times.get("feedback-bf16-kv")
    return {} if rounded is None else ratio_fields("rounded_over_this", times[name], rounded)


def measure_cores() -> list[dict[str, Any]]:
    """Measure every core of the registry with its language-modeling preset."""
    case = Case("cores", B=32)
    implementations = {name: preset(f"lm/{name}").core for name in CORES}
    steps = {name: stairwell_step(case, core, "auto") for name, core in implementations.items()}
    times = time_interleaved(steps)
    tokens = case.B * case.segment
    rates = {name: tokens / statistics.median(taken) for name, taken in times.items()}
    return [
        {
            "case": case.name,
            "what": name,
            "tokens_per_second": round(rate),
            "spread": spread(times[name]),
            "rounds": ROUNDS,
            "over_feedback": round(rate / rates["feedback"], 2),
        }
        for name, rate in rates.items()
    ]


def time_interleaved(
    steps: Mapping[Name, Callable[[], Any]], rounds: int = ROUNDS, warm_up: int | None = None
) -> dict[Name, list[float]]:
    """Return the seconds of each step in each round. Steps are interleaved, so that a slow phase of the machine affects
    all of them."""
    times: dict[Name, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(WARM_UP if warm_up is None else warm_up):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
    return times


def spread(times: list[float]) -> float:
    """Return (slowest - fastest) / median."""
    return round((max(times) - min(times)) / statistics.median(times), 2)


def measure(cases: Sequence[str] = tuple(CASES)) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_case(CASES[name])]
