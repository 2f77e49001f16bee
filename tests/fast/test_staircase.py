"""The fast Staircase engine has the reference's invariants, values and gradients for every option and phase."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell.cores import build
from stairwell.cores.core import warn_once
from stairwell.cores.staircase import (
    CachedStaircaseConfig,
    GlobalCachedStaircaseConfig,
    Staircase,
    StaircaseConfig,
)
from stairwell.fast import banded, choose_engine, native, segment_data, staircase, staircase_plan, staircase_segment
from stairwell.fast.staircase import StaircaseEngine, TorchStaircase
from tests import invariants
from tests.cores.test_invariants import cases as any_cases
from tests.cores.test_invariants import configs
from tests.fast import engine_invariants

EXAMPLES = settings(max_examples=12, deadline=None, derandomize=True)
FEW = settings(max_examples=4, deadline=None, derandomize=True)
NAMES = ["staircase", "cached-staircase", "global-cached-staircase", "multi-vector-rnn", "memory-network"]
ENGINE = StaircaseEngine()
BLOCKS = st.sampled_from([1, 3, 32])  # shorter and longer than a step, and not dividing it


@pytest.fixture(autouse=True)
def nan_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialized buffers with NaN."""
    for module, name in ((banded, "empty"), (segment_data, "pooled_empty"), (staircase_segment, "pooled_empty")):
        monkeypatch.setattr(module, name, lambda like, *shape: like.new_full(shape, torch.nan))
    monkeypatch.setattr(native, "FILL_SCRATCH_WITH_NAN", True)


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with native code, which is meant for short steps, and with PyTorch."""
    if request.param == "native" and native.UNAVAILABLE_REASON:
        pytest.skip(native.UNAVAILABLE_REASON)
    monkeypatch.setattr(staircase, "MAX_NATIVE_TOKENS", 1000 if request.param == "native" else 0)


@pytest.fixture
def never_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(text: str) -> None:
        raise AssertionError("the streams have the same phase here, so the fast engine must run")

    monkeypatch.setattr(staircase, "warn_once", reject)


@st.composite
def cases(draw: Any, name: str, max_crop: int = 0) -> invariants.Case:
    """All streams have the same phase. The first may be some chunks ahead, and all may start at the same token."""
    B, T = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 8, 11]))
    config = draw(configs(name))
    case = invariants.make_case(config, B, T, seed=draw(st.integers(0, 2**20)), starts=0.0, warm=0, max_crop=max_crop)
    for position in draw(st.lists(st.integers(0, 10), max_size=1)):
        case.start[:, position % T] = True
    with torch.no_grad():
        for tokens in (draw(st.integers(0, 2)) * config.chunk, draw(st.sampled_from([0, 1, 4, 9]))):
            case.state = case.state.reset(range(1, B))
            if tokens:
                case.state = case.run(torch.randn(B, tokens, config.width, dtype=torch.float64), case.state, None)[1]
    return case


@pytest.mark.usefixtures("never_the_reference", "backend")
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


@pytest.mark.usefixtures("never_the_reference", "backend")
@pytest.mark.parametrize("name", NAMES)
def test_dropout_and_layer_drop_give_the_reference_values_and_gradients(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), rates=st.tuples(*[st.sampled_from([0.0, 0.3])] * 4))
    def invariant(case: invariants.Case, rates: tuple[float, ...]) -> None:
        invariants.same_as_reference(case, ENGINE, invariants.sample_masks(case, *rates))

    invariant()


@pytest.mark.usefixtures("never_the_reference", "backend")
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


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", NAMES)
def test_the_invariants_hold_with_the_engine(name: str) -> None:
    """Starts may give streams different phases; the engine then uses the reference."""

    @FEW
    @given(case=any_cases(name, max_crop=3), cuts=st.lists(st.integers(1, 10), max_size=3), position=st.integers(0, 10))
    def check(case: invariants.Case, cuts: list[int], position: int) -> None:
        engine_invariants.check(case, ENGINE, cuts, position)
        invariants.start(case)
        invariants.pure(case)
        invariants.detach(case)
        invariants.decode(case)

    check()


def small(chunk: int, passes: int | None, compute: int, **options: Any) -> Any:
    """Return a config; without passes, all earlier chunks stay visible."""
    sizes: dict[str, Any] = {"width": 6, "heads": 2, "layers": 2, "inner": 5, "chunk": chunk, "compute": compute}
    if passes is None:
        return GlobalCachedStaircaseConfig(distances=5, **sizes, **options)
    return CachedStaircaseConfig(passes=passes, **sizes, **options)


@pytest.fixture
def only_native(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.UNAVAILABLE_REASON:
        pytest.skip(native.UNAVAILABLE_REASON)

    def reject(*_: Any) -> None:
        raise AssertionError("steps are short here, so native code must run")

    monkeypatch.setattr(TorchStaircase, "run", reject)


SMALL_CHUNKS = [(C, N, M) for C in (1, 2, 3) for N in (1, 2, 3, 4) for M in range(N + 1)]
GLOBAL_CHUNKS = [(C, None, M) for C in (1, 2, 3) for M in (0, 1, 2)]


@pytest.mark.usefixtures("only_native", "never_the_reference")
@pytest.mark.parametrize(("chunk", "passes", "compute"), [*SMALL_CHUNKS, *GLOBAL_CHUNKS])
def test_small_chunks_give_the_reference_values_and_gradients(chunk: int, passes: int | None, compute: int) -> None:
    """Calls start and end anywhere in a chunk, with streams that are some chunks apart, also with a common start."""
    for before, T, position in ((0, 7, None), (4, 1, None), (5, 8, None), (1, 6, 4)):
        case = invariants.make_case(small(chunk, passes, compute), B=3, T=T, starts=0.0, warm=0, max_crop=before % 3)
        for tokens in (2 * chunk, before):
            case.state = case.state.reset([1, 2])
            if tokens:
                case.state = case.run(torch.randn(3, tokens, 6, dtype=torch.float64), case.state, None)[1].detach()
        if position is not None:
            case.start[:, position] = True
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
        masks = invariants.sample_masks(case, 0.3, 0.3, 0.4)
        if not all(masks.dropped):
            invariants.same_as_reference(case, ENGINE, masks)


@pytest.mark.usefixtures("only_native")
def test_any_block_size_and_repeated_backward_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    case = invariants.make_case(small(2, 4, 2), B=2, T=9, starts=0.0, warm=0)
    gradients = []
    for block_rows in (1, 5, 1 << 20):
        monkeypatch.setattr(staircase_plan, "BLOCK_ROWS", block_rows)
        y, after = ENGINE(case.core, case.x, case.state)
        total = invariants.random_projection(y, after)
        for again in (True, False):
            gradients.append(torch.autograd.grad(total, list(case.core.parameters()), retain_graph=again))
    for other in gradients[1:]:
        invariants.assert_close(other, gradients[0], "gradient")


@pytest.mark.usefixtures("only_native")
@pytest.mark.parametrize("instruction_set", range(native.BEST_INSTRUCTION_SET + 1))
def test_every_instruction_set_and_batch_size_gives_the_reference_values(
    instruction_set: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "BEST_INSTRUCTION_SET", instruction_set)
    for B in (1, 5, 70):
        case = invariants.make_case(small(2, 3, 2), B=B, T=5, starts=0.0, warm=0)
        invariants.same_as_reference(case, ENGINE)


@pytest.mark.usefixtures("only_native")
def test_repeated_calls_are_bit_identical() -> None:
    core = build(small(2, 4, 4))
    x, state = torch.randn(70, 9, 6), core.init_state(70)
    results = []
    for _ in range(2):
        y, after = ENGINE(core, x, state)  # type: ignore[arg-type]
        results.append([y, *torch.autograd.grad(invariants.random_projection(y, after), list(core.parameters()))])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_streams_of_different_phase_use_the_reference_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    case = invariants.make_case(
        StaircaseConfig(width=4, heads=2, layers=2, chunk=3, passes=2), B=2, T=7, starts=0.0, warm=0
    )
    case.start[0, 2] = True
    warn_once.cache_clear()
    for _ in range(2):
        invariants.same_as_reference(case, ENGINE)
    assert ["different positions" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(("passes", "chunk", "T"), [(4, 4, 16), (2, 3, 11), (1, 4, 9)])
def test_a_call_of_n_chunks_takes_n_plus_passes_minus_1_steps(
    passes: int, chunk: int, T: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = TorchStaircase.step

    def counted(self: TorchStaircase, s: int, h: torch.Tensor) -> torch.Tensor:
        steps.append(h.shape[1])
        return step(self, s, h)

    monkeypatch.setattr(TorchStaircase, "step", counted)
    monkeypatch.setattr(staircase, "MAX_NATIVE_TOKENS", 0)
    core: Any = build(StaircaseConfig(width=4, heads=1, layers=1, chunk=chunk, passes=passes))
    ENGINE(core, torch.randn(1, T, 4), core.init_state(1))
    assert len(steps) == -(-T // chunk) + passes - 1
    assert sum(steps) == T * passes


def test_a_full_global_cache_raises() -> None:
    core: Any = build(GlobalCachedStaircaseConfig(width=4, heads=1, layers=1, chunk=2, max_tokens=5))
    assert isinstance(core, Staircase)
    with pytest.raises(ValueError, match="max_tokens=5"):
        ENGINE(core, torch.randn(1, 6, 4), core.init_state(1))


@pytest.mark.parametrize("config_class", [StaircaseConfig, CachedStaircaseConfig, GlobalCachedStaircaseConfig])
def test_the_engine_name_shows_the_backend(config_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = build(config_class(width=4, heads=1, chunk=64)), build(config_class(width=4, heads=1, chunk=1))
    for core in (long, short):
        choose_engine(core, "fast")
    assert long.engine_name == "fast (PyTorch)"
    assert (
        native.UNAVAILABLE_REASON
        or short.engine_name == f"fast (C++, {native.INSTRUCTION_SETS[native.BEST_INSTRUCTION_SET]})"
    )
    residual = build(config_class(width=4, heads=1, chunk=1, residual_dropout=0.1))
    choose_engine(residual, "fast")
    assert residual.engine_name == "fast (PyTorch)"
    monkeypatch.setattr(native, "UNAVAILABLE_REASON", "the native extension was not built")
    assert short.engine_name == "fast (PyTorch)"
