"""The fast engines in long runs: no memory leaks, and the same results after switching engines during training and with
any number of threads."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, TransformerXLConfig
from stairwell.cores.delta import DeltaNetConfig
from stairwell.cores.feedback import Feedback
from stairwell.cores.staircase import StaircaseConfig
from stairwell.decode import Session
from stairwell.fast import choose_engine, native
from stairwell.fast.feedback import FeedbackEngine
from stairwell.runs import RunConfig, preset
from stairwell.runs.launch import train
from stairwell.runs.run import Run
from tests import invariants
from tests.commands import read_metrics, saved_tensors

LIBC = ctypes.CDLL(None)
STEPS = 1000
MAX_GROWTH = 100_000  # bytes that a process may grow in STEPS steps: a hundred per step, less than any tensor
BATCH, TOKENS, VOCABULARY = 8, 16, 64

needs_native = pytest.mark.skipif(bool(native.UNAVAILABLE_REASON), reason=native.UNAVAILABLE_REASON or "built")
needs_glibc = pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="needs mallinfo2 of glibc 2.33")


class MallocInfo(ctypes.Structure):
    """The result of glibc's mallinfo2; `uordblks` and `hblkhd` are the bytes in use, in its heaps and in mappings."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def allocated_bytes() -> int:
    """Return the bytes that the process has allocated and not freed. The resident size would hide leaks: it includes
    memory that earlier tests have freed and that is reused."""
    gc.collect()
    mallinfo = LIBC.mallinfo2
    mallinfo.restype = MallocInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def memory_growth(step: Callable[[], None]) -> int:
    """Return the bytes by which the process grows in STEPS steps, after a warm-up."""
    for _ in range(100):
        step()
    before = allocated_bytes()
    for _ in range(STEPS):
        step()
    return allocated_bytes() - before


def tiny_model(dropout: float = 0.1) -> LanguageModel:
    torch.manual_seed(0)
    core = FeedbackConfig(width=32, heads=2, inner=32, layers=2, memory=8, attention_dropout=dropout)
    return LanguageModel(LanguageModelConfig(core=core, inputs=VOCABULARY))


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def training_step(model: LanguageModel, seed: int = 0) -> Callable[[], None]:
    """Return a step of truncated backpropagation through time with Adam."""
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, TOKENS), generator=torch.Generator().manual_seed(seed))
    state = model.init_state(BATCH)

    def step() -> None:
        nonlocal state
        optimizer.zero_grad()
        losses, after = model.nll(tokens, targets, state)
        losses.mean().backward()
        optimizer.step()
        state = after.detach()

    return step


def use_schedule(model: LanguageModel, schedule: Any, kv_precision: Any = "float32") -> LanguageModel:
    assert isinstance(model.core, Feedback)
    model.core.engine = FeedbackEngine(native.NativeBackend(schedule=schedule))
    model.core.kv_precision = kv_precision
    return model


@needs_native
@needs_glibc
@pytest.mark.parametrize("schedule", ["streams", "columns"])
def test_memory_does_not_grow_in_a_long_training_run(schedule: str) -> None:
    step = training_step(use_schedule(tiny_model().train(), schedule))
    assert memory_growth(step) < MAX_GROWTH


