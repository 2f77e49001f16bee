"""The language model: losses, the papers' model sizes, inspection, and the cost of a call."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from stairwell import (
    CORES,
    FeedbackConfig,
    LanguageModel,
    LanguageModelConfig,
    StaircaseConfig,
    TransformerXLConfig,
    UniversalConfig,
    build,
    inspect,
)
from stairwell.cores import config_type
from stairwell.cores.core import TransformerCore
from stairwell.decode.sampling import penalize_repetition
from stairwell.layers import AdaptiveSpan, dropout_mask
from stairwell.models import IGNORE_INDEX
from stairwell.runs.run import Run
from tests import invariants

pytestmark = pytest.mark.quick

SMALL: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2}
MILLION = 1_000_000
TRANSFORMERS = [name for name in sorted(CORES) if issubclass(CORES[name].core, TransformerCore)]


def model_of(core: Any, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=core, **options)).double()


def stream(V: int, B: int = 2, T: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randint(V, (B, T)), torch.randint(V, (B, T))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("adaptive", [{}, {"adaptive": (5, 11), "adaptive_factor": 2}])
def test_nll_equals_the_cross_entropy_of_the_logits(tied: bool, adaptive: dict[str, Any], monkeypatch: Any) -> None:
    model = model_of(FeedbackConfig(**SMALL, memory=3), inputs=17, tied=tied, **adaptive)
    tokens, targets = stream(17)
    targets[0, 3] = IGNORE_INDEX
    logits, _ = model(tokens, model.init_state(2))
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(2, 9)
    losses, _ = model.nll(tokens, targets, model.init_state(2))
    torch.testing.assert_close(losses, expected)
    assert losses[0, 3] == 0
    expected_grads = torch.autograd.grad(losses.sum(), list(model.parameters()))
    # The same in blocks of three tokens.
    monkeypatch.setattr("stairwell.models.language.MAX_LOGITS", 3 * 17)
    blocks, _ = model.nll(tokens, targets, model.init_state(2))
    torch.testing.assert_close(blocks, expected)
    invariants.assert_close(torch.autograd.grad(blocks.sum(), list(model.parameters())), expected_grads, "gradient")


def test_predictions_are_the_argmax_of_the_logits(monkeypatch: Any) -> None:
    """Also with adaptive softmax, which scores a cluster only if it can contain the maximum, and in blocks."""
    predicted: set[int] = set()
    for seed, adaptive in enumerate([{}, *[{"adaptive": (5, 11), "adaptive_factor": 2}] * 5]):
        model = model_of(FeedbackConfig(**SMALL, memory=3), inputs=17, **adaptive)
        torch.manual_seed(seed)
        for parameter in model.head.parameters():
            torch.nn.init.normal_(parameter, std=2)  # confident enough to predict rare tokens
        tokens, targets = stream(17, B=8)
        logits, _ = model(tokens, model.init_state(8))
        for limit in (1 << 24, 3 * 17):
            monkeypatch.setattr("stairwell.models.language.MAX_LOGITS", limit)
            _, predictions, _ = model.losses(tokens, targets, model.init_state(8))
            assert predictions.equal(logits.argmax(-1))
        predicted |= set(predictions.flatten().tolist()) if adaptive else set()
    assert all(predicted & {*cluster} for cluster in (range(5), range(5, 11), range(11, 17))), "tokens of every cluster"


def test_a_repetition_penalty_affects_the_logits_of_an_adaptive_softmax() -> None:
    """A log-probability of 0 could not be lowered by a penalty."""
    model = model_of(FeedbackConfig(**SMALL, memory=3), inputs=17, adaptive=(5, 11), adaptive_factor=2)
    x = torch.randn(1, model.core.width, dtype=torch.float64)
    with torch.no_grad():
        for token, scale in ((2, 60), (8, 60)):
            tables, cluster = model.head.vectors.tables, 0 if token < 5 else 1
            projected = x @ model.head.vectors.projections[cluster]
            tables[cluster][token - (0, 5)[cluster]] = scale * projected[0] / projected.square().sum()
            model.head.rare[0] = scale * x[0] / x.square().sum()
            logits = model.head(x)[0]
            torch.testing.assert_close(logits[:5], model.head.scores(x, 0)[0])  # as in a plain head
            assert logits[token] > 40
            lowered = penalize_repetition(logits, [token], 3.0)
            assert lowered[token] == logits[token] / 3
            losses = model.head.nll(x.expand(17, -1), torch.arange(17))
            torch.testing.assert_close(-logits.log_softmax(-1), losses)


@pytest.mark.parametrize("name", ["staircase", "cached-staircase", "global-cached-staircase", "universal"])
def test_counting_equal_tokens_needs_a_start_embedding(name: str) -> None:
    """In cores that attend to the current token, the average of equal values does not depend on their number."""
    tokens, chunk = torch.ones(1, 4, dtype=torch.int64), {"chunk": 4} if "staircase" in name else {}
    for start_embedding in (False, True):
        model = model_of(CORES[name].config(**SMALL, **chunk), inputs=2, start_embedding=start_embedding)
        invariants.scramble(model)
        logits, _ = model(tokens, model.init_state(1))
        same = [bool(torch.allclose(logits[:, 0], logits[:, t])) for t in (1, 2, 3)]
        assert same == [not start_embedding] * 3


def test_the_start_embedding_is_added_to_first_tokens_only() -> None:
    model = model_of(FeedbackConfig(**SMALL, memory=3), inputs=5)
    assert not model.start_embedding.vector.any()  # initially without effect
    plain = model.embedding(tokens := torch.tensor([[1, 2, 3], [4, 0, 1]]))
    model.start_embedding.vector.data += 7
    start = torch.tensor([[False, False, True], [False, False, False]])
    inputs: list[torch.Tensor] = []
    model.core.register_forward_pre_hook(lambda core, arguments: inputs.append(arguments[0]))
    _, state = model(tokens, model.init_state(2), start)
    model(tokens, state)
    first = torch.tensor([[1, 0, 1], [1, 0, 0]], dtype=plain.dtype)[..., None]
    torch.testing.assert_close(inputs[0], plain + 7 * first)
    torch.testing.assert_close(inputs[1], plain)


class LargestResult(TorchDispatchMode):
    """Records the size of the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_the_logits_of_a_large_vocabulary_are_computed_in_blocks() -> None:
    """A vocabulary of 267,735 and 512 tokens would give 137 million logits."""
    config = LanguageModelConfig(
        core=FeedbackConfig(width=16, heads=2, layers=1, memory=4),
        inputs=267_735,
        adaptive=(20_000, 40_000, 200_000),
        tied=True,
    )
    model = LanguageModel(config)
    tokens, targets = stream(267_735, B=8, T=64)
    with LargestResult() as largest:
        losses, _ = model.nll(tokens, targets, model.init_state(8))
        losses.mean().backward()
    assert largest.numbers <= 1 << 25
    assert tokens.numel() * 267_735 > 1 << 27


