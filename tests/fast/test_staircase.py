"""The wavefront gives the reference's values and gradients for every Staircase, whatever the options and the phase."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell.cores import build
from stairwell.cores.core import tell_once
from stairwell.cores.staircase import (
    CachedStaircaseConfig,
    GlobalCachedStaircaseConfig,
    Staircase,
    StaircaseConfig,
)
from stairwell.fast import banded, choose_engine, native, staircase, staircase_segment
from stairwell.fast import trace as traces
from stairwell.fast.staircase import StaircaseEngine, Wavefront
from tests import invariants
from tests.cores.test_invariants import cases as any_cases
from tests.cores.test_invariants import configs

EXAMPLES = settings(max_examples=12, deadline=None, derandomize=True)
FEW = settings(max_examples=4, deadline=None, derandomize=True)
NAMES = ["staircase", "cached-staircase", "global-cached-staircase", "multi-vector-rnn", "memory-network"]
ENGINE = StaircaseEngine()
BLOCKS = st.sampled_from([1, 3, 32])  # shorter and longer than a diagonal, and such that do not divide it


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN in every test here: whoever reads what nobody wrote is found out."""
    for module in (banded, traces, staircase_segment):
        monkeypatch.setattr(module, "fresh", lambda like, *shape: like.new_full(shape, torch.nan))
    monkeypatch.setattr(native, "POISON", True)


@pytest.fixture(params=["short", "long"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to walk: native loops for short diagonals, PyTorch's operations for long ones."""
    if request.param == "short" and native.MISSING:
        pytest.skip(native.MISSING)
    monkeypatch.setattr(staircase, "SMALL", 1000 if request.param == "short" else 0)


@pytest.fixture
def never_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        raise AssertionError("the rows climb together here, so the wavefront must run")

    monkeypatch.setattr(staircase, "tell_once", refuse)


@st.composite
def cases(draw: Any, name: str, max_crop: int = 0) -> invariants.Case:
    """All rows at the same place of their chunks, the first one perhaps some chunks ahead; all may start at once."""
    B, T = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 8, 11]))
    config = draw(configs(name))
    case = invariants.make_case(config, B, T, seed=draw(st.integers(0, 2**20)), starts=0.0, warm=0, max_crop=max_crop)
    for place in draw(st.lists(st.integers(0, 10), max_size=1)):
        case.start[:, place % T] = True
    with torch.no_grad():
        for tokens in (draw(st.integers(0, 2)) * config.chunk, draw(st.sampled_from([0, 1, 4, 9]))):
            case.state = case.state.reset(range(1, B))
            if tokens:
                case.state = case.run(torch.randn(B, tokens, config.width, dtype=torch.float64), case.state, None)[1]
    return case


@pytest.mark.usefixtures("never_the_reference", "path")
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


@pytest.mark.usefixtures("never_the_reference", "path")
@pytest.mark.parametrize("name", NAMES)
def test_dropout_and_layer_drop_with_the_same_masks_give_the_same(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), rates=st.tuples(*[st.sampled_from([0.0, 0.3])] * 4))
    def law(case: invariants.Case, rates: tuple[float, ...]) -> None:
        invariants.same_as_reference(case, ENGINE, invariants.draw_masks(case, *rates))

    law()


