"""Under autocast on the CPU the fast engines compute in the parameters' type, and say so once; on an accelerator the
reference runs, whose operations autocast can see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import fast
from stairwell.configs import field_types
from stairwell.cores import CORES, build
from stairwell.cores.core import tell_once
from tests import laws

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3, "passes": 2}
engines = pytest.mark.parametrize("name", sorted(name for name, entry in CORES.items() if entry.engine is not None))


def make(name: str, engine: str = "fast", **options: Any) -> Any:
    fields = field_types(CORES[name].config)
    sizes = {key: value for key, value in {**SIZES, **options}.items() if key in fields}
    if name == "memory-network":
        sizes["passes"] = 6
    torch.manual_seed(0)
    core = laws.scramble(build(CORES[name].config(**sizes)))
    fast.choose_engine(core, engine)
    return core


def gradients(core: Any, x: Tensor, within: bool) -> list[Tensor]:
    """The output, and the gradient of every parameter; `within`: taken within autocast, too."""
    core.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=within):
        y, state = core(x, core.init_state(len(x)))
        y = torch.cat([y, core(x, state)[0]], 1)
        y.float().square().sum().backward()
    return [y.detach(), *(parameter.grad for parameter in core.parameters() if parameter.grad is not None)]


@engines
def test_results_are_those_without_autocast(name: str, caplog: pytest.LogCaptureFixture) -> None:
    core, x = make(name), torch.randn(2, 9, 8)
    wanted = gradients(core, x, within=False)
    tell_once.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert core.engine_name.startswith("fast")
        y, state = core(x, core.init_state(2))
        assert y.dtype == torch.float32 and torch.equal(y, wanted[0][:, :9])
        core(x.bfloat16(), state)  # what a layer before may hand over
    assert [record.message.startswith("autocast to torch.bfloat16 does not apply") for record in caplog.records] == [True]
    core(x, state)  # what autocast leaves behind is still this model's
    # First derivatives: what is written by hand keeps its types even where backward is called within autocast.
    for found, exact in zip(gradients(core, x, within=True), wanted, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


@engines
def test_it_is_at_least_as_exact_as_the_reference_under_autocast(name: str) -> None:
    x = torch.randn(2, 12, 8)
    exact = make(name, "reference").double()
    y, _ = exact(x.double(), exact.init_state(2))
    errors = {}
    for engine in ("fast", "reference"):
        core = make(name, engine)
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = core(x, core.init_state(2))
        errors[engine] = float((found - y).detach().abs().max())
    assert errors["fast"] < 0.1 * errors["reference"]


def test_a_source_in_the_narrow_type_is_taken() -> None:
    core = make("feedback", cross=True)
    x, source = torch.randn(2, 9, 8), torch.randn(2, 4, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = core(x, core.init_state(2), None, source)
    torch.testing.assert_close(y, core(x, core.init_state(2), None, source.float())[0], rtol=0, atol=0)


@engines
def test_on_an_accelerator_the_reference_runs_and_that_is_said_once(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, x = make(name), torch.randn(2, 9, 8)
    monkeypatch.setattr("stairwell.fast.engine.on_accelerator", lambda x: True)
    tell_once.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert core.engine_name == "reference"
        found = [core(x, core.init_state(2))[0] for _ in range(2)]
        assert torch.equal(found[0], core.walk(x, core.init_state(2), None, None, None)[0])
    assert ["autocast" in record.message for record in caplog.records] == [True]
    assert core.engine_name.startswith("fast")
