"""Higher and forward-mode derivatives are correct (by the reference engine) or raise an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import functional_call, grad, jacrev, jvp, vmap

from stairwell.cores import Core
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import CachedStaircaseConfig, StaircaseConfig
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.fast import choose_engine
from tests import invariants

pytestmark = pytest.mark.quick

SHAPE: dict[str, Any] = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
CONFIGS = [
    FeedbackConfig(**SHAPE, memory=3),
    TransformerXLConfig(**SHAPE, memory=3),
    UniversalConfig(**SHAPE, memory=3, passes=2),
    StaircaseConfig(**SHAPE, chunk=2, passes=2),
    CachedStaircaseConfig(**SHAPE, chunk=2, passes=3),
]
B, T = 3, 5
every_core = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)


def core_and_input(config: Any, engine: str) -> tuple[Core, Tensor]:
    case = invariants.make_case(config, B, T, starts=0, warm=0)
    choose_engine(case.core, engine)
    return case.core, case.x


def energy(core: Core) -> Callable[[Tensor], Tensor]:
    """Return a nonlinear function of the output, so that second derivatives have all terms."""
    return lambda x: core(x, core.init_state(x.shape[0]))[0].square().sum()


def directional(core: Core, x: Tensor) -> Any:
    return jvp(energy(core), (x,), (torch.ones_like(x),))


def per_stream_gradients(core: Core, x: Tensor) -> Any:
    return vmap(grad(lambda stream: energy(core)(stream[None])))(x)


def several_models(core: Core, x: Tensor) -> Any:
    """Run with several sets of parameters at once."""
    weights = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in core.named_parameters()}
    return vmap(lambda w: functional_call(core, w, (x, core.init_state(B)))[0])(weights)


def token_jacobian(core: Core, x: Tensor) -> Any:
    return jacrev(lambda x: core(x, core.init_state(B))[0].sum((0, 2)))(x)


def curvature(core: Core, x: Tensor) -> Any:
    return grad(lambda x: grad(energy(core))(x).sum())(x)


@every_core
@pytest.mark.parametrize("transform", [directional, per_stream_gradients, several_models, token_jacobian, curvature])
def test_transforms_of_torch_func_give_the_results_of_the_reference(transform: Any, config: Any) -> None:
    expected, actual = (transform(*core_and_input(config, engine)) for engine in ("reference", "auto"))
    torch.testing.assert_close(actual, expected, **invariants.CLOSE)


@every_core
def test_second_derivatives_raise_a_one_line_error(config: Any) -> None:
    """If terms were silently missing, a gradient penalty would train towards another objective."""
    core, x = core_and_input(config, "auto")
    x.requires_grad_()
    with pytest.raises(RuntimeError, match=r"no second derivatives .*; use engine='reference'") as raised:
        (first,) = torch.autograd.grad(energy(core)(x), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)
    assert "\n" not in str(raised.value)
    with pytest.raises(RuntimeError, match="use engine='reference'"):
        torch.autograd.functional.hvp(energy(core), x, torch.ones_like(x))


@every_core
def test_second_derivatives_of_the_reference_equal_finite_differences(config: Any) -> None:
    core, x = core_and_input(config, "reference")
    x.requires_grad_()
    (first,) = torch.autograd.grad(energy(core)(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    step = 1e-6
    gradients = [torch.autograd.grad(energy(core)(x + sign * step), x)[0] for sign in (1, -1)]
    torch.testing.assert_close(second, (gradients[0] - gradients[1]) / (2 * step), rtol=1e-5, atol=1e-6)


@every_core
def test_forward_mode_raises_a_one_line_error(config: Any) -> None:
    core, x = core_and_input(config, "auto")
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward-mode derivatives; use engine='reference'"):
        core(forward_ad.make_dual(x, torch.ones_like(x)), core.init_state(B))
