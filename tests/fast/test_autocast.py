"""Fast engines under autocast. Engines that call modules follow autocast except inside attention. Engines that are one
operation compute in the parameters' dtype and log one warning. All are at least as accurate as the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import fast
from stairwell.configs import field_types
from stairwell.cores import CORES, build
from stairwell.cores.core import warn_once
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
    """Return the output and the gradient of every parameter; `within`: under autocast, including backward."""
    core.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=within):
        y, state = core(x, core.init_state(len(x)))
        y = torch.cat([y, core(x, state)[0]], 1)
        y.float().square().sum().backward()
    return [y.detach(), *(parameter.grad for parameter in core.parameters() if parameter.grad is not None)]


@engines
def test_an_engine_that_is_one_operation_ignores_autocast(name: str, caplog: pytest.LogCaptureFixture) -> None:
    core, x = make(name), torch.randn(2, 9, 8)
    expected = gradients(core, x, within=False)
    one_operation = not core.engine.follows_autocast(core, x)
    assert one_operation or name not in ("feedback", "deltanet")
    warn_once.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert core.engine_name.startswith("fast")
        y, state = core(x, core.init_state(2))
        assert y.dtype == torch.float32 and torch.equal(y, expected[0][:, :9]) == one_operation
        core(x.bfloat16(), state)  # the dtype of a preceding layer under autocast
    warnings = ["autocast to torch.bfloat16 does not apply" in record.message for record in caplog.records]
    assert warnings == [True] * one_operation
    core(x, state)  # the state after autocast is still valid


@engines
@pytest.mark.parametrize("native", [True, False])
def test_engines_are_at_least_as_accurate_as_the_reference(
    name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare values and gradients with float64."""
    if not native:
        monkeypatch.setattr("stairwell.fast.native.UNAVAILABLE_REASON", "the native extension was not built")
    x = torch.randn(2, 12, 8)
    exact = make(name, "reference").double()
    expected = gradients(exact, x.double(), within=False)
    errors = {}
    for engine in ("fast", "reference"):
        actual = gradients(make(name, engine), x, within=True)
        errors[engine] = [
            float((ours - theirs).norm() / theirs.norm()) for ours, theirs in zip(actual, expected, strict=True)
        ]
    assert errors["fast"][0] < 1.1 * errors["reference"][0]
    # Individual gradients may be rounded either way, so their sum is compared.
    assert sum(errors["fast"]) < 1.5 * sum(errors["reference"])


def test_a_bfloat16_source_is_accepted() -> None:
    core = make("feedback", cross=True)
    x, source = torch.randn(2, 9, 8), torch.randn(2, 4, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = core(x, core.init_state(2), None, source)
    torch.testing.assert_close(y, core(x, core.init_state(2), None, source.float())[0], rtol=0, atol=0)