@needs_native
@pytest.mark.parametrize("schedule", ["streams", "columns"])
@pytest.mark.parametrize("kv_precision", ["float32", "bf16"])
def test_three_python_threads_train_at_once(schedule: str, kv_precision: str, threads: Any) -> None:
    """Each trains its own model on two threads, with the same results as alone."""

    def train_alone(seed: int) -> list[Tensor]:
        torch.set_num_threads(2)  # the number belongs to the calling thread
        model = use_schedule(copy.deepcopy(initial), schedule, kv_precision)
        step = training_step(model, seed)
        for _ in range(3):
            step()
        return [parameter.detach() for parameter in model.parameters()]

    initial = tiny_model(dropout=0).train()  # threads share the random generator of dropout
    expected = [train_alone(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for actual, alone in zip(pool.map(train_alone, range(3)), expected, strict=True):
            torch.testing.assert_close(actual, alone)


@needs_glibc
def test_memory_does_not_grow_in_a_long_decoding_session() -> None:
    model = tiny_model().eval()
    session = Session(model, model.init_state(BATCH))
    tokens = torch.zeros(BATCH, dtype=torch.int64)

    def step() -> None:
        nonlocal tokens
        tokens = session.step(tokens).argmax(-1)

    assert memory_growth(step) < MAX_GROWTH


SWITCH_STEP, STEPS_IN_TOTAL = 3, 9  # steps before the engine changes, and in total
TRAINED = {
    "random-walk/feedback": {"core.memory": "6"},
    "random-walk/transformer-xl": {"core.memory": "6"},
    "random-walk/staircase": {"core.chunk": "3", "core.passes": "2"},
}
SMALL = {
    "core.width": "8", "core.layers": "2", "core.heads": "2", "core.attention_dropout": "0.2",
    "core.relu_dropout": "0.2", "model.embedding_dropout": "0.1", "train.batch": "4", "train.segment": "8",
    "train.log_every": "1", "train.validate_every": "3", "train.valid_batch": "2", "train.warmup": "2",
    "train.curriculum": "", "task.length": "8", "task.valid_episodes": "4", "task.test_episodes": "4",
}  # fmt: skip


@pytest.fixture
def in_float64() -> Iterator[None]:
    """In float32, rounding alone flips some ReLUs, and Adam amplifies that."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train_to(experiment: RunConfig, folder: Path, steps: int, engine: str) -> None:
    """Start or resume a run, and check that the requested engine is used."""
    run, titles = Run(folder), []

    def show(title: str, *_: int) -> Any:
        titles.append(title)
        return nullcontext(lambda event: None)

    config = dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, steps=steps))
    train(config, run, resume=run.exists, device="cpu", engine=engine, show=show)
    assert f"engine: {engine}" in titles[0], titles


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", TRAINED)
def test_a_run_resumes_with_the_other_engine(name: str, tmp_path: Path) -> None:
    """Parameters and metrics equal those of a run with one engine."""
    experiment = preset(name).with_options({**SMALL, **TRAINED[name]})
    for first, second in (("fast", "reference"), ("reference", "fast")):
        train_to(experiment, tmp_path / first, STEPS_IN_TOTAL, first)
        train_to(experiment, tmp_path / f"{first}, {second}", SWITCH_STEP, first)
        train_to(experiment, tmp_path / f"{first}, {second}", STEPS_IN_TOTAL, second)
    expected, *others = sorted(tmp_path.iterdir())
    for actual in others:
        assert_nearly_same(actual, expected)


def assert_nearly_same(actual: Path, expected: Path) -> None:
    ours, theirs = saved_tensors(actual), saved_tensors(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if tensor is not None:
            torch.testing.assert_close(ours[name], tensor, rtol=1e-7, atol=1e-9)
    for line, other in zip(read_metrics(actual), read_metrics(expected), strict=True):
        torch.testing.assert_close(line, other, rtol=1e-5, atol=1e-7)  # losses are summed in float32


class Recorder(TorchDispatchMode):
    """Record the native operators that were called, with the arguments of each one's first call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "stairwell" and func not in self.calls:
            self.calls[func] = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), args)
        return func(*args, **(kwargs or {}))


@needs_native
def test_every_native_operator_passes_opcheck() -> None:
    small: dict[str, Any] = {"width": 4, "heads": 2, "inner": 3, "layers": 2}
    feedback, staircase = FeedbackConfig(**small, memory=3), StaircaseConfig(**small, chunk=2, passes=2)
    with Recorder() as recorder:
        for config in (feedback, staircase, DeltaNetConfig(**small)):
            case = invariants.make_case(config, B=2, T=5, starts=0.0)
            choose_engine(case.core, "fast")
            invariants.random_projection(*case.run(case.x, case.state, None)).backward()
        native.logsumexp(torch.randn(2, 3, 70))
        native.topk(torch.randn(2, 3, 70), 4)
    for operator, arguments in recorder.calls.items():
        torch.library.opcheck(operator, arguments)
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("stairwell::")}
    assert registered == {operator._schema.name for operator in recorder.calls}


# Large enough for torch to use several threads, but no larger, because threads synchronize at every product.
SIZES: dict[str, Any] = {"width": 32, "heads": 2}
CONFIGS = [
    FeedbackConfig(memory=20, layers=2, **SIZES),
    TransformerXLConfig(memory=20, layers=2, **SIZES),
    StaircaseConfig(passes=2, chunk=8, layers=1, **SIZES),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_any_number_of_threads_gives_the_same_results_with_dropout(config: Any, threads: Any) -> None:
    case = invariants.make_case(config, B=35, T=8, starts=0, warm=8)
    choose_engine(case.core, "fast")
    engine = case.core.engine
    assert engine is not None
    masks = invariants.sample_masks(case, 0.2, 0.2, 0.0)
    results = []
    for count in (1, 2, 8):
        threads(count)
        x = case.x.clone().requires_grad_()
        y, after = engine(case.core, x, case.state, case.start, None, masks)
        results.append([y, *invariants.gradients(case, invariants.random_projection(y, after), x)])
    for result in results[1:]:
        invariants.assert_close(result, results[0], "result")
