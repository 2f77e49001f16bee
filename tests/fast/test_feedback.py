"""The fast Feedback engine keeps every law and gives the reference's values and gradients, whatever the options."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stairwell import fast
from stairwell.cores import build
from stairwell.cores.core import Source
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.lstm import LSTMConfig
from stairwell.cores.time import ages
from stairwell.fast import native, segment
from stairwell.fast import trace as traces
from stairwell.fast.feedback import FeedbackEngine, prepare
from stairwell.fast.feedback_torch import TorchBackend
from stairwell.layers import Masks
from tests import invariants
from tests.cores.test_invariants import cases

BACKENDS: dict[str, Any] = {"torch": TorchBackend()}
if not native.MISSING:
    BACKENDS |= {native.INSTRUCTION_SETS[i]: native.NativeBackend(i) for i in range(native.BEST + 1)}
EXAMPLES = settings(max_examples=30, deadline=None, derandomize=True)
FEW = settings(max_examples=6, deadline=None, derandomize=True)
LAWS = (invariants.start, invariants.pure, invariants.detach, invariants.decode)


@pytest.fixture(params=BACKENDS)
def engine(request: pytest.FixtureRequest) -> FeedbackEngine:
    return FeedbackEngine(BACKENDS[request.param], shortest=1)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN in every test here: whoever reads what nobody wrote is found out. And blocks are short, so
    that a segment has several."""

    def poisoned(like: Tensor, *shape: int) -> Tensor:
        return like.new_full(shape, torch.nan)

    monkeypatch.setattr(traces, "fresh", poisoned)
    monkeypatch.setattr(native, "POISON", True)
    monkeypatch.setattr(traces, "ROWS", 4)


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_every_option_gives_the_reference_values_and_gradients(engine: FeedbackEngine) -> None:
    @EXAMPLES
    @given(case=cases("feedback", max_crop=1))
    def law(case: invariants.Case) -> None:
        invariants.same_as_reference(case, engine)

    law()


def test_dropout_and_layer_drop_with_the_same_masks_give_the_same(engine: FeedbackEngine) -> None:
    @EXAMPLES
    @given(case=cases("feedback"), rates=st.tuples(*[st.sampled_from([0.0, 0.3])] * 4))
    def law(case: invariants.Case, rates: tuple[float, ...]) -> None:
        invariants.same_as_reference(case, engine, invariants.draw_masks(case, *rates))

    law()


# Widths around the vectors' and blocks' edges, longer than a chunk of pulled gradients, windows shorter than that.
@pytest.mark.parametrize("memory", [4, 9, 30])
@pytest.mark.parametrize("head_width", [8, 13, 36])
def test_awkward_sizes_give_the_reference_values_and_gradients(
    engine: FeedbackEngine, head_width: int, memory: int
) -> None:
    config = FeedbackConfig(width=40, heads=2, head_width=head_width, inner=70, layers=2, memory=memory)
    invariants.same_as_reference(invariants.make_case(config, B=9, T=20, starts=0.05, warm=6), engine)


def test_a_depth_of_several_blocks_gives_the_reference_values_and_gradients(engine: FeedbackEngine) -> None:
    config = FeedbackConfig(width=260, heads=2, head_width=8, inner=530, layers=1, memory=3, attend_to_current=True)
    invariants.same_as_reference(invariants.make_case(config, B=7, T=4), engine)


def test_float32_is_as_near_to_the_truth_as_the_reference(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=48, heads=3, layers=3, memory=20), B=5, T=30)
    exact, _ = case.core.walk(case.x, case.state, case.start, None, None)
    core, state = case.core.float(), case.state.to(dtype=torch.float32)
    ours, _ = engine(core, case.x.float(), state, case.start)  # type: ignore[arg-type]
    theirs, _ = core.walk(case.x.float(), state, case.start, None, None)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_laws_hold_with_the_engine(engine: FeedbackEngine, law: Any) -> None:
    @FEW
    @given(case=cases("feedback"))
    def check(case: invariants.Case) -> None:
        case.core.engine = engine
        law(case)

    check()


def test_the_laws_with_choices_hold_with_the_engine(engine: FeedbackEngine) -> None:
    @FEW
    @given(case=cases("feedback", max_crop=3), cuts=st.lists(st.integers(1, 10), max_size=3), place=st.integers(0, 10))
    def check(case: invariants.Case, cuts: list[int], place: int) -> None:
        case.core.engine = engine
        B, T, _ = case.x.shape
        invariants.split(case, [cut for cut in cuts if cut < T])
        invariants.causal(case, place % T)
        invariants.rows(case, list(range(B))[::-1])
        invariants.window(case)
        invariants.crop(case, [place % 4] * B)

    check()


