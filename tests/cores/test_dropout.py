"""Dropout and LayerDrop: every rate is drawn, as often as it says, for every layer apart, and keeps the mean.

Shares are compared within four standard deviations of what fair coins give; seeds are fixed, so nothing here is luck.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stairwell.cores import CORES, Core, build
from stairwell.cores.core import Source, TransformerCore
from stairwell.fast import choose_engine
from stairwell.layers import Masks
from stairwell.models import LanguageModel, LanguageModelConfig

RATE = 0.3
TRANSFORMERS = [name for name in sorted(CORES) if issubclass(CORES[name].core, TransformerCore)]
SHAPE: dict[str, Any] = {"width": 8, "heads": 2, "layers": 3, "inner": 16}
KINDS = ("attention", "relu", "cross", "residual")
RATES = {"attention_dropout": RATE, "relu_dropout": RATE, "residual_dropout": RATE}


def config_of(name: str, **options: Any) -> Any:
    """A small config of a core, with two passes where a core has passes."""
    kind = CORES[name].config
    small = {"memory": 5, "chunk": 3, "passes": 2, "compute": 2, "distances": 9}
    fixed = {"multi-vector-rnn": {}, "memory-network": {"passes": 4}}.get(name)
    sizes = small if fixed is None else fixed
    return kind(**SHAPE, **{key: value for key, value in sizes.items() if key in kind.__dataclass_fields__}, **options)


def assert_share(found: Tensor, share: float) -> None:
    """As many are true as coins of that probability give, within four standard deviations."""
    n = found.numel()
    assert n > 0
    assert abs(found.double().mean().item() - share) < 4 * math.sqrt(share * (1 - share) / n)


def assert_dropped(before: Tensor, after: Tensor, rate: float) -> None:
    """Each number is either gone or divided by 1 - rate, as often as the rate says: then the mean is what it was."""
    there = before != 0
    gone = after == 0
    assert_share(gone[there], rate)
    torch.testing.assert_close(after[~gone], before[~gone] / (1 - rate))
    assert not after[~there].any()


class Tap:
    """What goes into a module and comes out of it, call by call."""

    def __init__(self, module: nn.Module) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        module.register_forward_hook(self.keep)

    def keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.inputs.append(inputs[0].detach())
        self.outputs.append(output.detach() if isinstance(output, Tensor) else output[0].detach())


def language_model(**rates: float) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=config_of("feedback"), inputs=11, **rates)).train()


def test_embedding_dropout_acts_on_what_the_core_reads() -> None:
    model = language_model(embedding_dropout=RATE)
    embedded, read = Tap(model.embedding), Tap(model.core)
    model(torch.randint(11, (30, 40)), model.init_state(30))
    assert_dropped(embedded.outputs[0], read.inputs[0], RATE)


def test_output_dropout_acts_on_what_the_head_reads() -> None:
    model = language_model(output_dropout=RATE)
    normed, read = Tap(model.norm), Tap(model.head)
    model(torch.randint(11, (30, 40)), model.init_state(30))
    assert_dropped(normed.outputs[0], read.inputs[0], RATE)


def test_losses_see_the_same_dropout_as_logits() -> None:
    """`nll` is what trains: it must not take a way around."""
    model = language_model(embedding_dropout=RATE, output_dropout=RATE)
    tokens = torch.randint(11, (5, 7))
    torch.manual_seed(1)
    logits, _ = model(tokens, model.init_state(5))
    torch.manual_seed(1)
    losses, _ = model.nll(tokens, tokens, model.init_state(5))
    torch.testing.assert_close(losses, -logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0])


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_relu_dropout_acts_on_every_layers_relu(name: str) -> None:
    torch.manual_seed(0)
    core: Any = build(config_of(name, relu_dropout=RATE)).train()
    taps = [(Tap(layer.feed_forward.inner), Tap(layer.feed_forward.out)) for layer in core.layers]
    core(torch.randn(20, 12, 8), core.init_state(20))
    for inner, out in taps:
        before = torch.cat([x.flatten() for x in inner.outputs]).relu()
        after = torch.cat([x.flatten() for x in out.inputs])
        assert_dropped(before, after, RATE)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_attention_dropout_acts_on_every_layers_weights(name: str) -> None:
    """With all values one, what a head reads is the sum of the weights that were kept."""
    torch.manual_seed(0)
    core: Any = build(config_of(name, attention_dropout=RATE)).double().train()
    taps = []
    for layer in core.layers:
        nn.init.zeros_(layer.attention.query.weight)  # all visible slots weigh the same
        taps.append(Tap(layer.attention.out))
        if hasattr(layer.attention, "value"):
            layer.attention_norm.weight.data.zero_()
            layer.attention_norm.bias.data.fill_(1 / 8)
            layer.attention.value.weight.data.fill_(1)  # eight times an eighth
    # One slot in sight, the token itself or else the one before: kept whole, or dropped.
    tokens = 1 if core.config.first == 0 else 2
    core(torch.randn(60, tokens, 8, dtype=torch.float64), core.init_state(60))
    for tap in taps:
        read = torch.cat(tap.inputs, 1)[:, tokens - 1 :, :: core.config.K]
        assert_dropped(torch.ones_like(read), read, RATE)


def draw(core: Core, B: int = 9, T: int = 11) -> Any:
    source = Source(torch.randn(B, 6, 8)) if core.config.cross else None  # type: ignore[union-attr]
    return core.draw(torch.randn(B, T, 8), core.init_state(B), source)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_masks_keep_their_share_and_know_nothing_of_each_other(name: str) -> None:
    """Of two layers (or passes, rows, heads, tokens) that draw apart, both keep a place as often as two coins do."""
    torch.manual_seed(0)
    core = build(config_of(name, **RATES, cross=True))
    drawn = draw(core)
    both = (1 - RATE) ** 2 + RATE**2  # two coins fall alike
    for kind in KINDS:
        masks = getattr(drawn, kind)
        assert len(masks) == core.depth()  # type: ignore[operator]
        for mask in masks:
            assert_share(mask, 1 - RATE)
            for axis in range(mask.dim()):
                one, other = mask.narrow(axis, 0, 1), mask.narrow(axis, mask.shape[axis] - 1, 1)
                if mask.shape[axis] > 1 and one.numel() >= 50:
                    assert_share(one == other, both)
        for one, other in combinations(masks, 2):
            assert_share(one == other, both)


@pytest.mark.parametrize("kind", KINDS)
def test_two_calls_draw_anew(kind: str) -> None:
    torch.manual_seed(0)
    core = build(config_of("feedback", **RATES, cross=True))
    first, second = getattr(draw(core), kind)[0], getattr(draw(core), kind)[0]
    assert_share(first == second, (1 - RATE) ** 2 + RATE**2)


def test_only_rates_that_are_set_are_drawn() -> None:
    assert draw(build(config_of("feedback"))) is None
    drawn = draw(build(config_of("feedback", relu_dropout=RATE)))
    assert drawn.attention == () and drawn.cross == () and not any(drawn.dropped) and len(drawn.relu) == 3
    assert drawn.residual == ()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_rate_that_is_not_set_leaves_every_other_number_as_it_was(name: str) -> None:
    """Residual masks are drawn last, so that runs without them are what they were."""
    drawn = []
    for residual in (0.0, RATE):
        torch.manual_seed(0)
        drawn.append(
            draw(build(config_of(name, **{**RATES, "residual_dropout": residual}, cross=True, layer_drop=0.1)))
        )
    for kind in ("attention", "relu", "cross"):
        pairs = zip(getattr(drawn[0], kind), getattr(drawn[1], kind), strict=True)
        assert all(torch.equal(without, with_residual) for without, with_residual in pairs)
    assert drawn[0].dropped == drawn[1].dropped


@pytest.mark.parametrize("sublayer", ["attention", "cross", "feed_forward"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_residual_dropout_acts_on_what_every_sublayer_adds(name: str, sublayer: str) -> None:
    """Where the other sublayers give nothing, a layer adds to its input what this one gives, after dropout."""
    torch.manual_seed(0)
    core: Any = build(config_of(name, residual_dropout=RATE, cross=True)).double().train()
    taps = []
    for layer in core.layers:
        for other in {"attention", "cross", "feed_forward"} - {sublayer}:
            for parameter in getattr(layer, other).out.parameters():
                nn.init.zeros_(parameter)
        taps.append((Tap(layer), Tap(getattr(layer, sublayer).out)))
    x, source = torch.randn(2, 20, 12, 8, dtype=torch.float64)
    core(x, core.init_state(20), source=source)
    for whole, part in taps:
        added = torch.cat([(y - x).flatten() for x, y in zip(whole.inputs, whole.outputs, strict=True)])
        given = torch.cat([z.flatten() for z in part.outputs])
        assert_dropped(given, added.masked_fill(added.abs() < 1e-14, 0), RATE)


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_layer_drop_skips_whole_layers_as_often_as_its_rate_says(name: str, engine: str) -> None:
    """One layer: where it is skipped, all rows come out as they went in."""
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
    assert_share(torch.tensor(skipped), rate)


def test_layer_drop_tosses_a_coin_for_each_layer() -> None:
    torch.manual_seed(0)
    core = build(config_of("feedback", layer_drop=RATE))
    dropped = torch.tensor([draw(core, 1, 1).dropped for _ in range(2000)])  # (calls, L)
    for layer in dropped.T:
        assert_share(layer, RATE)
    for one, other in combinations(dropped.T, 2):
        assert_share(one == other, (1 - RATE) ** 2 + RATE**2)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_seed_gives_the_same_dropout_with_every_engine(name: str) -> None:
    config = config_of(name, **RATES, layer_drop=0.1)
    torch.manual_seed(0)
    core = build(config).double().train()
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    found = {}
    for engine in ("reference", "fast"):
        choose_engine(core, engine)
        torch.manual_seed(5)
        found[engine], _ = core(x, core.init_state(3))
    torch.testing.assert_close(found["fast"], found["reference"])
    core.eval()
    assert not torch.allclose(core(x, core.init_state(3))[0], found["reference"])


def test_dropout_between_the_layers_of_an_lstm_is_drawn_in_training_only() -> None:
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
    masks = Masks.draw(config, torch.zeros(3, 7, 8), depth=3, distances=5, source=None)
    assert len(masks.residual) == 3 and all(mask.shape == (2, 3, 7, 8) for mask in masks.residual)
    same = torch.stack([(mask == mask[:, :, :1]).all() for mask in masks.residual])
    assert same.all() if locked else not same.any()
    assert_share(torch.stack(masks.residual)[:, :, :, 0], 1 - RATE)


def test_locked_dropout_without_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="only read with residual_dropout"):
        config_of("feedback", locked_dropout=True)
