"""Every interpreter of step descriptions equals the model: PyTorch, and native code of each instruction set."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from stairwell import FeedbackConfig, LanguageModel, TransformerXLConfig
from stairwell.cores import CORES
from stairwell.cores.staircase import CachedStaircaseConfig, StaircaseConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.decode import Session
from stairwell.decode import program as programs
from stairwell.decode.interpreters import RingInterpreter
from stairwell.decode.program import cached_program
from stairwell.fast import native
from tests import invariants
from tests.cores.test_invariants import configs
from tests.decode import test_source
from tests.decode.test_session import check_crops, check_steps, make_model, warm_state

pytestmark = pytest.mark.quick

V = 5
SMALL: dict[str, Any] = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
# Wider than vectors of every instruction set, and odd enough to have remainders.
WIDE: dict[str, Any] = {"width": 37, "heads": 3, "head_width": 19, "layers": 2, "inner": 70}
CONFIGS = [
    FeedbackConfig(**WIDE, memory=40),
    FeedbackConfig(**SMALL, memory=3, memory_composition="recurrent", share_kv=False, attend_to_current=True),
    FeedbackConfig(**SMALL, memory=11, adaptive_span=True, span_ramp=2, norm="post"),
    TransformerXLConfig(**SMALL, memory=3),
    UniversalConfig(**SMALL, memory=40, passes=2, norm="post"),
    StaircaseConfig(**SMALL, chunk=3, passes=2),
    CachedStaircaseConfig(**SMALL, chunk=2, passes=4, compute=2, adaptive_span=True, span_ramp=2),
    CachedStaircaseConfig(**WIDE, chunk=9, passes=3, compute=0),
]
RING_CORES = [name for name in sorted(CORES) if name not in ("lstm", "deltanet", "global-cached-staircase")]
INTERPRETERS = ["PyTorch", *native.INSTRUCTION_SETS]
needs_native = pytest.mark.skipif(bool(native.UNAVAILABLE_REASON), reason="no native library")


def config_id(config: Any) -> str:
    return f"{type(config).__name__.removesuffix('Config')}-{config.width}-{config.norm}"


each_config = pytest.mark.parametrize("config", CONFIGS, ids=config_id)


@pytest.fixture(params=INTERPRETERS)
def interpreter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode with one interpreter."""
    name: str = request.param
    if name == "PyTorch":
        monkeypatch.setattr(native, "UNAVAILABLE_REASON", "test")
        return name
    if native.UNAVAILABLE_REASON or INTERPRETERS.index(name) - 1 > native.BEST_INSTRUCTION_SET:
        pytest.skip(f"this machine has no {name}")
    monkeypatch.setattr(native, "BEST_INSTRUCTION_SET", INTERPRETERS.index(name) - 1)
    return name


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def uses(session: Session, interpreter: str) -> bool:
    assert isinstance(session.interpreter, RingInterpreter)
    return (session.interpreter.native is None) == (interpreter == "PyTorch")


@each_config
def test_steps_equal_teacher_forcing(config: Any, interpreter: str) -> None:
    torch.manual_seed(0)
    model = make_model(config)
    start = torch.zeros(5, 45, dtype=torch.bool)
    start[1, 17] = start[2, 5] = start[2, 6] = True
    check_steps(model, warm_state(model, 5, 2, max_crop=2), torch.randint(V, (5, 45)), start, state_every=45)
    assert uses(Session(model, model.init_state(1)), interpreter)


@pytest.mark.parametrize("core", RING_CORES)
@pytest.mark.parametrize("interpreter", ["PyTorch", "portable vectors"], indirect=True)
def test_random_configs_equal_teacher_forcing(core: str, interpreter: str) -> None:
    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(config=configs(core, cross=False), warm=st.sampled_from([0, 4]), seed=st.integers(0, 2**20))
    def check(config: Any, warm: int, seed: int) -> None:
        torch.manual_seed(seed)
        model = make_model(config)
        check_steps(model, warm_state(model, 2, warm, 2), torch.randint(V, (2, 9)), torch.rand(2, 9) < 0.15, 9)

    check()


@each_config
def test_crops_equal_the_model(config: Any, interpreter: str) -> None:
    torch.manual_seed(1)
    check_crops(make_model(config), 3, 4, [(4, 3), (3, 0), (5, 4), (2, 1)] * 3, 1)


@each_config
def test_sources_equal_the_model(config: Any, interpreter: str) -> None:
    if config.width == 4:
        test_source.test_a_session_with_a_source_equals_teacher_forcing(config, 5)