@pytest.mark.usefixtures("never_the_reference", "path")
@pytest.mark.parametrize("before", [0, 5, 8])
@pytest.mark.parametrize(("passes", "compute"), [(1, 0), (3, 0), (3, 1), (3, 2), (3, 3)])
def test_longer_calls_at_any_phase_give_the_reference_values_and_gradients(
    passes: int, compute: int, before: int
) -> None:
    config = CachedStaircaseConfig(width=4, heads=2, layers=2, inner=5, chunk=4, passes=passes, compute=compute)
    case = invariants.make_case(config, B=2, T=18, starts=0.0, warm=0)
    if before:
        case.state = case.run(torch.randn(2, before, 4, dtype=torch.float64), case.state, None)[1].detach()
    invariants.same_as_reference(case, ENGINE)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold_with_the_engine(name: str) -> None:
    """Starts here and there too: where they set rows apart, the engine hands over to the reference."""

    @FEW
    @given(case=any_cases(name, max_crop=3), cuts=st.lists(st.integers(1, 10), max_size=3), place=st.integers(0, 10))
    def check(case: invariants.Case, cuts: list[int], place: int) -> None:
        case.core.engine = ENGINE
        B, T, _ = case.x.shape
        invariants.split(case, [cut for cut in cuts if cut < T])
        invariants.causal(case, place % T)
        invariants.rows(case, list(range(B))[::-1])
        invariants.start(case)
        invariants.pure(case)
        invariants.detach(case)
        invariants.decode(case)
        invariants.window(case)
        invariants.crop(case, [place % 4] * B)

    check()


def small(chunk: int, passes: int | None, compute: int, **options: Any) -> Any:
    """No passes: all earlier chunks stay in sight."""
    sizes: dict[str, Any] = {"width": 6, "heads": 2, "layers": 2, "inner": 5, "chunk": chunk, "compute": compute}
    if passes is None:
        return GlobalCachedStaircaseConfig(distances=5, **sizes, **options)
    return CachedStaircaseConfig(passes=passes, **sizes, **options)


@pytest.fixture
def only_native(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.MISSING:
        pytest.skip(native.MISSING)

    def refuse(*_: Any) -> None:
        raise AssertionError("diagonals are short here, so the native loops must run")

    monkeypatch.setattr(Wavefront, "climb", refuse)


SMALL_CHUNKS = [(C, N, M) for C in (1, 2, 3) for N in (1, 2, 3, 4) for M in range(N + 1)]
GLOBAL_CHUNKS = [(C, None, M) for C in (1, 2, 3) for M in (0, 1, 2)]


@pytest.mark.usefixtures("only_native", "never_the_reference")
@pytest.mark.parametrize(("chunk", "passes", "compute"), [*SMALL_CHUNKS, *GLOBAL_CHUNKS])
def test_small_chunks_give_the_reference_values_and_gradients(chunk: int, passes: int | None, compute: int) -> None:
    """Calls that begin and end anywhere in a chunk, of rows that are some chunks apart, also with a start for all."""
    for before, T, place in ((0, 7, None), (4, 1, None), (5, 8, None), (1, 6, 4)):
        case = invariants.make_case(small(chunk, passes, compute), B=3, T=T, starts=0.0, warm=0, max_crop=before % 3)
        for tokens in (2 * chunk, before):
            case.state = case.state.reset([1, 2])
            if tokens:
                case.state = case.run(torch.randn(3, tokens, 6, dtype=torch.float64), case.state, None)[1].detach()
        if place is not None:
            case.start[:, place] = True
        invariants.same_as_reference(case, ENGINE)


@pytest.mark.usefixtures("only_native", "never_the_reference")
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("chunk", "passes", "compute"), [(1, 5, 1), (2, 3, 3), (2, 4, 2), (3, 3, 0), (2, None, 1)])
def test_small_chunks_with_every_option_give_the_reference_values_and_gradients(
    chunk: int, passes: int | None, compute: int, norm: str
) -> None:
    config = small(chunk, passes, compute, norm=norm, adaptive_span=True, span_ramp=2, attention_dropout=0.1)
    case = invariants.make_case(config, B=2, T=9, starts=0.0, warm=0)
    case.state = case.run(torch.randn(2, 7, 6, dtype=torch.float64), case.state, None)[1].detach()
    for seed in range(3):
        torch.manual_seed(seed)
        masks = invariants.draw_masks(case, 0.3, 0.3, 0.4)
        if not all(masks.dropped):
            invariants.same_as_reference(case, ENGINE, masks)


