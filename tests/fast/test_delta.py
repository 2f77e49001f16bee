"""The fast DeltaNet engine has the reference's invariants, values and gradients for every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell import fast
from stairwell.cores import build
from stairwell.cores.delta import DeltaNetConfig
from stairwell.fast import delta, native
from stairwell.fast.delta import DeltaNetEngine
from tests import invariants
from tests.cores.test_invariants import cases
from tests.fast import engine_invariants

pytestmark = pytest.mark.quick

EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)
FEW = settings(max_examples=6, deadline=None, derandomize=True)
CHUNKS = st.sampled_from([1, 3, 8, 64])  # shorter and longer than a call, and not dividing it
INVARIANTS = (invariants.start, invariants.pure, invariants.detach, invariants.decode)
PYTORCH = DeltaNetEngine(None)
NATIVE = [] if native.UNAVAILABLE_REASON else [DeltaNetEngine(i) for i in range(native.BEST_INSTRUCTION_SET + 1)]
BOTH = pytest.mark.parametrize("engine", [PYTORCH, *NATIVE[-1:]], ids=["PyTorch", "native"][: 1 + bool(NATIVE)])
EACH = pytest.mark.parametrize(
    "engine", [PYTORCH, *NATIVE], ids=["PyTorch", *(native.INSTRUCTION_SETS[i] for i in range(len(NATIVE)))]
)


@pytest.fixture(autouse=True)
def no_minimum_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "MIN_TOKENS", 1)


@EACH
def test_every_option_gives_the_reference_values_and_gradients(engine: DeltaNetEngine) -> None:
    @EXAMPLES
    @given(case=cases("deltanet"), chunk=CHUNKS)
    def invariant(case: invariants.Case, chunk: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delta, "CHUNK_CORRECTIONS", chunk)
            invariants.same_as_reference(case, engine)

    invariant()


@EACH
@pytest.mark.parametrize("head_width", [4, 16, 32, 64])  # those specialized in native code, and one other
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("products", [1, 3])
def test_longer_segments_give_the_reference_values_and_gradients(
    products: int, gated: bool, head_width: int, engine: DeltaNetEngine
) -> None:
    config = DeltaNetConfig(width=8, heads=2, head_width=head_width, layers=1, products=products, gated=gated)
    invariants.same_as_reference(invariants.make_case(config, B=2, T=70, starts=0.0, warm=50), engine)
    invariants.same_as_reference(invariants.make_case(config, B=3, T=70, starts=0.1), engine)


@pytest.mark.parametrize("engine", NATIVE)
def test_scratch_memory_is_written_before_it_is_read(engine: DeltaNetEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FILL_SCRATCH_WITH_NAN", True)
    monkeypatch.setattr(delta, "pooled_empty", lambda like, *shape: like.new_full(shape, torch.nan))
    for gated in (False, True):
        config = DeltaNetConfig(width=8, heads=2, head_width=32, products=2, gated=gated)
        invariants.same_as_reference(invariants.make_case(config, B=2, T=20), engine)


@pytest.mark.parametrize("engine", NATIVE)
def test_gradcheck(engine: DeltaNetEngine) -> None:
    torch.manual_seed(0)
    B, T, n, H, K = 2, 4, 2, 2, 3
    shapes = {"q": (B, T, H, K), "k": (B, T, n, H, K), "v": (B, T, n, H, K), "b": (B, T, n, H), "log_a": (B, T, H)}
    tensors = [torch.randn(shape, dtype=torch.float64) * 0.5 for shape in (*shapes.values(), (B, H, K, K))]
    start = torch.zeros(B, T, dtype=torch.bool)
    start[1, 2] = True
    for tensor in tensors:
        tensor.requires_grad_()

    def segment(*tensors: torch.Tensor) -> Any:
        return delta.DeltaSegment.apply(engine.instruction_set, start, *tensors)

    assert torch.autograd.gradcheck(segment, tensors)


@BOTH
@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: invariant.__name__)
def test_the_invariants_hold_with_the_engine(invariant: Any, engine: DeltaNetEngine) -> None:
    @FEW
    @given(case=cases("deltanet"), chunk=CHUNKS)
    def check(case: invariants.Case, chunk: int) -> None:
        case.core.engine = engine
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delta, "CHUNK_CORRECTIONS", chunk)
            invariant(case)

    check()


@BOTH
def test_the_invariants_with_arguments_hold_with_the_engine(engine: DeltaNetEngine) -> None:
    @FEW
    @given(case=cases("deltanet"), cuts=st.lists(st.integers(1, 10), max_size=3), position=st.integers(0, 10))
    def check(case: invariants.Case, cuts: list[int], position: int) -> None:
        engine_invariants.check(case, engine, cuts, position, windowed=False)

    check()


@BOTH
def test_a_strong_decay_does_not_overflow(engine: DeltaNetEngine) -> None:
    """With a decay of e^-100 per token, the inverse over a chunk exceeds float64."""
    case = invariants.make_case(DeltaNetConfig(width=4, heads=2, gated=True), B=1, T=20, starts=0.0)
    core: Any = case.core
    for layer in core.layers:
        torch.nn.init.constant_(layer.keep.bias, -100.0)
    invariants.same_as_reference(case, engine)


@BOTH
def test_float32_is_as_accurate_as_the_reference(engine: DeltaNetEngine) -> None:
    case = invariants.make_case(DeltaNetConfig(width=48, heads=3, products=2), B=5, T=60)
    exact, _ = case.core.reference(case.x, case.state, case.start)
    core: Any = case.core.float()
    state = case.state.to(dtype=torch.float32)
    ours, _ = engine(core, case.x.float(), state, case.start)  # type: ignore[arg-type]
    theirs, _ = core.reference(case.x.float(), state, case.start)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_are_solved_in_float32(dtype: torch.dtype) -> None:
    case = invariants.make_case(DeltaNetConfig(width=8, heads=2, layers=1, products=2, gated=True), B=2, T=30)
    core, x, state = case.core.to(dtype), case.x.to(dtype), case.state.to(dtype)
    core.engine = None
    expected, _ = core(x, state, case.start)
    core.engine = PYTORCH
    y, after = core(x, state, case.start)
    assert y.dtype == after.matrix.dtype == dtype  # type: ignore[attr-defined]
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in core.parameters())


def test_short_calls_use_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = build(DeltaNetConfig(width=4, heads=2))
    monkeypatch.setattr(delta, "apply_chunk", None)  # any use of the fast engine fails
    monkeypatch.setattr(delta, "MIN_TOKENS", 3)
    fast.choose_engine(core, "fast")
    monkeypatch.setattr(native, "UNAVAILABLE_REASON", "the native extension was not built")
    core(torch.randn(1, 2, 4), core.init_state(1))
    assert core.engine_name == "fast (PyTorch)"