def test_inputs_and_outputs_may_have_different_vocabularies() -> None:
    model = model_of(FeedbackConfig(**SMALL, memory=3), inputs=4, outputs=64)
    logits, _ = model(stream(4)[0], model.init_state(2))
    assert logits.shape == (2, 9, 64)


@pytest.mark.parametrize("name", sorted(CORES))
def test_two_calls_equal_one(name: str) -> None:
    model = model_of(CORES[name].config(width=8, layers=2), inputs=11)
    tokens, _ = stream(11)
    whole, _ = model(tokens, model.init_state(2))
    first, state = model(tokens[:, :4], model.init_state(2))
    second, _ = model(tokens[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)


def parameters(core: Any, **options: Any) -> int:
    with torch.device("meta"):
        model = LanguageModel(LanguageModelConfig(core=core, **options))
    return sum(parameter.numel() for parameter in model.parameters())


CHAR_PTB: dict[str, Any] = {"width": 384, "layers": 6, "heads": 4, "memory": 512}
ENWIK8: dict[str, Any] = {
    "width": 512, "layers": 12, "heads": 8, "head_width": 128, "inner": 4096, "memory": 8192, "adaptive_span": True,
}  # fmt: skip
WALK: dict[str, Any] = {"width": 256, "layers": 4, "heads": 4, "memory": 100}
WIKI_SMALL: dict[str, Any] = {
    "width": 512, "layers": 4, "heads": 8, "head_width": 128, "inner": 4096, "memory": 512,
}  # fmt: skip
WIKI_LARGE: dict[str, Any] = {"width": 1024, "layers": 8, "heads": 8, "memory": 512}
WORDS: dict[str, Any] = {"inputs": 267_735, "tied": True, "adaptive": (20_000, 40_000, 200_000)}
REDDIT: dict[str, Any] = {"width": 1024, "heads": 8}
BPE: dict[str, Any] = {"inputs": 8_000}


@pytest.mark.parametrize(
    ("millions", "core", "options"),
    [
        (3.2, FeedbackConfig(**WALK, share_kv=False), {"inputs": 4, "outputs": 64}),
        (3.2, TransformerXLConfig(**WALK), {"inputs": 4, "outputs": 64}),
        (2.8, FeedbackConfig(**WALK), {"inputs": 4, "outputs": 64}),
        (10.7, FeedbackConfig(**CHAR_PTB, share_kv=False), {"inputs": 50}),
        (9.25, FeedbackConfig(**CHAR_PTB), {"inputs": 50}),
        (77, FeedbackConfig(**ENWIK8, share_kv=False), {"inputs": 205}),
        (65.3, FeedbackConfig(**ENWIK8), {"inputs": 205}),
        (44, FeedbackConfig(**WIKI_SMALL, share_kv=False), WORDS),
        (139, FeedbackConfig(**WIKI_LARGE, share_kv=False), WORDS),
        (126, FeedbackConfig(**{**WIKI_LARGE, "memory": 2048}, adaptive_span=True), WORDS),
        (117, TransformerXLConfig(**REDDIT, layers=8, memory=256, attend_to_current=True), BPE),
        (218, TransformerXLConfig(**REDDIT, layers=16, memory=256, attend_to_current=True), BPE),
        (102, FeedbackConfig(**REDDIT, layers=8, memory=512), BPE),
        (117, StaircaseConfig(**REDDIT, layers=8, passes=8, chunk=32), BPE),
        (29, UniversalConfig(**REDDIT, layers=1, memory=256, passes=8), BPE),
        (120, UniversalConfig(width=2560, heads=8, layers=1, memory=256, passes=8), BPE),
    ],
)
def test_the_papers_models_have_the_papers_sizes(millions: float, core: Any, options: dict[str, Any]) -> None:
    assert parameters(core, **options) == pytest.approx(millions * MILLION, rel=0.02)


def test_inspected_attention_weights_sum_to_one() -> None:
    model = model_of(FeedbackConfig(**SMALL, memory=4, attend_to_current=True), inputs=11)
    tokens, _ = stream(11)
    plain, _ = model(tokens, model.init_state(2))
    with inspect(model) as recorder:
        first, state = model(tokens[:, :5], model.init_state(2))
        second, _ = model(tokens[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), plain)
    assert [weights.shape for weights in recorder.attention] == [(2, 2, 9, 5)] * 2
    torch.testing.assert_close(recorder.attention[0].sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))
    assert torch.all(recorder.attention[0][:, :, 0, 0] == 1)  # the first token attends to itself only
    assert torch.all(recorder.attention[1][:, :, 2, 3:] == 0)  # the third token has only two before it
    torch.testing.assert_close(recorder.layer_weights, torch.full((1, 3), 1 / 3, dtype=torch.float64))
    assert model.core.recorder is None


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_transformer_core_can_be_inspected(name: str) -> None:
    model = model_of(CORES[name].config(width=8, layers=2), inputs=11)
    with inspect(model) as recorder:
        model(stream(11)[0], model.init_state(2))
    assert len(recorder.attention) == model.core.depth()
    for weights in recorder.attention:
        assert weights.shape[:3] == (2, 4, 9)
        total = weights.sum(-1)
        assert torch.all(((total - 1).abs() < 1e-12) | (total == 0))


