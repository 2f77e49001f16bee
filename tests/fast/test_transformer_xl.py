"""The fast Transformer-XL engine keeps every law and gives the reference's values and gradients, for every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stairwell import fast
from stairwell.cores import build
from stairwell.cores.time import Window
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.fast import banded
from stairwell.fast.banded import Band, BandedAttention
from stairwell.fast.transformer_xl import TransformerXLEngine
from tests import invariants
from tests.cores.test_invariants import cases

EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)
FEW = settings(max_examples=6, deadline=None, derandomize=True)
NAMES = ["transformer-xl", "universal"]
ENGINE = TransformerXLEngine()
BLOCKS = st.sampled_from([1, 3, 32])  # shorter and longer than a call, and such that do not divide it
LAWS = (invariants.start, invariants.pure, invariants.detach, invariants.decode)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN in every test here: whoever reads what nobody wrote is found out."""
    monkeypatch.setattr(banded, "fresh", lambda like, *shape: like.new_full(shape, torch.nan))


@pytest.mark.parametrize("name", NAMES)
def test_every_option_gives_the_reference_values_and_gradients(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name, max_crop=1), block=BLOCKS)
    def law(case: invariants.Case, block: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(banded, "BLOCK", block)
            patch.setattr(banded, "FUSED", 9)
            invariants.same_as_reference(case, ENGINE)

    law()


@pytest.mark.parametrize("name", NAMES)
def test_dropout_and_layer_drop_with_the_same_masks_give_the_same(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), rates=st.tuples(*[st.sampled_from([0.0, 0.3])] * 4), block=BLOCKS)
    def law(case: invariants.Case, rates: tuple[float, ...], block: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(banded, "BLOCK", block)
            patch.setattr(banded, "FUSED", 9)
            invariants.same_as_reference(case, ENGINE, invariants.draw_masks(case, *rates))

    law()


@pytest.mark.parametrize("warm", [0, 50])
@pytest.mark.parametrize(("memory", "T"), [(33, 70), (100, 64), (7, 40)])
def test_longer_segments_give_the_reference_values_and_gradients(memory: int, T: int, warm: int) -> None:
    config = TransformerXLConfig(width=8, heads=2, layers=2, memory=memory)
    case = invariants.make_case(config, B=2, T=T, starts=0.0, warm=warm)
    invariants.same_as_reference(case, ENGINE)
    case.start = case.start.clone()
    case.start[0, T // 2] = True
    invariants.same_as_reference(case, ENGINE)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold_with_the_engine(name: str, law: Any) -> None:
    @FEW
    @given(case=cases(name))
    def check(case: invariants.Case) -> None:
        case.core.engine = ENGINE
        law(case)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_the_laws_with_choices_hold_with_the_engine(name: str) -> None:
    @FEW
    @given(case=cases(name, max_crop=3), cuts=st.lists(st.integers(1, 10), max_size=3), place=st.integers(0, 10))
    def check(case: invariants.Case, cuts: list[int], place: int) -> None:
        case.core.engine = ENGINE
        B, T, _ = case.x.shape
        invariants.split(case, [cut for cut in cuts if cut < T])
        invariants.causal(case, place % T)
        invariants.rows(case, list(range(B))[::-1])
        invariants.window(case)
        invariants.crop(case, [place % 4] * B)

    check()


@pytest.mark.parametrize("block", [1, 3, 32])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dropping", [False, True])
def test_gradcheck(first: int, dropping: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banded, "BLOCK", block)
    B, T, H, K, S = 2, 5, 2, 3, 4
    torch.manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    distances = S + 1 - first
    kept = torch.rand(B, H, T, distances) < 0.7 if dropping else None
    band = Band(H, Window(first, S), torch.tensor([[0, 1, 2, 3, 4], [2, 3, 0, 1, 2]]), kept)
    ramp = torch.rand(H, distances, dtype=torch.float64).add_(0.1).requires_grad_()
    leaves = (leaf(B, T, 3 * H * K), leaf(distances, K), ramp, leaf(B, 1, 2 * H * K), leaf(B, S - 1, 2 * H * K))
    assert torch.autograd.gradcheck(lambda *tensors: BandedAttention.apply(band, True, *tensors), leaves)


def test_a_dropped_layer_has_no_gradient_at_all() -> None:
    """None, not zeros: an optimizer with momentum must leave it alone."""
    from stairwell.layers import Masks

    case = invariants.make_case(UniversalConfig(width=8, heads=2, layers=2, memory=5, passes=2), B=2, T=6)
    core: Any = case.core
    y, _ = ENGINE(core, case.x, case.state, case.start, None, Masks((), (), (), (False, True)))
    y.sum().backward()
    assert all(parameter.grad is None for parameter in core.layers[1].parameters())
    assert core.layers[0].attention.query.weight.grad is not None


def test_float32_is_as_near_to_the_truth_as_the_reference() -> None:
    case = invariants.make_case(TransformerXLConfig(width=48, heads=3, layers=3, memory=20), B=5, T=40)
    exact, _ = case.core.walk(case.x, case.state, case.start, None, None)
    core: Any = case.core.float()
    state = case.state.to(dtype=torch.float32)
    ours, _ = ENGINE(core, case.x.float(), state, case.start)
    theirs, _ = core.walk(case.x.float(), state, case.start, None, None)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6


def test_backward_twice_gives_the_same_gradients() -> None:
    case = invariants.make_case(TransformerXLConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    core: Any = case.core
    x = case.x.requires_grad_()
    y, _ = ENGINE(core, x, case.state, case.start)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(y.sum(), x)[0])


def test_inference_gives_the_same_and_keeps_nothing() -> None:
    case = invariants.make_case(TransformerXLConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    core: Any = case.core
    with torch.no_grad():
        y, after = ENGINE(core, case.x, case.state, case.start)
    theirs, state = core.walk(case.x, case.state, case.start, None, None)
    assert not y.requires_grad
    torch.testing.assert_close(y, theirs, **invariants.CLOSE)
    invariants.assert_same_state(after, state)


@pytest.mark.parametrize("config", [TransformerXLConfig(width=4, heads=1), UniversalConfig(width=4, heads=1)])
def test_a_core_says_what_runs(config: Any) -> None:
    core = build(config)
    assert core.engine_name == "reference"
    fast.choose_engine(core, "auto")
    assert isinstance(core.engine, TransformerXLEngine) and core.engine_name == "fast (PyTorch)"