@pytest.mark.usefixtures("only_native")
def test_blocks_of_diagonals_and_repeated_backwards_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight gradients after each diagonal or after all of them; asked for twice."""
    case = invariants.make_case(small(2, 4, 2), B=2, T=9, starts=0.0, warm=0)
    found = []
    for rows in (1, 5, 1 << 20):
        monkeypatch.setattr(staircase_segment, "ROWS", rows)
        y, after = ENGINE(case.core, case.x, case.state)
        total = invariants.weighed(y, after)
        for again in (True, False):
            found.append(torch.autograd.grad(total, list(case.core.parameters()), retain_graph=again))
    for other in found[1:]:
        invariants.assert_close(other, found[0], "gradient")


@pytest.mark.usefixtures("only_native")
@pytest.mark.parametrize("instruction_set", range(native.BEST + 1))
def test_every_instruction_set_and_any_number_of_rows_give_the_reference_values(
    instruction_set: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "BEST", instruction_set)
    for B in (1, 5, 70):
        case = invariants.make_case(small(2, 3, 2), B=B, T=5, starts=0.0, warm=0)
        invariants.same_as_reference(case, ENGINE)


@pytest.mark.usefixtures("only_native")
def test_the_same_call_gives_the_same_bits() -> None:
    core = build(small(2, 4, 4))
    x, state = torch.randn(70, 9, 6), core.init_state(70)
    results = []
    for _ in range(2):
        y, after = ENGINE(core, x, state)  # type: ignore[arg-type]
        results.append([y, *torch.autograd.grad(invariants.weighed(y, after), list(core.parameters()))])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_rows_out_of_step_are_left_to_the_reference_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    case = invariants.make_case(
        StaircaseConfig(width=4, heads=2, layers=2, chunk=3, passes=2), B=2, T=7, starts=0.0, warm=0
    )
    case.start[0, 2] = True
    tell_once.cache_clear()
    for _ in range(2):
        invariants.same_as_reference(case, ENGINE)
    assert ["different places" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(("passes", "chunk", "T"), [(4, 4, 16), (2, 3, 11), (1, 4, 9)])
def test_a_call_takes_a_step_for_each_chunk_and_for_each_pass_but_one(
    passes: int, chunk: int, T: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    one = Wavefront.diagonal

    def counted(self: Wavefront, s: int, h: torch.Tensor) -> torch.Tensor:
        steps.append(h.shape[1])
        return one(self, s, h)

    monkeypatch.setattr(Wavefront, "diagonal", counted)
    monkeypatch.setattr(staircase, "SMALL", 0)
    core: Any = build(StaircaseConfig(width=4, heads=1, layers=1, chunk=chunk, passes=passes))
    ENGINE(core, torch.randn(1, T, 4), core.init_state(1))
    assert len(steps) == -(-T // chunk) + passes - 1
    assert sum(steps) == T * passes


def test_a_global_cache_that_is_full_says_so() -> None:
    core: Any = build(GlobalCachedStaircaseConfig(width=4, heads=1, layers=1, chunk=2, max_tokens=5))
    assert isinstance(core, Staircase)
    with pytest.raises(ValueError, match="max_tokens=5"):
        ENGINE(core, torch.randn(1, 6, 4), core.init_state(1))


@pytest.mark.parametrize("kind", [StaircaseConfig, CachedStaircaseConfig, GlobalCachedStaircaseConfig])
def test_a_core_says_what_runs(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = build(kind(width=4, heads=1, chunk=64)), build(kind(width=4, heads=1, chunk=1))
    for core in (long, short):
        choose_engine(core, "fast")
    assert long.engine_name == "fast (PyTorch)"
    assert native.MISSING or short.engine_name == f"fast (C++, {native.INSTRUCTION_SETS[native.BEST]})"
    dropping = build(kind(width=4, heads=1, chunk=1, residual_dropout=0.1))
    choose_engine(dropping, "fast")
    assert dropping.engine_name == "fast (PyTorch)"
    monkeypatch.setattr(native, "MISSING", "the native extension was not built")
    assert short.engine_name == "fast (PyTorch)"