@each_config
def test_uninitialized_buffers_change_nothing(config: Any, interpreter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the values of empty slots have to be zero, because PyTorch multiplies them by zero."""
    torch.manual_seed(2)
    model = make_model(config)
    tokens, state = torch.randint(V, (2, 20)), warm_state(model, 2, 3)
    with torch.no_grad():
        expected, _ = model(tokens, state)
    session = Session(model, state)
    assert isinstance(session.interpreter, RingInterpreter)
    for t in range(20):
        for ring in session.interpreter.rings:
            empty = ring.next_slots(max(ring.slots - 3 - t, 0))
            ring.keys.all.index_fill_(3, empty, torch.nan if interpreter != "PyTorch" else 1e9)
            if interpreter != "PyTorch":
                ring.values.all.index_fill_(3, empty, torch.nan)
        logits = session.step(tokens[:, t])
        torch.testing.assert_close(logits, expected[:, t], **invariants.CLOSE)


@needs_native
@pytest.mark.parametrize("config", CONFIGS[:2] + CONFIGS[-1:], ids=config_id)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_number_of_threads_changes_nothing(config: Any, count: int, threads: None) -> None:
    torch.manual_seed(3)
    model = make_model(config)
    tokens = torch.randint(V, (3, 6))
    torch.set_num_threads(1)
    with torch.no_grad():
        expected, _ = model(tokens, model.init_state(3))
    torch.set_num_threads(count)
    session = Session(model, model.init_state(3))
    stepped = torch.stack([session.step(tokens[:, t]) for t in range(6)], 1)
    torch.testing.assert_close(stepped, expected, **invariants.CLOSE)


def decode(model: LanguageModel, tokens: Tensor) -> Tensor:
    session = Session(model, model.init_state(len(tokens)))
    return torch.stack([session.step(tokens[:, t]) for t in range(tokens.shape[1])], 1)


def test_three_python_threads_share_a_model() -> None:
    torch.manual_seed(4)
    model = make_model(CONFIGS[0])
    streams = [torch.randint(V, (B, 60)) for B in (1, 2, 3)]
    expected = [decode(model, tokens) for tokens in streams]
    results: dict[int, Tensor] = {}
    workers = [
        threading.Thread(target=lambda i=i: results.update({i: decode(model, streams[i])}))  # type: ignore[misc]
        for i in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(results[i], expected[i]) for i in range(3))


def test_parameters_are_prepared_once_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(CONFIGS[0])
    made: list[Any] = []
    create = programs.Program.__init__
    monkeypatch.setattr(programs.Program, "__init__", lambda self, model: (made.append(self), create(self, model))[1])
    for _ in range(3):
        decode(model, torch.zeros(1, 2, dtype=torch.int64))
    assert len(made) == 1
    before = decode(model, torch.tensor([[1, 2]]))
    with torch.no_grad():
        model.core.layers[1].attention.out.weight.mul_(2)  # type: ignore[union-attr, operator]
    after = decode(model, torch.tensor([[1, 2]]))
    assert len(made) == 2 and not torch.allclose(before, after)
    head = model.head
    model.head = torch.nn.Linear(37, V).double()
    assert not torch.allclose(decode(model, torch.tensor([[1, 2]])), after) and len(made) == 3
    model.head = head
    assert torch.equal(decode(model, torch.tensor([[1, 2]])), after)


def test_a_program_does_not_keep_its_model_alive() -> None:
    model = make_model(CONFIGS[0])
    decode(model, torch.tensor([[1, 2]]))
    program, reference = weakref.ref(cached_program(model)), weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None and program() is None


@needs_native
def test_matrices_are_packed_once_in_one_buffer() -> None:
    model = make_model(CONFIGS[0])
    program = cached_program(model).native
    assert program is not None
    matrices = [program.tensors[i] for i in program.matrices]
    storages = {matrix.untyped_storage().data_ptr() for matrix in matrices if matrix is not None}
    assert len(storages) == 1
    sessions = [Session(model, model.init_state(B)) for B in (1, 2)]
    assert all(session.program.native is program for session in sessions)
    # Norms are read in place.
    addresses = {tensor.data_ptr() for tensor in program.tensors if tensor is not None}
    assert model.core.layers[0].attention_norm.weight.data_ptr() in addresses  # type: ignore[union-attr, index]


@needs_native
@pytest.mark.parametrize("count", [2, 3])
def test_the_number_of_running_threads_does_not_affect_rounding(count: int, threads: None) -> None:
    """A step is divided into as many parts as there are threads, even if one thread runs all of them."""
    torch.manual_seed(5)
    model = make_model(CONFIGS[0])
    tokens = torch.randint(V, (1, 30))
    torch.set_num_threads(count)
    expected = decode(model, tokens)
    results: list[Tensor] = []

    def decode_again() -> None:
        torch.set_num_threads(count)
        results.append(decode(model, tokens))

    # Barriers are slow while more threads decode than there are cores, so that some steps run on one thread.
    workers = [threading.Thread(target=decode_again) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 3 and all(torch.equal(result, expected) for result in results)