class MemoryCopies(TorchDispatchMode):
    """Records every operation whose result has vectors for at least half of the memory's slots."""

    def __init__(self, slots: int, width: int) -> None:
        super().__init__()
        self.numbers, self.width, self.operations = slots * width // 2, width, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.numel() >= self.numbers and result.shape[-1] <= self.width:
            views = {argument.untyped_storage().data_ptr() for argument in args if isinstance(argument, torch.Tensor)}
            if result.untyped_storage().data_ptr() not in views:
                self.operations.append(str(func))
        return result


@pytest.mark.parametrize("config", [
    FeedbackConfig(width=8, heads=2, layers=2, memory=500),
    FeedbackConfig(width=8, heads=2, layers=2, memory=500, share_kv=False, memory_composition="recurrent"),
    StaircaseConfig(width=8, heads=2, layers=2, chunk=100, passes=3),
    TransformerXLConfig(width=8, heads=2, layers=2, memory=500),
])  # fmt: skip
def test_the_memory_is_not_copied_for_every_token(config: Any) -> None:
    """A call of one token and a call of forty have the same number of operations as large as the memory."""
    core = build(config)
    operations = []
    for T in (1, 40):
        with torch.no_grad():
            _, state = core(torch.randn(1, 600, 8), core.init_state(1))
            slots = max(tensor.shape[1] for _, tensor in state.tensors() if tensor.dim() > 1)
            with MemoryCopies(slots, 8) as copies:
                core(torch.randn(1, T, 8), state)
        operations.append(copies.operations)
    assert operations[0]
    assert operations[0] == operations[1]


