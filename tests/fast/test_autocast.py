"""Fast engines run under autocast. Those that call modules follow it, but for attention itself; those that are one
operation compute in the parameters' type, and that is said once. None is less exact than the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import fast
from stairwell.configs import field_types
from stairwell.cores import CORES, build
from stairwell.cores.core import tell_once
from tests import invariants

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3, "passes": 2}
engines = pytest.mark.parametrize("name", sorted(name for name, entry in CORES.items() if entry.engine is not None))


def make(name: str, engine: str = "fast", **options: Any) -> Any:
    fields = field_types(CORES[name].config)
    sizes = {key: value for key, value in {**SIZES, **options}.items() if key in fields}
    if name == "memory-network":
        sizes["passes"] = 6
    torch.manual_seed(0)
    core = invariants.scramble(build(CORES[name].config(**sizes)))
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
def test_an_engine_that_is_one_operation_computes_as_without_autocast(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    core, x = make(name), torch.randn(2, 9, 8)
    wanted = gradients(core, x, within=False)
    alone = not core.engine.follows_autocast(core, x)
    assert alone or name not in ("feedback", "deltanet")
    tell_once.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert core.engine_name.startswith("fast")
        y, state = core(x, core.init_state(2))
        assert y.dtype == torch.float32 and torch.equal(y, wanted[0][:, :9]) == alone
        core(x.bfloat16(), state)  # what a layer before may hand over
    told = ["autocast to torch.bfloat16 does not apply" in record.message for record in caplog.records]
    assert told == [True] * alone
    core(x, state)  # what autocast leaves behind is still this model's


@engines
@pytest.mark.parametrize("native", [True, False])
def test_it_is_at_least_as_exact_as_the_reference(name: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, with backward called within autocast too."""
    if not native:
        monkeypatch.setattr("stairwell.fast.native.MISSING", "the native extension was not built")
    x = torch.randn(2, 12, 8)
    exact = make(name, "reference").double()
    wanted = gradients(exact, x.double(), within=False)
    errors = {}
    for engine in ("fast", "reference"):
        found = gradients(make(name, engine), x, within=True)
        errors[engine] = [
            float((ours - theirs).norm() / theirs.norm()) for ours, theirs in zip(found, wanted, strict=True)
        ]
    assert errors["fast"][0] < 1.1 * errors["reference"][0]
    # Single gradients are rounded this way or that.
    assert sum(errors["fast"]) < 1.5 * sum(errors["reference"])


def test_a_source_in_the_narrow_type_is_taken() -> None:
    core = make("feedback", cross=True)
    x, source = torch.randn(2, 9, 8), torch.randn(2, 4, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = core(x, core.init_state(2), None, source)
    torch.testing.assert_close(y, core(x, core.init_state(2), None, source.float())[0], rtol=0, atol=0)
