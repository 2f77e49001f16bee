"""The fast DeltaNet engine keeps every law and gives the reference's values and gradients, for every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell import fast
from stairwell.cores import build
from stairwell.cores.delta import DeltaNetConfig
from stairwell.fast import delta
from stairwell.fast.delta import DeltaNetEngine
from tests import laws
from tests.cores.test_laws import cases

EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)
FEW = settings(max_examples=6, deadline=None, derandomize=True)
CHUNKS = st.sampled_from([1, 3, 8, 64])  # shorter and longer than a call, and such that do not divide it
LAWS = (laws.start, laws.pure, laws.detach, laws.decode)


@pytest.fixture(autouse=True)
def no_call_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "SHORTEST", 1)


def test_every_option_gives_the_reference_values_and_gradients() -> None:
    @EXAMPLES
    @given(case=cases("deltanet"), chunk=CHUNKS)
    def law(case: laws.Case, chunk: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delta, "CHUNK", chunk)
            laws.same_as_reference(case, DeltaNetEngine())

    law()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("products", [1, 3])
def test_longer_segments_give_the_reference_values_and_gradients(products: int, gated: bool) -> None:
    config = DeltaNetConfig(width=8, heads=2, products=products, gated=gated)
    laws.same_as_reference(laws.make_case(config, B=2, T=70, starts=0.0, warm=50), DeltaNetEngine())
    laws.same_as_reference(laws.make_case(config, B=3, T=70, starts=0.1), DeltaNetEngine())


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_laws_hold_with_the_engine(law: Any) -> None:
    @FEW
    @given(case=cases("deltanet"), chunk=CHUNKS)
    def check(case: laws.Case, chunk: int) -> None:
        case.core.engine = DeltaNetEngine()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delta, "CHUNK", chunk)
            law(case)

    check()


def test_the_laws_with_choices_hold_with_the_engine() -> None:
    @FEW
    @given(case=cases("deltanet"), cuts=st.lists(st.integers(1, 10), max_size=3), place=st.integers(0, 10))
    def check(case: laws.Case, cuts: list[int], place: int) -> None:
        case.core.engine = DeltaNetEngine()
        B, T, _ = case.x.shape
        laws.split(case, [cut for cut in cuts if cut < T])
        laws.causal(case, place % T)
        laws.rows(case, list(range(B))[::-1])

    check()


def test_what_was_forgotten_long_ago_does_not_overflow() -> None:
    """A gate that closes at once leaves e^-100 of a token at the next: its inverse over a chunk is beyond float64."""
    case = laws.make_case(DeltaNetConfig(width=4, heads=2, gated=True), B=1, T=20, starts=0.0)
    core: Any = case.core
    for layer in core.layers:
        torch.nn.init.constant_(layer.keep.bias, -100.0)
    laws.same_as_reference(case, DeltaNetEngine())


def test_float32_is_as_near_to_the_truth_as_the_reference() -> None:
    case = laws.make_case(DeltaNetConfig(width=48, heads=3, products=2), B=5, T=60)
    exact, _ = case.core.walk(case.x, case.state, case.start, None, None)
    core: Any = case.core.float()
    state = case.state.to(dtype=torch.float32)
    ours, _ = DeltaNetEngine()(core, case.x.float(), state, case.start)  # type: ignore[arg-type]
    theirs, _ = core.walk(case.x.float(), state, case.start, None, None)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6


def test_short_calls_and_autocast_go_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = build(DeltaNetConfig(width=4, heads=2))
    monkeypatch.setattr(delta, "correct_chunk", None)  # whoever makes a chunk here fails
    monkeypatch.setattr(delta, "SHORTEST", 3)
    fast.choose_engine(core, "fast")
    core(torch.randn(1, 2, 4), core.init_state(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = core(torch.randn(1, 9, 4), core.init_state(1))
    core(torch.randn(1, 2, 4), state)  # what autocast leaves behind is still this model's
    assert core.engine_name == "fast (PyTorch)"
