"""The fast engines over time: they hold on to nothing, can be exchanged in the middle of a training, and do not depend
on how many threads there are."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, TransformerXLConfig
from stairwell.cores.delta import DeltaNetConfig
from stairwell.cores.staircase import StaircaseConfig
from stairwell.decode import Session
from stairwell.fast import choose_engine, native
from stairwell.runs import RunConfig, preset
from stairwell.runs.launch import Job, train
from stairwell.train.run import Run
from tests import invariants
from tests.commands import measured, weights

LIBC = ctypes.CDLL(None)
STEPS = 1000
ROOM = 100_000  # bytes that a process may grow by in STEPS steps: a hundred a step, less than any tensor
ROWS, TOKENS, SYMBOLS = 8, 16, 64

needs_native = pytest.mark.skipif(bool(native.MISSING), reason=native.MISSING or "built")
needs_glibc = pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="glibc tells what is in use, from 2.33 on")


class MallocInfo(ctypes.Structure):
    """What glibc's mallinfo2 tells; `uordblks` and `hblkhd` are the bytes in use, in its heaps and in maps."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def held() -> int:
    """Bytes that the process has asked for and not given back. The resident size would not do: memory that an earlier
    test has freed lies there to be used again, and a leak of that size would not be seen."""
    gc.collect()
    ask = LIBC.mallinfo2
    ask.restype = MallocInfo
    found = ask()
    return int(found.uordblks + found.hblkhd)


def size_schedule(step: Callable[[], None]) -> int:
    """Bytes by which the process grows in STEPS steps, after as many as it takes for everything to be in place."""
    for _ in range(100):
        step()
    before = held()
    for _ in range(STEPS):
        step()
    return held() - before


def tiny_model() -> LanguageModel:
    torch.manual_seed(0)
    core = FeedbackConfig(width=32, heads=2, inner=32, layers=2, memory=8, attention_dropout=0.1)
    return LanguageModel(LanguageModelConfig(core=core, inputs=SYMBOLS))


@needs_native
@needs_glibc
def test_a_long_training_does_not_grow() -> None:
    model = tiny_model().train()
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(SYMBOLS, (2, ROWS, TOKENS))
    state = model.init_state(ROWS)

    def step() -> None:
        nonlocal state
        optimizer.zero_grad()
        losses, after = model.nll(tokens, targets, state)
        losses.mean().backward()
        optimizer.step()
        state = after.detach()

    assert size_schedule(step) < ROOM


@needs_glibc
def test_a_long_stream_of_decoding_does_not_grow() -> None:
    model = tiny_model().eval()
    session = Session(model, model.init_state(ROWS))
    tokens = torch.zeros(ROWS, dtype=torch.int64)

    def step() -> None:
        nonlocal tokens
        tokens = session.step(tokens).argmax(-1)

    assert size_schedule(step) < ROOM


FIRST, ALL = 3, 9  # updates before the engine changes, and in all
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
    """In float32 rounding alone turns a ReLU here and there, and Adam makes much of little."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train_to(experiment: RunConfig, folder: Path, steps: int, engine: str) -> None:
    """Begin a training or go on with it, and make sure that the engine asked for is the one that runs."""
    run, titles = Run(folder), []

    def show(title: str, *_: int) -> Any:
        titles.append(title)
        return nullcontext(lambda event: None)

    asked = dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, steps=steps))
    train(Job(asked, run, resume=run.exists), "cpu", engine, show)
    assert f"engine: {engine}" in titles[0], titles


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", TRAINED)
def test_a_training_goes_on_with_the_other_engine(name: str, tmp_path: Path) -> None:
    """Weights, optimizer, states and metrics are what either engine alone would have come to."""
    experiment = preset(name).with_options({**SMALL, **TRAINED[name]})
    for one, other in (("fast", "reference"), ("reference", "fast")):
        train_to(experiment, tmp_path / one, ALL, one)
        train_to(experiment, tmp_path / f"{one}, {other}", FIRST, one)
        train_to(experiment, tmp_path / f"{one}, {other}", ALL, other)
    expected, *others = sorted(tmp_path.iterdir())
    for found in others:
        assert_nearly_same(found, expected)


def assert_nearly_same(found: Path, expected: Path) -> None:
    ours, theirs = weights(found), weights(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if tensor is not None:
            torch.testing.assert_close(ours[name], tensor, rtol=1e-7, atol=1e-9)
    for line, other in zip(measured(found), measured(expected), strict=True):
        torch.testing.assert_close(line, other, rtol=1e-5, atol=1e-7)  # losses are added up in float32


class Recorder(TorchDispatchMode):
    """The operators of the extension that were called, each with the arguments of its first call as they were."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "stairwell" and func not in self.calls:
            self.calls[func] = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), args)
        return func(*args, **(kwargs or {}))


@needs_native
def test_every_operator_of_the_extension_passes_opcheck() -> None:
    """Schemas and shapes, of what fills a trace and of what fills gradients."""
    small: dict[str, Any] = {"width": 4, "heads": 2, "inner": 3, "layers": 2}
    feedback, staircase = FeedbackConfig(**small, memory=3), StaircaseConfig(**small, chunk=2, passes=2)
    with Recorder() as recorder:
        for config in (feedback, staircase, DeltaNetConfig(**small)):
            case = invariants.make_case(config, B=2, T=5, starts=0.0)
            choose_engine(case.core, "fast")
            invariants.weighed(*case.run(case.x, case.state, None)).backward()
        native.log_sums(torch.randn(2, 3, 70))
        native.highest(torch.randn(2, 3, 70), 4)
    for operator, arguments in recorder.calls.items():
        torch.library.opcheck(operator, arguments)
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("stairwell::")}
    assert registered == {operator._schema.name for operator in recorder.calls}


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# Large enough for torch to share its work among threads; no larger, because they wait for each other at every product.
SIZES: dict[str, Any] = {"width": 32, "heads": 2}
CONFIGS = [
    FeedbackConfig(memory=20, layers=2, **SIZES),
    TransformerXLConfig(memory=20, layers=2, **SIZES),
    StaircaseConfig(passes=2, chunk=8, layers=1, **SIZES),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_any_number_of_threads_gives_the_same_with_dropout(config: Any, threads: Any) -> None:
    case = invariants.make_case(config, B=35, T=8, starts=0, warm=8)
    choose_engine(case.core, "fast")
    engine = case.core.engine
    assert engine is not None
    masks = invariants.draw_masks(case, 0.2, 0.2, 0.0)
    results = []
    for count in (1, 2, 8):
        threads(count)
        x = case.x.clone().requires_grad_()
        y, after = engine(case.core, x, case.state, case.start, None, masks)
        results.append([y, *invariants.gradients(case, invariants.weighed(y, after), x)])
    for result in results[1:]:
        invariants.assert_close(result, results[0], "result")
