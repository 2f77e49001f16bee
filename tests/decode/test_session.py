"""A decoding session equals the model: steps, segments, crops, and streams that are selected, joined and reset."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, LSTMConfig, TransformerXLConfig
from stairwell.cores import CORES
from stairwell.cores.delta import DeltaNetConfig
from stairwell.cores.staircase import CachedStaircaseConfig, StaircaseConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.decode import Session, greedy
from stairwell.fast import linear, native
from stairwell.state import State
from tests import invariants
from tests.cores.test_invariants import configs

V = 5
EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True)
SMALL = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
RING_CONFIGS = [
    *(
        FeedbackConfig(
            **SMALL,
            memory=3,
            memory_composition=memory_composition,
            share_kv=share_kv,
            norm=norm,
            attend_to_current=attend_to_current,
        )
        for memory_composition, norm in itertools.product(["all", "average", "recurrent", 0, 2], ["pre", "post"])
        for share_kv, attend_to_current in itertools.product([True, False], repeat=2)
    ),
    *(
        config(**SMALL, memory=3, norm=norm, attend_to_current=attend_to_current)
        for config in (TransformerXLConfig, UniversalConfig)
        for norm, attend_to_current in itertools.product(["pre", "post"], [True, False])
    ),
    *(
        CachedStaircaseConfig(**SMALL, chunk=chunk, passes=passes, compute=compute, norm=norm)
        for chunk, norm in ((1, "pre"), (3, "post"))
        for passes in range(1, 4)
        for compute in range(passes + 1)
    ),
    CachedStaircaseConfig(**SMALL, chunk=3, passes=4, compute=2, adaptive_span=True, span_ramp=2),
    FeedbackConfig(**SMALL, memory=11, adaptive_span=True, span_ramp=2),
    TransformerXLConfig(**SMALL, memory=11, adaptive_span=True, span_ramp=2, attend_to_current=True),
]
CONFIGS = [
    FeedbackConfig(**SMALL, memory=3),
    FeedbackConfig(**SMALL, memory=3, memory_composition="recurrent", share_kv=False, attend_to_current=True),
    TransformerXLConfig(**SMALL, memory=3),
    StaircaseConfig(**SMALL, chunk=2, passes=2),
    CachedStaircaseConfig(**SMALL, chunk=2, passes=3, compute=1),
    LSTMConfig(width=4),
    DeltaNetConfig(width=4, heads=2, products=2),
]


def make_model(core: Any, **options: Any) -> LanguageModel:
    model = LanguageModel(LanguageModelConfig(core=core, inputs=V, **options), engine="reference")
    return invariants.scramble(model).double().eval()  # type: ignore[return-value]


def config_id(config: Any) -> str:
    fields = (
        "memory_composition",
        "share_kv",
        "chunk",
        "passes",
        "compute",
        "norm",
        "attend_to_current",
        "adaptive_span",
    )
    values = [str(getattr(config, field)) for field in fields if hasattr(config, field)]
    return "-".join([type(config).__name__.removesuffix("Config"), *values])


def warm_state(model: LanguageModel, B: int, T: int, max_crop: int = 0) -> State:
    """Return a state after T tokens whose streams were reset at different times."""
    state = model.init_state(B, max_crop=max_crop)
    if not T:
        return state
    with torch.no_grad():
        return model(torch.randint(V, (B, T)), state, torch.rand(B, T) < 0.3)[1]


def check_steps(model: LanguageModel, state: State, tokens: Tensor, start: Tensor, state_every: int) -> None:
    """Step a session through tokens (B, T) with resets at `start`, and compare logits and states with the model."""
    session = Session(model, state)
    with torch.no_grad():
        logits, after = model(tokens, state, start)
    for t in range(tokens.shape[1]):
        session.reset(start[:, t])
        torch.testing.assert_close(session.step(tokens[:, t]), logits[:, t], **invariants.CLOSE)
        if (t + 1) % state_every == 0:
            with torch.no_grad():
                _, expected = model(tokens[:, : t + 1], state, start[:, : t + 1])
            invariants.assert_same_state(session.state(), expected)
    invariants.assert_same_state(session.state(), after)


@pytest.mark.parametrize("core", sorted(CORES))
def test_a_session_equals_teacher_forcing(core: str) -> None:
    @EXAMPLES
    @given(
        config=configs(core),
        B=st.integers(1, 3),
        T=st.sampled_from([1, 4, 11]),
        warm=st.sampled_from([0, 1, 4, 9]),
        max_crop=st.sampled_from([0, 2]),
        starts=st.sampled_from([0.0, 0.15, 0.5]),
        seed=st.integers(0, 2**20),
    )
    def check(config: Any, B: int, T: int, warm: int, max_crop: int, starts: float, seed: int) -> None:
        torch.manual_seed(seed)
        if "cross" in CORES[core].config.__dataclass_fields__:
            config = dataclasses.replace(config, cross=False)
        model = make_model(config)
        state = warm_state(model, B, warm, 0 if core in ("lstm", "deltanet") else max_crop)
        check_steps(model, state, torch.randint(V, (B, T)), torch.rand(B, T) < starts, state_every=7)

    check()


@pytest.mark.parametrize("config", RING_CONFIGS, ids=config_id)
def test_rings_wrap_around_several_times(config: Any) -> None:
    torch.manual_seed(0)
    model = make_model(config)
    start = torch.zeros(3, 24, dtype=torch.bool)
    start[1, 17] = start[2, 5] = start[2, 6] = True
    check_steps(model, warm_state(model, 3, 2, max_crop=2), torch.randint(V, (3, 24)), start, state_every=9)


@pytest.mark.parametrize("options", [{"tied": True}, {"adaptive": (2,)}], ids=str)
def test_a_session_supports_every_head(options: Any) -> None:
    torch.manual_seed(0)
    model = make_model(CONFIGS[0], **options)
    check_steps(
        model, model.init_state(2), torch.randint(V, (2, 9)), torch.zeros(2, 9, dtype=torch.bool), state_every=9
    )


@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_read_equals_steps(config: Any) -> None:
    torch.manual_seed(1)
    model = make_model(config)
    tokens = torch.randint(V, (2, 8))
    stepped, read = (Session(model, model.init_state(2)) for _ in range(2))
    stepped.step(tokens[:, 0])
    read.step(tokens[:, 0])
    logits = read.read(tokens[:, 1:])
    for t in range(1, 8):
        last = stepped.step(tokens[:, t])
    torch.testing.assert_close(logits, last, **invariants.CLOSE)
    invariants.assert_same_state(read.state(), stepped.state())


@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_select_join_and_reset_equal_those_of_a_state(config: Any) -> None:
    """select, join, reset and step change a session as they change a state."""
    torch.manual_seed(2)
    model = make_model(config)
    state = warm_state(model, 2, 4)
    other = warm_state(model, 1, 7)
    session = Session(model, state, capacity=3)

    def step() -> None:
        nonlocal state
        tokens = torch.randint(V, (state.batch,))
        with torch.no_grad():
            logits, state = model(tokens[:, None], state)
        torch.testing.assert_close(session.step(tokens), logits[:, 0], **invariants.CLOSE)

    def check() -> None:
        step()
        invariants.assert_same_state(session.state(), state)
        step()

    step()
    for index in ([1, 0], [1, 1, 0, 0, 1], [4, 2], [False, True, True], [0]):
        session.select(index)
        state = state.select(torch.tensor(index))
        check()
        session.join(other)
        state = type(state).join([state, other])
        check()
        session.reset([state.batch - 1])
        state = state.reset([state.batch - 1])
        check()
    session.select([])
    with pytest.raises(ValueError, match="the session has no streams"):
        session.step(torch.zeros(0, dtype=torch.int64))
    session.join(Session(model, other))
    state = other
    check()


@pytest.mark.parametrize("config", [FeedbackConfig, TransformerXLConfig])
@pytest.mark.parametrize("options", [{}, {"attend_to_current": True}, {"adaptive_span": True, "span_ramp": 2}], ids=str)
def test_rings_grow_as_needed(config: Any, options: Any) -> None:
    """Through all lengths and two turns of the ring, while streams are selected as in a beam and others join."""
    torch.manual_seed(12)
    model = make_model(config(**SMALL, memory=40, **options))
    state = warm_state(model, 2, 3, max_crop=2)
    session, new_session = Session(model, state), Session(model, warm_state(model, 2, 0, max_crop=2))
    lengths: list[int] = []
    for t in range(100):
        index = torch.randint(state.batch, (4,))
        session.select(index)
        state = state.select(index)
        if t == 30:
            other = warm_state(model, 1, 35, max_crop=2)
            session.join(other)
            state = type(state).join([state, other])
        tokens = torch.randint(V, (state.batch,))
        with torch.no_grad():
            logits, state = model(tokens[:, None], state)
        torch.testing.assert_close(session.step(tokens), logits[:, 0], **invariants.CLOSE)
        if t % 20 == 19:
            invariants.assert_same_state(session.state(), state)
        lengths.append(session.interpreter.rings[0].slots)  # type: ignore[attr-defined]
    max_slots = session.interpreter.rings[0].max_slots  # type: ignore[attr-defined]
    assert lengths == sorted(lengths) and 4 * lengths[0] < 2 * max_slots and lengths[-1] == max_slots

    def numbers_per_stream(session: Session) -> int:
        return sum(buffer.all[0].numel() for buffer in session.interpreter.buffers())  # type: ignore[attr-defined]

    assert 2 * numbers_per_stream(new_session) < numbers_per_stream(session)


@pytest.mark.parametrize("config", [*CONFIGS[:5], FeedbackConfig(**SMALL, memory=40)], ids=config_id)
def test_cropping_all_tokens_gives_the_initial_state(config: Any) -> None:
    model = make_model(config)
    state = model.init_state(2, max_crop=2)
    session = Session(model, state)
    session.step(torch.tensor([1, 2]))
    session.step(torch.tensor([3, 4]))
    session.crop(2)
    tokens = torch.tensor([[0, 3], [2, 2]])
    with torch.no_grad():
        logits, after = model(tokens, state)
    for t in range(2):
        torch.testing.assert_close(session.step(tokens[:, t]), logits[:, t], **invariants.CLOSE)
    invariants.assert_same_state(session.state(), after)


@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_a_session_never_changes_a_state(config: Any) -> None:
    torch.manual_seed(3)
    model = make_model(config)
    given_state = warm_state(model, 2, 5)
    session = Session(model, given_state)
    session.step(torch.tensor([1, 2]))
    middle = session.state()
    copies = [[tensor.clone() for _, tensor in state.tensors()] for state in (given_state, middle)]
    session.step(torch.tensor([3, 4]))
    session.reset([0])
    session.select([1, 1])
    for state, before in zip((given_state, middle), copies, strict=True):
        assert all(torch.equal(a, b) for (_, a), b in zip(state.tensors(), before, strict=True))


@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_a_session_created_in_inference_mode_works_outside(config: Any) -> None:
    model = make_model(config)
    tokens = torch.tensor([0, 1])
    with torch.inference_mode():
        session = Session(model, model.init_state(2))
        session.step(tokens)
        session.select([1, 0])
    with torch.enable_grad():
        logits = session.step(tokens)
    assert not logits.requires_grad
    with torch.inference_mode():
        session.step(tokens)


def change_in_place(model: LanguageModel) -> None:
    with torch.no_grad():
        next(model.core.parameters()).add_(0.1)


def change_data(model: LanguageModel) -> None:
    model.float().double()


def change_parameter(model: LanguageModel) -> None:
    model.head.bias = torch.nn.Parameter(torch.zeros(V, dtype=torch.float64))


@pytest.mark.parametrize("change", [change_in_place, change_data, change_parameter])
def test_changed_parameters_raise(change: Any) -> None:
    model = make_model(CONFIGS[0])
    session = Session(model, model.init_state(1))
    session.step(torch.tensor([0]))
    change(model)
    for call in (lambda: session.step(torch.tensor([0])), lambda: session.read(torch.tensor([[0]]))):
        with pytest.raises(RuntimeError, match="parameters have changed"):
            call()
    Session(model, session.state()).step(torch.tensor([0]))


def test_invalid_arguments_raise() -> None:
    model = make_model(CONFIGS[0])
    session = Session(model, model.init_state(2))
    with pytest.raises(ValueError, match="one token for each of 2 streams"):
        session.step(torch.tensor([0]))
    with pytest.raises(ValueError, match="token 5 at stream 1"):
        session.step(torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="max_crop 1 cannot join a session with max_crop 0"):
        session.join(model.init_state(1, max_crop=1))
    with pytest.raises(IndexError, match=r"batch indices must be in 0\.\.1"):
        session.select([2])
    with pytest.raises(ValueError, match="too small"):
        Session(model, model.init_state(2), capacity=1)
    with pytest.raises(TypeError, match="needs a FeedbackState"):
        Session(model, make_model(CONFIGS[2]).init_state(1))
    with pytest.raises(ValueError, match="a prompt must be"):
        greedy(session, torch.zeros(1, 3, dtype=torch.int64), 4)
    model.train()
    with pytest.raises(RuntimeError, match=r"model\.eval"):
        session.step(torch.tensor([0, 0]))


class AllocationCounter(TorchDispatchMode):
    """Counts operations and the elements of the tensors that they allocate, in total and of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.elements = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {tensor.untyped_storage().data_ptr() for tensor in torch.utils._pytree.tree_leaves((args, kwargs))
                 if isinstance(tensor, Tensor)}  # fmt: skip
        self.operations += 1
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self.elements += tensor.numel()
                self.largest = max(self.largest, tensor.numel())
        return result


