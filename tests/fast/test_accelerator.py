"""On an accelerator, no call waits for the device unless necessary. Without an accelerator this is tested with the
`meta` device, where reading a value raises, and by counting reads on the CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stairwell import LanguageModel, LanguageModelConfig
from stairwell.cores import CORES
from tests.fast.test_autocast import make

MODULES = ("layers", "state", "fast.feedback", "fast.transformer_xl", "models.language")
READS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "nonzero", "cpu", "numpy")
WINDOWS = ("feedback", "transformer-xl", "universal")


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("starts", [False, True])
def test_cores_with_a_window_do_not_read_values(name: str, engine: str, starts: bool) -> None:
    core = make(name, engine, attention_dropout=0.1, relu_dropout=0.1).to("meta").train()
    x = torch.randn(2, 9, 8, device="meta", requires_grad=True)
    start = torch.zeros(2, 9, dtype=torch.bool, device="meta") if starts else None
    y, state = core(x, core.init_state(2), start)
    y, state = core(x, state, start)
    y.sum().backward()
    assert x.grad is not None and y.shape == x.shape


def test_a_language_model_does_not_read_values() -> None:
    config = LanguageModelConfig(core=CORES["feedback"].config(width=8, heads=2, layers=2, memory=5), inputs=11)
    model = LanguageModel(config).to("meta")
    tokens = torch.zeros(2, 9, dtype=torch.int64, device="meta")
    losses, state = model.nll(tokens, tokens, model.init_state(2))
    losses.sum().backward()
    model.nll(tokens, tokens, state.detach())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often values are read, with the CPU treated as an accelerator."""
    for module in MODULES:
        monkeypatch.setattr(f"stairwell.{module}.on_accelerator", lambda x: True)
    counted: Counter[str] = Counter()

    def counting(name: str) -> Any:
        method = getattr(Tensor, name)

        def method_call(self: Tensor, *arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return method(self, *arguments, **options)

        return method_call

    for name in READS:
        monkeypatch.setattr(Tensor, name, counting(name))
    return counted


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("name", ["staircase", "cached-staircase", "multi-vector-rnn", "memory-network"])
@pytest.mark.parametrize("starts", [False, True])
def test_staircases_read_the_counts_once_per_call(name: str, engine: str, starts: bool, reads: Counter[str]) -> None:
    core, x = make(name, engine), torch.randn(2, 14, 8)
    state = core.init_state(2)
    start = torch.zeros(2, 14, dtype=torch.bool) if starts else None
    if start is not None:
        start[:, 5] = True
    reads.clear()
    core(x, state, start)
    assert reads == {"tolist": 1}


def test_a_growing_cache_needs_no_further_reads(reads: Counter[str]) -> None:
    core, x = make("global-cached-staircase", "reference"), torch.randn(2, 14, 8)
    state = core.init_state(2)
    reads.clear()
    core.reference(x, state)
    assert reads == {"tolist": 1}


def test_learned_spans_are_read_once_per_layer(reads: Counter[str]) -> None:
    core, x = make("staircase", "reference", adaptive_span=True, span_ramp=2), torch.randn(2, 14, 8)
    state = core.init_state(2)
    reads.clear()
    core(x, state)
    assert reads == {"tolist": 1, "__float__": 2}


@pytest.mark.parametrize("name", [name for name, entry in CORES.items() if entry.engine is not None])
def test_nan_never_travels_back_in_time_or_past_a_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stairwell.fast.native.supports", lambda like: False)  # as on an accelerator
    x, start = torch.randn(3, 9, 8), torch.zeros(3, 9, dtype=torch.bool)
    x[:2, 3], start[1:, 5] = torch.nan, True  # token 5 is the first of a chunk in either case
    with torch.no_grad():
        core = make(name, "reference")
        state = core(torch.randn(3, 7, 8), core.init_state(3))[1]
        expected = core(x, state, start)[0]
        monkeypatch.setattr("stairwell.layers.on_accelerator", lambda x: True)
        core = make(name)
        actual = core(x, state, start)[0]
    assert actual[:2, 3].isnan().all()
    assert not actual[:, :3].isnan().any() and not actual[1, 5:].isnan().any() and not actual[2].isnan().any()
    assert torch.equal(actual.isnan(), expected.isnan())


class Products(TorchDispatchMode):
    """Count matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten.bmm.default, torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", WINDOWS)
def test_attention_needs_no_more_products_than_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core, x = make(name, "reference"), torch.randn(2, 9, 8)
    counts, outputs = [], []
    for accelerator in (False, True):
        monkeypatch.setattr("stairwell.layers.on_accelerator", lambda x, accelerator=accelerator: accelerator)
        with torch.no_grad(), Products() as products:
            outputs.append(core(x, core.init_state(2))[0])
        counts.append(products.count)
    assert counts[0] == counts[1] > 0
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)


def test_devices_are_checked_in_one_module() -> None:
    """Exceptions are modules that check for the CPU because only there native code runs."""
    from tools.architecture import PACKAGE

    modules = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(text in path.read_text() for text in (".is_cuda", 'device.type != "cpu"', 'device.type == "cpu"'))
    }
    assert modules - {"devices.py", "report/memory_analysis.py"} == {
        "fast/native.py",
        "fast/buffer_pool.py",
        "fast/linear.py",
    }