class Work(TorchDispatchMode):
    """Counts the numbers that all operations produce, as a measure of work."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numbers += result.numel() if isinstance(result, torch.Tensor) else 0
        return result


@pytest.mark.parametrize("name", [name for name in sorted(CORES) if name != "global-cached-staircase"])
def test_the_cost_of_a_token_does_not_grow_with_the_stream(name: str) -> None:
    small = {"memory": 6} if "memory" in CORES[name].config.__dataclass_fields__ else {}
    core = build(CORES[name].config(width=4, layers=1, **small))
    state, costs = core.init_state(1), []
    with torch.no_grad():
        for _ in range(3):
            _, state = core(torch.randn(1, 256, 4), state)
            with Work() as work:
                core(torch.randn(1, 3, 4), state)
            costs.append(work.numbers)
    assert costs[1] == costs[2]


def test_slots_beyond_the_learned_span_are_not_computed() -> None:
    core: Any = build(FeedbackConfig(width=8, heads=2, layers=1, memory=400, adaptive_span=True, span_ramp=4))
    costs = []
    for ratio in (0.0, 1.0):
        core.layers[0].span.ratio.data.fill_(ratio)
        with torch.no_grad():
            _, state = core(torch.randn(1, 1, 8), core.init_state(1))
            with Work() as work:
                core(torch.randn(1, 30, 8), state)
        costs.append(work.numbers)
    assert costs[0] < costs[1] / 5


def test_span_loss() -> None:
    core: Any = build(FeedbackConfig(width=8, heads=2, layers=3, memory=50, adaptive_span=True, span_loss=0.5))
    assert core.span_loss() == 0
    core.layers[1].span.ratio.data.copy_(torch.tensor([1.2, -0.1]))
    core.clamp_spans()
    assert core.layers[1].span.z.tolist() == [50.0, 0.0]
    assert core.span_loss().item() == 0.5 * 25
    assert build(FeedbackConfig(width=8, heads=2)).span_loss() == 0


@pytest.mark.parametrize("name", ["feedback", "transformer-xl", "staircase"])
def test_scaled_initialization_divides_the_output_projections(name: str) -> None:
    options: dict[str, Any] = {"width": 8, "heads": 2, "layers": 3, "cross": True}
    parameters = []
    for scaled in (False, True):
        torch.manual_seed(0)
        parameters.append(dict(build(config_type(name)(**options, scaled_init=scaled)).named_parameters()))
    for key, plain in parameters[0].items():
        factor = 6**-0.5 if key.endswith("out.weight") else 1.0
        torch.testing.assert_close(parameters[1][key], plain * factor, rtol=1e-6, atol=0)
    assert sum(key.endswith("out.weight") for key in parameters[0]) == 9


def test_adam_can_move_a_span_at_a_common_learning_rate() -> None:
    """A distance of 28 tokens initially has little weight; 150 steps move the span close to it."""
    span = AdaptiveSpan(heads=2, longest=128, first=1, ramp=32)
    optimizer = torch.optim.Adam(span.parameters(), lr=1.5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        (-span(torch.tensor([[29]])).sum()).backward()
        optimizer.step()
        span.clamp()
    assert span.z.min() > 25


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.97])
def test_dropout_masks_have_the_right_rate(rate: float) -> None:
    torch.manual_seed(0)
    mask = dropout_mask(rate, (1000, 333), torch.device("cpu"))
    assert mask.float().mean().item() == pytest.approx(1 - rate, abs=0.004)
    # Neighbors, four of which come from one random number, are independent.
    for gap in (1, 2, 3):
        both = (mask[:, gap:] & mask[:, :-gap]).float().mean().item()
        assert both == pytest.approx((1 - rate) ** 2, abs=0.006)


def test_dropout_applies_in_training_only() -> None:
    config = FeedbackConfig(**SMALL, memory=3, attention_dropout=0.5, relu_dropout=0.5, layer_drop=0.3)
    model = model_of(config, inputs=11, embedding_dropout=0.2, output_dropout=0.2)
    tokens, _ = stream(11)
    torch.manual_seed(0)
    first, _ = model(tokens, model.init_state(2))
    torch.manual_seed(0)
    same, _ = model(tokens, model.init_state(2))
    other, _ = model(tokens, model.init_state(2))
    assert torch.equal(first, same)  # a seed fixes the masks
    assert not torch.equal(first, other)
    model.eval()
    assert torch.equal(model(tokens, model.init_state(2))[0], model(tokens, model.init_state(2))[0])


@pytest.mark.parametrize(
    "config",
    [
        FeedbackConfig(width=4, heads=2, layers=1, memory=3, attention_dropout=0.3),
        TransformerXLConfig(width=4, heads=2, layers=1, memory=3, attention_dropout=0.3),
        StaircaseConfig(width=4, heads=2, layers=1, passes=1, chunk=4, attention_dropout=0.3),
    ],
)
def test_dropout_keeps_the_mean(config: Any) -> None:
    """One layer without feed-forward is linear in its attention weights, so the mean over masks equals no dropout."""
    torch.manual_seed(0)
    core: Any = build(config).double()
    for parameter in core.layers[0].feed_forward.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(1, 2, 4, dtype=torch.float64)
    samples = 4000
    with torch.no_grad():
        noisy, _ = core(x.expand(samples, -1, -1), core.init_state(samples))
        plain, _ = core.eval()(x, core.init_state(1))
    assert noisy.std(0).max() > 0.05
    torch.testing.assert_close(noisy.mean(0, keepdim=True), plain, rtol=0, atol=0.06)


def test_importing_stairwell_does_not_import_optional_packages() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import stairwell; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"matplotlib", "typer", "rich", "tokenizers", "transformers", "tensorboard", "gymnasium", "sacrebleu"}
    assert not heavy & set(loaded)


@pytest.mark.parametrize("adaptive", [{}, {"adaptive": (4, 9)}], ids=str)
def test_tied_vectors_are_saved_once(adaptive: dict[str, Any], tmp_path: Path) -> None:
    """Embedding and head share one tensor, also after loading, a copy or a change of dtype."""
    model = model_of(FeedbackConfig(**SMALL, memory=3), inputs=17, tied=True, **adaptive)
    run = Run(tmp_path)
    run.save_model(dict(model.state_dict()), {"step": 1, "valid": {}})
    other = model_of(FeedbackConfig(**SMALL, memory=3), inputs=17, tied=True, **adaptive)
    other.load_state_dict({name: tensor.double() for name, tensor in run.load_model()[0].items()})
    tokens, _ = stream(17)
    for same in (other, copy.deepcopy(model), model.float().double()):
        torch.testing.assert_close(same(tokens, same.init_state(2))[0], model(tokens, model.init_state(2))[0])
    assert not any(name.startswith("head.vectors") for name in model.state_dict())