@pytest.mark.parametrize("config", [FeedbackConfig, TransformerXLConfig, UniversalConfig])
@pytest.mark.parametrize("attend_to_current", [True, False])
def test_a_step_copies_no_memory_and_its_cost_is_constant(config: Any, attend_to_current: bool) -> None:
    S, D, B = 64, 16, 2
    model = make_model(config(width=D, heads=2, layers=1, memory=S, attend_to_current=attend_to_current))
    session = Session(model, model.init_state(B))
    tokens = torch.tensor([1, 2])
    costs: dict[int, tuple[int, int]] = {}
    for t in range(1, 1001):
        if t in (10, S + 2, 999, 1000):
            with AllocationCounter() as counter:
                session.step(tokens)
            assert counter.largest < B * S * D
            costs[t] = counter.operations, counter.elements
        else:
            session.step(tokens)
    assert costs[1000] == costs[999] == costs[S + 2]
    # Until the window is full there is also a mask, created once and applied in every layer.
    assert costs[10][1] - costs[1000][1] <= 2 * B * S
    assert costs[10][0] - costs[1000][0] <= 10 + 3 * model.core.depth()


@pytest.mark.parametrize(("passes", "compute"), [(3, 3), (4, 1), (4, 0)])
def test_the_cost_of_a_staircase_step_is_the_same_in_every_chunk(passes: int, compute: int) -> None:
    C, D, B = 4, 16, 2
    config = CachedStaircaseConfig(width=D, heads=2, layers=2, chunk=C, passes=passes, compute=compute)
    model = make_model(config)
    session = Session(model, model.init_state(B))
    costs = []
    for _ in range(60):
        with AllocationCounter() as counter:
            session.step(torch.tensor([1, 2]))
        assert counter.largest < B * passes * C * D
        costs.append(counter.elements)
    # A late token of a chunk attends to more of it; chunks cost the same once the past is complete.
    full = passes * C
    assert costs[full:-C] == costs[full + C :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_a_session_supports_other_dtypes(config: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(11)
    model = make_model(config).to(dtype)
    state, tokens = model.init_state(2), torch.randint(V, (2, 6))
    session = Session(model, state)
    with torch.no_grad():
        logits, _ = model(tokens, state)
    stepped = torch.stack([session.step(tokens[:, t]) for t in range(6)], 1)
    assert stepped.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(stepped, logits, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(linear.ONEDNN_LINEAR is None, reason="this torch has no oneDNN")
@pytest.mark.parametrize("tied", [True, False])
def test_onednn_products_give_the_same_logits(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(13)
    monkeypatch.setattr(native, "UNAVAILABLE_REASON", "test")  # native code has its own products
    monkeypatch.setattr(linear, "ONEDNN_MIN_PRODUCTS", 0)
    model = make_model(FeedbackConfig(**SMALL, memory=3), tied=tied).float()
    state, tokens = model.init_state(9), torch.randint(V, (9, 5))
    calls: list[bool] = []
    by_onednn = linear.onednn_linear
    monkeypatch.setattr(linear, "onednn_linear", lambda *args: (calls.append(True), by_onednn(*args))[1])
    session = Session(model, state)
    with torch.no_grad():
        logits, _ = model(tokens, state)
    stepped = torch.stack([session.step(tokens[:, t]) for t in range(5)], 1)
    torch.testing.assert_close(stepped, logits, rtol=1e-4, atol=1e-4)
    assert calls
    before = len(calls)
    Session(model.double(), model.double().init_state(9)).step(tokens[:, 0])  # oneDNN does not support float64
    assert len(calls) == before


SPANS = {"memory": 9, "adaptive_span": True, "span_ramp": 2}


def check_crops(model: LanguageModel, warm: int, max_crop: int, moves: list[tuple[int, int]], seed: int) -> None:
    """Read and crop tokens in turn, and compare logits and states with the model. moves: (tokens to read, to crop)"""
    torch.manual_seed(seed)
    state = warm_state(model, 2, warm, max_crop)
    session = Session(model, state)
    for n_read, n_crop in moves:
        tokens = torch.randint(V, (2, n_read))
        with torch.no_grad():
            logits, after = model(tokens, state)
        torch.testing.assert_close(session.logits_each(tokens), logits, **invariants.CLOSE)
        n_crop = min(n_crop, int(after.croppable.min()))
        session.crop(n_crop)
        state = after.crop(n_crop) if n_crop else after
        invariants.assert_same_state(session.state(), state)
        step = torch.randint(V, (2,))
        with torch.no_grad():
            logits, state = model(step[:, None], state)
        torch.testing.assert_close(session.step(step), logits[:, 0], **invariants.CLOSE)


@pytest.mark.parametrize("core", sorted(CORES))
def test_segments_and_crops_equal_the_model(core: str) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(
        config=configs(core),
        warm=st.integers(0, 9),
        max_crop=st.integers(0, 5),
        moves=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5)), min_size=1, max_size=5),
        seed=st.integers(0, 99),
    )
    def check(config: Any, warm: int, max_crop: int, moves: list[tuple[int, int]], seed: int) -> None:
        torch.manual_seed(seed)
        if "cross" in CORES[core].config.__dataclass_fields__:
            config = dataclasses.replace(config, cross=False)
        check_crops(make_model(config), warm, 0 if core in ("lstm", "deltanet") else max_crop, moves, seed)

    check()


@pytest.mark.parametrize("attend_to_current", [False, True])
@pytest.mark.parametrize("config", [FeedbackConfig, TransformerXLConfig])
def test_segments_and_crops_with_adaptive_spans(config: Any, attend_to_current: bool) -> None:
    torch.manual_seed(0)
    model = make_model(config(**SMALL, **SPANS, attend_to_current=attend_to_current))
    check_crops(model, 0, 4, [(4, 3), (3, 0), (5, 4), (2, 1)] * 8, 0)


def test_the_number_of_matrix_products_does_not_depend_on_the_number_of_tokens() -> None:
    """Verifying a draft is fast because parameters are read once per call."""
    torch.manual_seed(0)
    model = make_model(TransformerXLConfig(**SMALL, memory=6))
    calls = []
    for tokens in (2, 5):
        session = Session(model, model.init_state(1, max_crop=6))
        with torch.profiler.profile() as profile:
            session.logits_each(torch.zeros(1, tokens, dtype=torch.int64))
        names = {"aten::mm", "aten::addmm"}
        calls.append(sum(event.count for event in profile.key_averages() if event.key in names))
    assert calls[0] == calls[1]


def test_invalid_crops_raise() -> None:
    session = Session(
        make_model(FeedbackConfig(**SMALL)), make_model(FeedbackConfig(**SMALL)).init_state(1, max_crop=2)
    )
    session.logits_each(torch.tensor([[1, 2, 3]]))
    with pytest.raises(ValueError, match="cannot crop 3 tokens"):
        session.crop(3)
    with pytest.raises(ValueError, match="0 or more tokens"):
        session.crop(-1)
    with pytest.raises(ValueError, match=r"tokens must be \(1 streams, tokens\)"):
        session.logits_each(torch.tensor([1, 2]))
    for config in (LSTMConfig(width=4), CachedStaircaseConfig(**SMALL, chunk=2, passes=2)):
        model = make_model(config)
        session = Session(model, model.init_state(1))
        session.logits_each(torch.tensor([[1, 2, 3]]))
        with pytest.raises(ValueError, match="crop"):
            session.crop(1)


@pytest.mark.parametrize("core", sorted(CORES))
def test_autocast_does_not_change_a_session(core: str) -> None:
    """Buffers have the dtype of the parameters; training in bf16 decodes during validation."""
    config = CORES[core].config(**({"width": 8} if core in ("lstm", "deltanet") else SMALL))
    model, tokens = make_model(config).float(), torch.randint(V, (2, 9))
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            session = Session(model=model, state=model.init_state(2))
            results.append(
                [session.read(tokens[:, :4]), session.step(tokens[:, 4]), session.logits_each(tokens[:, 5:])]
            )
        model.core.check_state(session.state(), 2)
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("ratio", [-1.0, 2.0])
@pytest.mark.parametrize("core", ["feedback", "transformer-xl", "staircase", "cached-staircase", "universal"])
def test_span_ratios_out_of_range_change_no_result_between_engines(core: str, ratio: float) -> None:
    """A plain training loop never clamps the ratio; decoding must still equal the model."""
    config = CORES[core].config(**SMALL, adaptive_span=True, span_ramp=2)
    model = LanguageModel(LanguageModelConfig(core=config, inputs=V)).double().eval()
    with torch.no_grad():
        for span in model.core.spans():
            span.ratio.fill_(ratio)
    tokens = torch.randint(V, (2, 12))
    with torch.no_grad():
        expected, _ = model(tokens, model.init_state(2))
        session = Session(model, model.init_state(2))
        steps = torch.stack([session.step(tokens[:, t]) for t in range(12)], 1)
    torch.testing.assert_close(steps.log_softmax(-1), expected.log_softmax(-1), atol=1e-10, rtol=0)
    clamped = [span.z.clone() for span in model.core.spans()]
    assert all(bool(((z >= 0) & (z <= span.longest)).all()) for z, span in zip(clamped, model.core.spans()))
