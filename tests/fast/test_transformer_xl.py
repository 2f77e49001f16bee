"""The fast Transformer-XL engine has the reference's invariants, values and gradients for every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stairwell import fast
from stairwell.cores import build
from stairwell.cores.sliding_window import Window
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.fast import banded
from stairwell.fast.banded import Band, BandedAttention
from stairwell.fast.transformer_xl import TransformerXLEngine
from tests import invariants
from tests.cores.test_invariants import cases
from tests.fast import engine_invariants

pytestmark = pytest.mark.quick

EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)
FEW = settings(max_examples=6, deadline=None, derandomize=True)
NAMES = ["transformer-xl", "universal"]
ENGINE = TransformerXLEngine()
BLOCKS = st.sampled_from([1, 3, 32])  # shorter and longer than a call, and not dividing it
INVARIANTS = (invariants.start, invariants.pure, invariants.detach, invariants.decode)


@pytest.fixture(autouse=True)
def nan_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialized buffers with NaN."""
    monkeypatch.setattr(banded, "empty", lambda like, *shape: like.new_full(shape, torch.nan))


@pytest.mark.parametrize("name", NAMES)
def test_every_option_gives_the_reference_values_and_gradients(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name, max_crop=1), block=BLOCKS)
    def invariant(case: invariants.Case, block: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(banded, "BLOCK_QUERIES", block)
            patch.setattr(banded, "FUSE_MIN_TOKENS", 9)
            invariants.same_as_reference(case, ENGINE)

    invariant()


@pytest.mark.parametrize("name", NAMES)
def test_dropout_and_layer_drop_give_the_reference_values_and_gradients(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), rates=st.tuples(*[st.sampled_from([0.0, 0.3])] * 4), block=BLOCKS)
    def invariant(case: invariants.Case, rates: tuple[float, ...], block: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(banded, "BLOCK_QUERIES", block)
            patch.setattr(banded, "FUSE_MIN_TOKENS", 9)
            invariants.same_as_reference(case, ENGINE, invariants.sample_masks(case, *rates))

    invariant()


@pytest.mark.parametrize("warm", [0, 50])
@pytest.mark.parametrize(("memory", "T"), [(33, 70), (100, 64), (7, 40)])
def test_longer_segments_give_the_reference_values_and_gradients(memory: int, T: int, warm: int) -> None:
    config = TransformerXLConfig(width=8, heads=2, layers=2, memory=memory)
    case = invariants.make_case(config, B=2, T=T, starts=0.0, warm=warm)
    invariants.same_as_reference(case, ENGINE)
    case.start = case.start.clone()
    case.start[0, T // 2] = True
    invariants.same_as_reference(case, ENGINE)


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: invariant.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_the_invariants_hold_with_the_engine(name: str, invariant: Any) -> None:
    @FEW
    @given(case=cases(name))
    def check(case: invariants.Case) -> None:
        case.core.engine = ENGINE
        invariant(case)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_the_invariants_with_arguments_hold_with_the_engine(name: str) -> None:
    @FEW
    @given(case=cases(name, max_crop=3), cuts=st.lists(st.integers(1, 10), max_size=3), position=st.integers(0, 10))
    def check(case: invariants.Case, cuts: list[int], position: int) -> None:
        engine_invariants.check(case, ENGINE, cuts, position)

    check()


@pytest.mark.parametrize("block", [1, 3, 32])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dropout", [False, True])
def test_gradcheck(first: int, dropout: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banded, "BLOCK_QUERIES", block)
    B, T, H, K, S = 2, 5, 2, 3, 4
    torch.manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    distances = S + 1 - first
    mask = torch.rand(B, H, T, distances) < 0.7 if dropout else None
    band = Band(H, Window(first, S), torch.tensor([[0, 1, 2, 3, 4], [2, 3, 0, 1, 2]]), mask)
    ramp = torch.rand(H, distances, dtype=torch.float64).add_(0.1).requires_grad_()
    leaves = (leaf(B, T, 3 * H * K), leaf(distances, K), ramp, leaf(B, 1, 2 * H * K), leaf(B, S - 1, 2 * H * K))
    assert torch.autograd.gradcheck(lambda *tensors: BandedAttention.apply(band, True, *tensors), leaves)


def test_a_dropped_layer_has_no_gradient() -> None:
    """The gradient is None, not zero, so that an optimizer with momentum does not change the layer."""
    from stairwell.layers import Masks

    case = invariants.make_case(UniversalConfig(width=8, heads=2, layers=2, memory=5, passes=2), B=2, T=6)
    core: Any = case.core
    y, _ = ENGINE(core, case.x, case.state, case.start, None, Masks((), (), (), (False, True)))
    y.sum().backward()
    assert all(parameter.grad is None for parameter in core.layers[1].parameters())
    assert core.layers[0].attention.query.weight.grad is not None


def test_float32_is_as_accurate_as_the_reference() -> None:
    case = invariants.make_case(TransformerXLConfig(width=48, heads=3, layers=3, memory=20), B=5, T=40)
    exact, _ = case.core.reference(case.x, case.state, case.start, None, None)
    core: Any = case.core.float()
    state = case.state.to(dtype=torch.float32)
    ours, _ = ENGINE(core, case.x.float(), state, case.start)
    theirs, _ = core.reference(case.x.float(), state, case.start, None, None)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6


def test_backward_twice_gives_the_same_gradients() -> None:
    case = invariants.make_case(TransformerXLConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    core: Any = case.core
    x = case.x.requires_grad_()
    y, _ = ENGINE(core, x, case.state, case.start)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(y.sum(), x)[0])


def test_inference_gives_the_same_values_without_a_graph() -> None:
    case = invariants.make_case(TransformerXLConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    core: Any = case.core
    with torch.no_grad():
        y, after = ENGINE(core, case.x, case.state, case.start)
    theirs, state = core.reference(case.x, case.state, case.start, None, None)
    assert not y.requires_grad
    torch.testing.assert_close(y, theirs, **invariants.CLOSE)
    invariants.assert_same_state(after, state)


@pytest.mark.parametrize("config", [TransformerXLConfig(width=4, heads=1), UniversalConfig(width=4, heads=1)])
def test_the_engine_name_shows_the_backend(config: Any) -> None:
    core = build(config)
    assert core.engine_name == "reference"
    fast.choose_engine(core, "auto")
    assert isinstance(core.engine, TransformerXLEngine) and core.engine_name == "fast (PyTorch)"
