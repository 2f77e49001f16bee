"""Dropout and LayerDrop: rates, independence between layers, and preservation of the mean.

Frequencies are compared within four standard deviations; seeds are fixed.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stairwell import FeedbackConfig
from stairwell.cores import CORES, Core, build
from stairwell.cores.core import Source, TransformerCore
from stairwell.fast import choose_engine
from stairwell.layers import Masks
from stairwell.models import LanguageModel, LanguageModelConfig

pytestmark = pytest.mark.quick

RATE = 0.3
TRANSFORMERS = [name for name in sorted(CORES) if issubclass(CORES[name].core, TransformerCore)]
SHAPE: dict[str, Any] = {"width": 8, "heads": 2, "layers": 3, "inner": 16}
FIELDS = ("attention", "relu", "cross", "residual")
RATES = {"attention_dropout": RATE, "relu_dropout": RATE, "residual_dropout": RATE}


def config_of(name: str, **options: Any) -> Any:
    """Return a small config of a core, with two passes if the core has passes."""
    config = CORES[name].config
    small = {"memory": 5, "chunk": 3, "passes": 2, "compute": 2, "distances": 9}
    fixed = {"multi-vector-rnn": {}, "memory-network": {"passes": 4}}.get(name)
    sizes = small if fixed is None else fixed
    sizes = {key: value for key, value in sizes.items() if key in config.__dataclass_fields__}
    return config(**SHAPE, **sizes, **options)


def assert_frequency(samples: Tensor, probability: float) -> None:
    """Check the frequency of true, within four standard deviations."""
    n = samples.numel()
    assert n > 0
    deviation = math.sqrt(probability * (1 - probability) / n)
    assert abs(samples.double().mean().item() - probability) < 4 * deviation


def assert_dropped(before: Tensor, after: Tensor, rate: float) -> None:
    """Check that each number is zeroed with probability `rate`, otherwise divided by 1 - rate."""
    nonzero = before != 0
    dropped = after == 0
    assert_frequency(dropped[nonzero], rate)
    torch.testing.assert_close(after[~dropped], before[~dropped] / (1 - rate))
    assert not after[~nonzero].any()


class CallRecorder:
    """Records the inputs and outputs of a module in every call."""

    def __init__(self, module: nn.Module) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        module.register_forward_hook(self.record)

    def record(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.inputs.append(inputs[0].detach())
        self.outputs.append(output.detach() if isinstance(output, Tensor) else output[0].detach())


def language_model(**rates: float) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=config_of("feedback"), inputs=11, **rates)).train()


def test_embedding_dropout_applies_to_the_input_of_the_core() -> None:
    model = language_model(embedding_dropout=RATE)
    embedding, core = CallRecorder(model.embedding), CallRecorder(model.core)
    model(torch.randint(11, (30, 40)), model.init_state(30))
    assert_dropped(embedding.outputs[0], core.inputs[0], RATE)


def test_output_dropout_applies_to_the_input_of_the_head() -> None:
    model = language_model(output_dropout=RATE)
    norm, head = CallRecorder(model.norm), CallRecorder(model.head)
    model(torch.randint(11, (30, 40)), model.init_state(30))
    assert_dropped(norm.outputs[0], head.inputs[0], RATE)


def test_nll_has_the_same_dropout_as_forward() -> None:
    model = language_model(embedding_dropout=RATE, output_dropout=RATE)
    tokens = torch.randint(11, (5, 7))
    torch.manual_seed(1)
    logits, _ = model(tokens, model.init_state(5))
    torch.manual_seed(1)
    losses, _ = model.nll(tokens, tokens, model.init_state(5))
    torch.testing.assert_close(losses, -logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0])


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_relu_dropout_applies_in_every_layer(name: str) -> None:
    torch.manual_seed(0)
    core: Any = build(config_of(name, relu_dropout=RATE)).train()
    recorders = [
        (CallRecorder(layer.feed_forward.inner), CallRecorder(layer.feed_forward.out)) for layer in core.layers
    ]
    core(torch.randn(20, 12, 8), core.init_state(20))
    for inner, out in recorders:
        before = torch.cat([x.flatten() for x in inner.outputs]).relu()
        after = torch.cat([x.flatten() for x in out.inputs])
        assert_dropped(before, after, RATE)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_attention_dropout_applies_in_every_layer(name: str) -> None:
    """With all values equal to one, the output of a head is the sum of the remaining weights."""
    torch.manual_seed(0)
    core: Any = build(config_of(name, attention_dropout=RATE)).double().train()
    recorders = []
    for layer in core.layers:
        nn.init.zeros_(layer.attention.query.weight)  # equal weights of all visible slots
        recorders.append(CallRecorder(layer.attention.out))
        if hasattr(layer.attention, "value"):
            layer.attention_norm.weight.data.zero_()
            layer.attention_norm.bias.data.fill_(1 / 8)
            layer.attention.value.weight.data.fill_(1)  # 8 * 1/8 = 1
    # One visible slot, the current token or else the one before: its weight is 1 or dropped.
    tokens = 1 if core.config.first == 0 else 2
    core(torch.randn(60, tokens, 8, dtype=torch.float64), core.init_state(60))
    for recorder in recorders:
        read = torch.cat(recorder.inputs, 1)[:, tokens - 1 :, :: core.config.K]
        assert_dropped(torch.ones_like(read), read, RATE)


def sample(core: Core, B: int = 9, T: int = 11) -> Any:
    source = Source(torch.randn(B, 6, 8)) if core.config.cross else None  # type: ignore[union-attr]
    return core.sample_masks(torch.randn(B, T, 8), core.init_state(B), source)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_masks_have_the_right_rate_and_are_independent(name: str) -> None:
    """Masks of two layers, passes, batch elements, heads or tokens agree as often as independent samples do."""
    torch.manual_seed(0)
    core = build(config_of(name, **RATES, cross=True))
    sampled = sample(core)
    agreement = (1 - RATE) ** 2 + RATE**2
    for field in FIELDS:
        masks = getattr(sampled, field)
        assert len(masks) == core.depth()  # type: ignore[operator]
        for mask in masks:
            assert_frequency(mask, 1 - RATE)
            for axis in range(mask.dim()):
                one, other = mask.narrow(axis, 0, 1), mask.narrow(axis, mask.shape[axis] - 1, 1)
                if mask.shape[axis] > 1 and one.numel() >= 50:
                    assert_frequency(one == other, agreement)
        for one, other in combinations(masks, 2):
            assert_frequency(one == other, agreement)


@pytest.mark.parametrize("field", FIELDS)
def test_every_call_samples_new_masks(field: str) -> None:
    torch.manual_seed(0)
    core = build(config_of("feedback", **RATES, cross=True))
    first, second = getattr(sample(core), field)[0], getattr(sample(core), field)[0]
    assert_frequency(first == second, (1 - RATE) ** 2 + RATE**2)


def test_rates_of_zero_are_not_sampled() -> None:
    assert sample(build(config_of("feedback"))) is None
    masks = sample(build(config_of("feedback", relu_dropout=RATE)))
    assert masks.attention == () and masks.cross == () and not any(masks.dropped) and len(masks.relu) == 3
    assert masks.residual == ()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_residual_dropout_does_not_change_the_other_masks(name: str) -> None:
    """Residual masks are sampled last."""
    sampled = []
    for residual in (0.0, RATE):
        torch.manual_seed(0)
        sampled.append(
            sample(build(config_of(name, **{**RATES, "residual_dropout": residual}, cross=True, layer_drop=0.1)))
        )
    for field in ("attention", "relu", "cross"):
        pairs = zip(getattr(sampled[0], field), getattr(sampled[1], field), strict=True)
        assert all(torch.equal(without, with_residual) for without, with_residual in pairs)
    assert sampled[0].dropped == sampled[1].dropped


@pytest.mark.parametrize("sublayer", ["attention", "cross", "feed_forward"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_residual_dropout_applies_to_every_sublayer(name: str, sublayer: str) -> None:
    """With the other sublayers zero, a layer adds the output of this one after dropout."""
    torch.manual_seed(0)
    core: Any = build(config_of(name, residual_dropout=RATE, cross=True)).double().train()
    recorders = []
    for layer in core.layers:
        for other in {"attention", "cross", "feed_forward"} - {sublayer}:
            for parameter in getattr(layer, other).out.parameters():
                nn.init.zeros_(parameter)
        recorders.append((CallRecorder(layer), CallRecorder(getattr(layer, sublayer).out)))
    x, source = torch.randn(2, 20, 12, 8, dtype=torch.float64)
    core(x, core.init_state(20), source=source)
    for whole, part in recorders:
        added = torch.cat([(y - x).flatten() for x, y in zip(whole.inputs, whole.outputs, strict=True)])
        output = torch.cat([z.flatten() for z in part.outputs])
        assert_dropped(output, added.masked_fill(added.abs() < 1e-14, 0), RATE)


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_layer_drop_skips_whole_layers_at_its_rate(name: str, engine: str) -> None:
    """If a single layer is skipped, the output of all streams equals the input."""
    torch.manual_seed(0)
    rate, calls = 0.2, 400
    config = config_of(name, layer_drop=rate)
    core = build(type(config)(**{**vars(config), "layers": 1})).train()
    choose_engine(core, engine)
    x, state, skipped = torch.randn(2, 4, 8), core.init_state(2), []
    with torch.no_grad():
        for _ in range(calls):
            same = core(x, state)[0] == x
            assert same.all() or not same.all(-1).any()
            skipped.append(bool(same.all()))
    assert_frequency(torch.tensor(skipped), rate)


def test_layer_drop_samples_each_layer_independently() -> None:
    torch.manual_seed(0)
    core = build(config_of("feedback", layer_drop=RATE))
    dropped = torch.tensor([sample(core, 1, 1).dropped for _ in range(2000)])  # (calls, L)
    for layer in dropped.T:
        assert_frequency(layer, RATE)
    for one, other in combinations(dropped.T, 2):
        assert_frequency(one == other, (1 - RATE) ** 2 + RATE**2)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_seed_gives_the_same_dropout_in_every_engine(name: str) -> None:
    config = config_of(name, **RATES, layer_drop=0.1)
    torch.manual_seed(0)
    core = build(config).double().train()
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    outputs = {}
    for engine in ("reference", "fast"):
        choose_engine(core, engine)
        torch.manual_seed(5)
        outputs[engine], _ = core(x, core.init_state(3))
    torch.testing.assert_close(outputs["fast"], outputs["reference"])
    core.eval()
    assert not torch.allclose(core(x, core.init_state(3))[0], outputs["reference"])


def test_dropout_of_an_lstm_applies_in_training_only() -> None:
    torch.manual_seed(0)
    core = build(CORES["lstm"].config(width=8, layers=2, dropout=RATE)).train()
    x = torch.randn(2, 5, 8)
    assert not torch.equal(core(x, core.init_state(2))[0], core(x, core.init_state(2))[0])
    core.eval()
    assert torch.equal(core(x, core.init_state(2))[0], core(x, core.init_state(2))[0])


@pytest.mark.parametrize("locked", [False, True])
def test_locked_residual_masks_are_the_same_for_every_token(locked: bool) -> None:
    torch.manual_seed(0)
    config = config_of("feedback", residual_dropout=RATE, locked_dropout=locked)
    masks = Masks.sample(config, torch.zeros(3, 7, 8), depth=3, distances=5, source=None)
    assert len(masks.residual) == 3 and all(mask.shape == (2, 3, 7, 8) for mask in masks.residual)
    same = torch.stack([(mask == mask[:, :, :1]).all() for mask in masks.residual])
    assert same.all() if locked else not same.any()
    assert_frequency(torch.stack(masks.residual)[:, :, :, 0], 1 - RATE)


def test_locked_dropout_without_residual_dropout_raises() -> None:
    with pytest.raises(ValueError, match="only read with residual_dropout"):
        config_of("feedback", locked_dropout=True)


def test_every_residual_sum_has_its_own_dropout_mask() -> None:
    core = build(FeedbackConfig(width=64, heads=2, layers=2, memory=3, residual_dropout=0.5)).train()
    masks = core.sample_masks(torch.randn(2, 4, 64), core.init_state(2), None)
    assert isinstance(masks, Masks)
    first = masks.for_layer(0, 0, 4).residual
    assert first is not None and len(first) == 2 and not torch.equal(first[0], first[1])
    layer, layer_masks = core.layers[0], masks.for_layer(0, 0, 4)
    used: list[torch.Tensor] = []
    layer.residual = lambda x, norm, sublayer, mask: used.append(mask) or x  # type: ignore[method-assign, func-returns-value]
    layer(torch.randn(2, 4, 64), torch.zeros_like, None, torch.zeros_like, layer_masks)
    assert [torch.equal(mask, expected) for mask, expected in zip(used, first, strict=True)] == [True, True]