def test_gradcheck(engine: FeedbackEngine) -> None:
    options: dict[str, Any] = {"adaptive_span": True, "attend_to_current": True, "cross": True}
    case = invariants.make_case(FeedbackConfig(width=4, heads=2, inner=3, layers=2, memory=2, **options), B=1, T=3)
    core: Any = case.core
    given = Source(case.source["source"], torch.tensor([[True, False, True, True]]))
    age = ages(case.state.count, case.start, 3)
    inputs, plan = prepare(core, case.x, case.state, age, [0, 1], core.mix(case.x), given, None)  # type: ignore[arg-type]
    leaves = [part.detach().requires_grad_() if part is not None else None for part in traces.leaves(inputs)]
    assert plan.needs_gradient
    assert torch.autograd.gradcheck(
        lambda *tensors: segment.Segment.apply(engine.backend, plan, inputs, *tensors), leaves, fast_mode=True
    )


def test_any_number_of_threads_gives_the_same(threads: Any) -> None:
    engine = FeedbackEngine()
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=1, memory=4), B=11, T=5)
    results = []
    for count in (1, 2, 8):
        threads(count)
        x = case.x.clone().requires_grad_()
        y, after = engine(case.core, x, case.state, case.start)  # type: ignore[arg-type]
        results.append([y, *invariants.gradients(case, invariants.weighed(y, after), x)])
    for result in results[1:]:
        invariants.assert_close(result, results[0], "result")


def test_backward_twice_gives_the_same_gradients(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    x = case.x.requires_grad_()
    y, _ = engine(case.core, x, case.state, case.start)  # type: ignore[arg-type]
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(y.sum(), x)[0])


def test_a_dropped_layer_has_no_gradient_at_all(engine: FeedbackEngine) -> None:
    """None, not zeros: an optimizer with momentum must leave it alone."""
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=3, memory=5), B=2, T=6)
    masks = Masks((), (), (), dropped=(False, True, False))
    y, _ = engine(case.core, case.x, case.state, case.start, None, masks)  # type: ignore[arg-type]
    y.sum().backward()
    core: Any = case.core
    assert all(parameter.grad is None for parameter in core.layers[1].parameters())
    assert core.layers[2].attention.query.weight.grad is not None


def test_what_a_segment_keeps_is_freed_after_backward(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)

    def living() -> int:
        gc.collect()
        return sum(type(thing) is Tensor for thing in gc.get_objects())

    y, _ = engine(case.core, case.x, case.state, case.start)  # type: ignore[arg-type]
    loss = y.sum()
    kept = living()
    loss.backward()
    assert living() < kept - 10
    del y, loss


def test_inference_keeps_one_step_only(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    with torch.no_grad():
        y, after = engine(case.core, case.x, case.state, case.start)  # type: ignore[arg-type]
    assert not y.requires_grad and not after.memory.requires_grad
    theirs, state = case.core.walk(case.x, case.state, case.start, None, None)
    torch.testing.assert_close(y, theirs, **invariants.CLOSE)
    invariants.assert_same_state(after, state)


def test_short_calls_go_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = build(FeedbackConfig(width=4, heads=1, memory=3))
    monkeypatch.setattr(segment, "make_trace", None)  # whoever builds a segment here fails
    FeedbackEngine(shortest=4)(core, torch.randn(1, 3, 4), core.init_state(1))


def test_a_core_says_what_runs_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    core = build(FeedbackConfig(width=4, heads=1))
    assert core.engine_name == "reference"
    fast.choose_engine(core, "auto")
    built = f"fast (C++, {native.INSTRUCTION_SETS[native.BEST]})" if not native.MISSING else "fast (PyTorch)"
    assert isinstance(core.engine, FeedbackEngine) and core.engine_name == built
    # The name follows the core to another type or device.
    assert core.half().engine_name == "fast (PyTorch)"
    assert core.to("meta").engine_name == "fast (PyTorch)"
    core = build(FeedbackConfig(width=4, heads=1))
    fast.choose_engine(core, "fast")
    monkeypatch.setattr(native, "MISSING", "the native extension was not built")
    assert core.engine_name == "fast (PyTorch)" and "not built" in fast.describe()
    x, state = torch.randn(1, 5, 4), core.init_state(1)
    torch.testing.assert_close(core(x, state)[0], core.walk(x, state, None, None, None)[0])


def test_a_core_without_a_fast_engine_runs_the_reference_or_refuses() -> None:
    core = build(LSTMConfig(width=4))
    fast.choose_engine(core, "auto")
    assert core.engine_name == "reference"
    with pytest.raises(ValueError, match="no fast engine for LSTM; use engine auto or reference"):
        fast.choose_engine(core, "fast")


@pytest.mark.skipif(bool(native.MISSING), reason=native.MISSING or "built")
def test_the_operators_keep_their_schema() -> None:
    config = FeedbackConfig(width=4, heads=2, inner=3, layers=2, memory=3)
    case = invariants.make_case(config, B=2, T=3)
    core: Any = case.core
    with torch.no_grad():
        age = ages(case.state.count, case.start, 3)
        inputs, plan = prepare(core, case.x, case.state, age, [0, 1], core.mix(case.x), None, None)  # type: ignore[arg-type]
    trace = traces.make_trace(plan, inputs)
    arguments = (*native.described(plan, inputs, trace), native.BEST, False)
    torch.library.opcheck(torch.ops.stairwell.feedback_forward.default, arguments)
