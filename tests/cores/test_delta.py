"""DeltaNet against its listing, and its options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from examples import listings
from stairwell.cores import build
from stairwell.cores.delta import DeltaNetConfig
from tests import invariants

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("products", [1, 2])
def test_deltanet_equals_its_listing(products: int, negative: bool, gated: bool) -> None:
    config = DeltaNetConfig(
        width=4, heads=2, head_width=3, inner=5, products=products, negative_eigenvalues=negative, gated=gated
    )
    torch.manual_seed(11)
    core: Any = invariants.scramble(build(config)).double()
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    y, _ = core(x, core.init_state(1))
    w = {name: tensor.numpy() for name, tensor in core.state_dict().items()}
    expected = listings.deltanet(w, x[0].numpy(), H=2, n=products, largest=2 if negative else 1, gated=gated)
    np.testing.assert_allclose(y[0].detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def scrambled(config: DeltaNetConfig) -> Any:
    torch.manual_seed(3)
    return invariants.scramble(build(config)).double()


def test_two_equal_corrections_equal_one() -> None:
    """With b = 1 the value of S at k is v after the first correction, and the second changes nothing."""
    one = scrambled(DeltaNetConfig(width=4, heads=2, products=1))
    two = scrambled(DeltaNetConfig(width=4, heads=2, products=2))
    parameters = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    for name in list(parameters):
        if name.endswith("strength.weight"):
            parameters[name].zero_()  # 2 sigmoid(0) = 1
    one.load_state_dict(parameters)
    for name in parameters:
        if name.endswith(("key.weight", "value.weight", "strength.weight")):
            parameters[name] = torch.cat([parameters[name]] * 2)
    two.load_state_dict(parameters)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(two(x, two.init_state(2))[0], one(x, one.init_state(2))[0], **invariants.CLOSE)


def test_an_open_gate_equals_no_gate() -> None:
    plain = scrambled(DeltaNetConfig(width=4, heads=2, products=2))
    gated = scrambled(DeltaNetConfig(width=4, heads=2, products=2, gated=True))
    missing, _ = gated.load_state_dict(plain.state_dict(), strict=False)
    assert missing == [f"layers.{l}.keep.{name}" for l in range(2) for name in ("weight", "bias")]
    for layer in gated.layers:
        torch.nn.init.zeros_(layer.keep.weight)
        torch.nn.init.constant_(layer.keep.bias, 50.0)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(gated(x, gated.init_state(2))[0], plain(x, plain.init_state(2))[0], **invariants.CLOSE)


@pytest.mark.parametrize("negative", [False, True])
def test_eigenvalues_are_negative_only_if_allowed(negative: bool) -> None:
    """The eigenvalue of a correction at its key is 1 - b: in [-1, 1] or in [0, 1]."""
    core = scrambled(DeltaNetConfig(width=8, heads=2, layers=1, negative_eigenvalues=negative))
    corrections = core.layers[0].corrections(10 * torch.randn(1, 500, 8, dtype=torch.float64))
    eigenvalues = 1 - corrections.b
    assert eigenvalues.min() >= -1 and eigenvalues.max() <= 1
    assert (eigenvalues.min() < -0.5) == negative and (eigenvalues.min() >= 0) != negative
    torch.testing.assert_close(corrections.k.norm(dim=-1), torch.ones_like(corrections.k[..., 0]))


def test_deltanet_does_not_support_crop() -> None:
    core = build(DeltaNetConfig(width=4))
    with pytest.raises(ValueError, match="DeltaNetState does not support crop"):
        core.init_state(2).crop(1)
    with pytest.raises(ValueError, match="use max_crop=0"):
        core.init_state(2, max_crop=1)


def test_wrong_sizes_raise() -> None:
    for options, message in (
        ({"products": 0}, "products must be at least 1, not 0"),
        ({"head_width": 0}, "head_width must be at least 1, not 0"),
        ({"width": 6, "heads": 4}, "width 6 is not divisible by 4 heads"),
    ):
        with pytest.raises(ValueError, match=message):
            DeltaNetConfig(**options)  # type: ignore[arg-type]
