"""DeltaNet, worked out by separate straight-line code, and what its options come to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from examples import listings
from stairwell.cores import build
from stairwell.cores.delta import DeltaNetConfig
from tests import invariants


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("products", [1, 2])
def test_deltanet_by_hand(products: int, negative: bool, gated: bool) -> None:
    config = DeltaNetConfig(
        width=4, heads=2, head_width=3, inner=5, products=products, negative_eigenvalues=negative, gated=gated
    )
    torch.manual_seed(11)
    core: Any = invariants.scramble(build(config)).double()
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    y, _ = core(x, core.init_state(1))
    w = {name: tensor.numpy() for name, tensor in core.state_dict().items()}
    listed = listings.deltanet(w, x[0].numpy(), H=2, n=products, largest=2 if negative else 1, gated=gated)
    np.testing.assert_allclose(y[0].detach().numpy(), listed, rtol=1e-10, atol=1e-12)


def scrambled(config: DeltaNetConfig) -> Any:
    torch.manual_seed(3)
    return invariants.scramble(build(config)).double()


def test_correcting_twice_to_the_same_value_is_correcting_once() -> None:
    """With strength 1 what S holds at k is v after the first product, and the second finds nothing to correct."""
    once = scrambled(DeltaNetConfig(width=4, heads=2, products=1))
    twice = scrambled(DeltaNetConfig(width=4, heads=2, products=2))
    weights = {name: tensor.clone() for name, tensor in once.state_dict().items()}
    for name in list(weights):
        if name.endswith("strength.weight"):
            weights[name].zero_()  # 2 sigmoid(0) = 1
    once.load_state_dict(weights)
    for name in weights:
        if name.endswith(("key.weight", "value.weight", "strength.weight")):
            weights[name] = torch.cat([weights[name]] * 2)
    twice.load_state_dict(weights)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(twice(x, twice.init_state(2))[0], once(x, once.init_state(2))[0], **invariants.CLOSE)


def test_a_gate_that_keeps_everything_is_no_gate() -> None:
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
def test_only_negative_eigenvalues_flip_what_is_held(negative: bool) -> None:
    """The eigenvalue of a correction at its own key is 1 - b: in [-1, 1] or in [0, 1]."""
    core = scrambled(DeltaNetConfig(width=8, heads=2, layers=1, negative_eigenvalues=negative))
    todo = core.layers[0].corrections(10 * torch.randn(1, 500, 8, dtype=torch.float64))
    eigenvalues = 1 - todo.b
    assert eigenvalues.min() >= -1 and eigenvalues.max() <= 1
    assert (eigenvalues.min() < -0.5) == negative and (eigenvalues.min() >= 0) != negative
    torch.testing.assert_close(todo.k.norm(dim=-1), torch.ones_like(todo.k[..., 0]))


def test_a_deltanet_says_that_it_cannot_crop() -> None:
    core = build(DeltaNetConfig(width=4))
    with pytest.raises(ValueError, match="DeltaNetState cannot take tokens back"):
        core.init_state(2).crop(1)
    with pytest.raises(ValueError, match="use max_crop=0"):
        core.init_state(2, max_crop=1)


def test_sizes_that_make_no_sense_are_refused() -> None:
    for options, message in (
        ({"products": 0}, "products must be at least 1, not 0"),
        ({"head_width": 0}, "head_width must be at least 1, not 0"),
        ({"width": 6, "heads": 4}, "width 6 is not divisible by 4 heads"),
    ):
        with pytest.raises(ValueError, match=message):
            DeltaNetConfig(**options)  # type: ignore[arg-type]
