"""The fast Feedback engine has the reference's invariants, values and gradients for every option."""

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
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.fast import feedback_torch, native, segment, segment_data
from stairwell.fast.feedback import FeedbackEngine, prepare
from stairwell.fast.feedback_torch import TorchBackend
from stairwell.layers import Masks
from tests import invariants
from tests.cores.test_invariants import cases
from tests.fast import engine_invariants

pytestmark = pytest.mark.quick

BACKENDS: dict[str, Any] = {"torch": TorchBackend()}
if not native.UNAVAILABLE_REASON:
    BACKENDS |= {native.INSTRUCTION_SETS[i]: native.NativeBackend(i) for i in range(native.BEST_INSTRUCTION_SET + 1)}
    BACKENDS["shared columns"] = native.NativeBackend(schedule="columns")
EXAMPLES = settings(max_examples=30, deadline=None, derandomize=True)
FEW = settings(max_examples=6, deadline=None, derandomize=True)
INVARIANTS = (invariants.start, invariants.pure, invariants.detach, invariants.decode)


@pytest.fixture(params=BACKENDS)
def engine(request: pytest.FixtureRequest) -> FeedbackEngine:
    return FeedbackEngine(BACKENDS[request.param], min_tokens=1)


@pytest.fixture(autouse=True)
def nan_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialized buffers with NaN, and make blocks short so that a segment has several."""

    def nan_tensor(like: Tensor, *shape: int) -> Tensor:
        return like.new_full(shape, torch.nan)

    for module in (segment_data, feedback_torch):
        monkeypatch.setattr(module, "pooled_empty", nan_tensor)
    monkeypatch.setattr(native, "FILL_SCRATCH_WITH_NAN", True)
    monkeypatch.setattr(segment_data, "BLOCK_ROWS", 4)
    monkeypatch.setattr(segment_data, "SINGLE_BLOCK_BYTES", 0)


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_every_option_gives_the_reference_values_and_gradients(engine: FeedbackEngine) -> None:
    @EXAMPLES
    @given(case=cases("feedback", max_crop=1))
    def invariant(case: invariants.Case) -> None:
        invariants.same_as_reference(case, engine)

    invariant()


def test_dropout_and_layer_drop_give_the_reference_values_and_gradients(
    engine: FeedbackEngine,
) -> None:
    @EXAMPLES
    @given(case=cases("feedback"), rates=st.tuples(*[st.sampled_from([0.0, 0.3])] * 4))
    def invariant(case: invariants.Case, rates: tuple[float, ...]) -> None:
        invariants.same_as_reference(case, engine, invariants.sample_masks(case, *rates))

    invariant()


def test_keys_and_values_in_bfloat16_give_the_reference_values_and_gradients(engine: FeedbackEngine) -> None:
    """The reference forward rounds the keys and values of past tokens in the same place."""

    @EXAMPLES
    @given(case=cases("feedback", max_crop=1), rates=st.sampled_from([0.0, 0.3]))
    def invariant(case: invariants.Case, rates: float) -> None:
        case.core.kv_precision = "bf16"  # type: ignore[assignment]
        invariants.same_as_reference(case, engine, invariants.sample_masks(case, *[rates] * 4) if rates else None)

    invariant()


@pytest.mark.parametrize("head_width", [13, 48, 96])
def test_keys_and_values_in_bfloat16_have_the_invariants(engine: FeedbackEngine, head_width: int) -> None:
    config = FeedbackConfig(width=20, heads=2, head_width=head_width, layers=2, memory=20)
    case = invariants.make_case(config, B=3, T=12, starts=0.05, warm=9, max_crop=3)
    exact, _ = case.core.reference(case.x, case.state, case.start, None, None)
    case.core.kv_precision = "bf16"  # type: ignore[assignment]
    rounded, _ = engine(case.core, case.x, case.state, case.start)  # type: ignore[arg-type]
    error = float((rounded - exact).detach().norm() / exact.detach().norm())
    assert 1e-5 < error < 1e-2  # bfloat16 has 8 bits
    invariants.same_as_reference(case, engine)
    engine_invariants.check(case, engine, [3, 7], 5)


def test_rounded_keys_and_values_are_stored_in_two_bytes() -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, memory=5), B=2, T=6)
    core: Any = case.core
    core.kv_precision = "bf16"
    since_start = tokens_since_start(case.state.count, case.start, 6)
    layers = list(range(len(core.layers)))
    inputs, plan = prepare(core, case.x, case.state, since_start, layers, core.mix(case.x), None, None)  # type: ignore[arg-type]
    saved = segment_data.make_activations(plan, inputs)
    assert {tensor.dtype for tensor in (*saved.keys, *saved.values)} == {torch.bfloat16}


def test_keys_and_values_of_the_state_are_not_kept_for_backward(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, memory=5), B=2, T=7, warm=9)
    y, _ = engine(case.core, case.x, case.state, case.start)  # type: ignore[arg-type]
    segments = [node for node in nodes_before(y.grad_fn) if "FeedbackSegment" in node.name()]
    shapes = {tuple(saved.shape) for node in segments for saved in node.saved_tensors if saved is not None}
    assert (2, 2, 7 + 5, 4) in shapes  # keys of the segment, with those of the state
    assert (2, 5, 2 * 8) not in shapes


def nodes_before(node: Any) -> list[Any]:
    """Return a node of the autograd graph and all nodes that its gradient reaches."""
    return (
        []
        if node is None
        else [node, *(each for next_node, _ in node.next_functions for each in nodes_before(next_node))]
    )


@pytest.mark.parametrize("rows, blocks", [(1, 7), (6, 4), (100, 1)])
def test_parameters_are_packed_once_for_all_blocks(
    rows: int, blocks: int, monkeypatch: pytest.MonkeyPatch, engine: FeedbackEngine
) -> None:
    monkeypatch.setattr(segment_data, "BLOCK_ROWS", rows)
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, memory=5), B=3, T=7)
    buffers: list[tuple[range, Any]] = []
    backward = type(engine.backend).backward

    def record(self: Any, *arguments: Any) -> None:
        buffers.append((arguments[-1], arguments[-2].packed))
        backward(self, *arguments)

    monkeypatch.setattr(type(engine.backend), "backward", record)
    y, _ = engine(case.core, case.x, case.state, case.start)  # type: ignore[arg-type]
    y.sum().backward()
    tokens = [block for block, _ in buffers]
    assert len(tokens) == blocks and sorted(t for block in tokens for t in block) == list(range(7))
    assert tokens[0].stop == 7 and all(later.start == block.stop for block, later in zip(tokens[1:], tokens))
    assert len({id(buffer) for _, buffer in buffers}) == 1 and (buffers[0][1] is None) == (blocks == 1)


# Sizes around the widths of vectors and blocks; segments longer, and windows shorter than a chunk of backward.
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


def test_float32_is_as_accurate_as_the_reference(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=48, heads=3, layers=3, memory=20), B=5, T=30)
    exact, _ = case.core.reference(case.x, case.state, case.start, None, None)
    core, state = case.core.float(), case.state.to(dtype=torch.float32)
    ours, _ = engine(core, case.x.float(), state, case.start)  # type: ignore[arg-type]
    theirs, _ = core.reference(case.x.float(), state, case.start, None, None)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: invariant.__name__)
def test_the_invariants_hold_with_the_engine(engine: FeedbackEngine, invariant: Any) -> None:
    @FEW
    @given(case=cases("feedback"))
    def check(case: invariants.Case) -> None:
        case.core.engine = engine
        invariant(case)

    check()


def test_the_invariants_with_arguments_hold_with_the_engine(engine: FeedbackEngine) -> None:
    @FEW
    @given(
        case=cases("feedback", max_crop=3), cuts=st.lists(st.integers(1, 10), max_size=3), position=st.integers(0, 10)
    )
    def check(case: invariants.Case, cuts: list[int], position: int) -> None:
        engine_invariants.check(case, engine, cuts, position)

    check()


def test_gradcheck(engine: FeedbackEngine) -> None:
    options: dict[str, Any] = {"adaptive_span": True, "attend_to_current": True, "cross": True}
    case = invariants.make_case(FeedbackConfig(width=4, heads=2, inner=3, layers=2, memory=2, **options), B=1, T=3)
    core: Any = case.core
    given = Source(case.source["source"], torch.tensor([[True, False, True, True]]))
    since_start = tokens_since_start(case.state.count, case.start, 3)
    inputs, plan = prepare(core, case.x, case.state, since_start, [0, 1], core.mix(case.x), given, None)  # type: ignore[arg-type]
    leaves = [part.detach().requires_grad_() if part is not None else None for part in segment_data.leaves(inputs)]
    assert plan.needs_gradient
    assert torch.autograd.gradcheck(
        lambda *tensors: segment.FeedbackSegment.apply(engine.backend, plan, inputs, *tensors), leaves, fast_mode=True
    )


def test_any_number_of_threads_gives_the_same_results(threads: Any) -> None:
    engine = FeedbackEngine()
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=1, memory=4), B=11, T=5)
    results = []
    for count in (1, 2, 8):
        threads(count)
        x = case.x.clone().requires_grad_()
        y, after = engine(case.core, x, case.state, case.start)  # type: ignore[arg-type]
        results.append([y, *invariants.gradients(case, invariants.random_projection(y, after), x)])
    for result in results[1:]:
        invariants.assert_close(result, results[0], "result")


def test_backward_twice_gives_the_same_gradients(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    x = case.x.requires_grad_()
    y, _ = engine(case.core, x, case.state, case.start)  # type: ignore[arg-type]
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(y.sum(), x)[0])


def test_a_dropped_layer_has_no_gradient(engine: FeedbackEngine) -> None:
    """The gradient is None, not zero, so that an optimizer with momentum does not change the layer."""
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=3, memory=5), B=2, T=6)
    masks = Masks((), (), (), dropped=(False, True, False))
    y, _ = engine(case.core, case.x, case.state, case.start, None, masks)  # type: ignore[arg-type]
    y.sum().backward()
    core: Any = case.core
    assert all(parameter.grad is None for parameter in core.layers[1].parameters())
    assert core.layers[2].attention.query.weight.grad is not None


def test_saved_activations_are_freed_by_backward(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)

    def live_tensors() -> int:
        gc.collect()
        return sum(type(item) is Tensor for item in gc.get_objects())

    y, _ = engine(case.core, case.x, case.state, case.start)  # type: ignore[arg-type]
    loss = y.sum()
    before = live_tensors()
    loss.backward()
    assert live_tensors() < before - 10
    del y, loss


def test_inference_gives_the_same_values_without_a_graph(engine: FeedbackEngine) -> None:
    case = invariants.make_case(FeedbackConfig(width=8, heads=2, layers=2, memory=5), B=2, T=6)
    with torch.no_grad():
        y, after = engine(case.core, case.x, case.state, case.start)  # type: ignore[arg-type]
    assert not y.requires_grad and not after.memory.requires_grad
    theirs, state = case.core.reference(case.x, case.state, case.start, None, None)
    torch.testing.assert_close(y, theirs, **invariants.CLOSE)
    invariants.assert_same_state(after, state)


def test_short_calls_use_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = build(FeedbackConfig(width=4, heads=1, memory=3))
    monkeypatch.setattr(segment, "make_activations", None)  # any use of the fast engine fails
    FeedbackEngine(min_tokens=4)(core, torch.randn(1, 3, 4), core.init_state(1))


def test_the_engine_name_follows_device_and_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    core = build(FeedbackConfig(width=4, heads=1))
    assert core.engine_name == "reference"
    fast.choose_engine(core, "auto")
    built = (
        f"fast (C++, {native.INSTRUCTION_SETS[native.BEST_INSTRUCTION_SET]})"
        if not native.UNAVAILABLE_REASON
        else "fast (PyTorch)"
    )
    assert isinstance(core.engine, FeedbackEngine) and core.engine_name == built
    assert core.half().engine_name == "fast (PyTorch)"
    assert core.to("meta").engine_name == "fast (PyTorch)"
    core = build(FeedbackConfig(width=4, heads=1))
    fast.choose_engine(core, "fast")
    monkeypatch.setattr(native, "UNAVAILABLE_REASON", "the native extension was not built")
    assert core.engine_name == "fast (PyTorch)" and "not built" in fast.describe()
    x, state = torch.randn(1, 5, 4), core.init_state(1)
    torch.testing.assert_close(core(x, state)[0], core.reference(x, state, None, None, None)[0])


def test_a_core_without_a_fast_engine_uses_the_reference_or_raises() -> None:
    core = build(LSTMConfig(width=4))
    fast.choose_engine(core, "auto")
    assert core.engine_name == "reference"
    with pytest.raises(ValueError, match="no fast engine for LSTM; use engine auto or reference"):
        fast.choose_engine(core, "fast")


@pytest.mark.skipif(bool(native.UNAVAILABLE_REASON), reason=native.UNAVAILABLE_REASON or "built")
def test_the_forward_operator_passes_opcheck() -> None:
    config = FeedbackConfig(width=4, heads=2, inner=3, layers=2, memory=3)
    case = invariants.make_case(config, B=2, T=3)
    core: Any = case.core
    with torch.no_grad():
        since_start = tokens_since_start(case.state.count, case.start, 3)
        inputs, plan = prepare(core, case.x, case.state, since_start, [0, 1], core.mix(case.x), None, None)  # type: ignore[arg-type]
    saved = segment_data.make_activations(plan, inputs)
    arguments = (*native.plan_arguments(plan, inputs, saved), 0, native.BEST_INSTRUCTION_SET, False)
    torch.library.opcheck(torch.ops.stairwell.feedback_forward.default, arguments)


@pytest.mark.skipif(bool(native.UNAVAILABLE_REASON), reason="no native library")
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_schedules_give_the_same_bits(count: int, norm: Any, threads: Any) -> None:
    """With more threads than cores waits are slow, so that one thread finishes the segment."""
    torch.manual_seed(0)
    config = FeedbackConfig(
        width=40, heads=3, head_width=13, layers=2, inner=70, memory=5, norm=norm, share_kv=False,
        attend_to_current=True, cross=True, attention_dropout=0.2, relu_dropout=0.2, residual_dropout=0.2,
    )  # fmt: skip
    core: Any = invariants.scramble(build(config)).double().train()
    x, source = torch.randn(5, 13, 40).double(), torch.randn(5, 4, 40).double()
    results = []
    for schedule in ("streams", "columns"):
        threads(1 if schedule == "streams" else count)
        core.engine = FeedbackEngine(native.NativeBackend(schedule=schedule), min_tokens=1)
        core.zero_grad()
        torch.manual_seed(1)
        y, state = core(x, core.init_state(5), source=source)
        (y.square().sum() + state.memory.sum()).backward()
        results.append([y.detach(), state.memory.detach(), *(parameter.grad for parameter in core.parameters())])
    # Gradients of parameters are products of torch, which depend on the number of threads.
    for streams, columns in zip(*results, strict=True):
        torch.testing.assert_close(columns, streams)
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
