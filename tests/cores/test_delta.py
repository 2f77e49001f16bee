"""DeltaNet, worked out by separate straight-line code, and what its options come to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.cores import build
from stairwell.cores.delta import DeltaNetConfig
from tests import laws

Array = np.ndarray


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + 1e-5) * weight + bias


class Hand:
    """One layer by hand, one token a call; each head's matrix maps keys to values, as the papers write it: v = S k."""

    def __init__(self, core: torch.nn.Module, l: int, config: DeltaNetConfig) -> None:
        self.w = {
            name.removeprefix(f"layers.{l}."): tensor.detach().numpy()
            for name, tensor in core.state_dict().items()
            if name.startswith(f"layers.{l}.")
        }
        self.config = config
        self.S = [np.zeros((config.K, config.K)) for _ in range(config.heads)]

    def normed(self, which: str, x: Array) -> Array:
        return layer_norm(x, self.w[f"{which}.weight"], self.w[f"{which}.bias"])

    def step(self, x: Array) -> Array:
        w, H, K = self.w, self.config.heads, self.config.K
        u = self.normed("mix_norm", x)
        reads = []
        for h in range(H):
            own = slice(h * K, (h + 1) * K)
            if self.config.gated:
                self.S[h] = self.S[h] * sigmoid(w["keep.weight"] @ u + w["keep.bias"])[h]
            for j in range(self.config.products):
                rows = slice((j * H + h) * K, (j * H + h + 1) * K)
                k = silu(w["key.weight"] @ u)[rows]
                k = k / math.sqrt((k**2).sum())
                v = silu(w["value.weight"] @ u)[rows]
                beta = sigmoid(w["strength.weight"] @ u)[j * H + h] * (2 if self.config.negative_eigenvalues else 1)
                # S_t = S_{t-1} (I - beta k k^T) + beta v k^T
                self.S[h] = self.S[h] @ (np.eye(K) - beta * np.outer(k, k)) + beta * np.outer(v, k)
            q = silu(w["query.weight"] @ u)[own]
            o = self.S[h] @ (q / math.sqrt((q**2).sum()))
            reads.append(o / math.sqrt((o**2).mean() + 1e-5) * w["head_norm.weight"])
        z = x + w["out.weight"] @ np.concatenate(reads)
        inner = w["feed_forward.0.weight"] @ self.normed("feed_forward_norm", z) + w["feed_forward.0.bias"]
        return z + w["feed_forward.2.weight"] @ np.maximum(inner, 0) + w["feed_forward.2.bias"]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("products", [1, 2])
def test_deltanet_by_hand(products: int, negative: bool, gated: bool) -> None:
    config = DeltaNetConfig(
        width=4, heads=2, head_width=3, inner=5, products=products, negative_eigenvalues=negative, gated=gated
    )
    torch.manual_seed(11)
    core: Any = laws.scramble(build(config)).double()
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    y, state = core(x, core.init_state(1))
    layers = [Hand(core, l, config) for l in range(2)]
    for t in range(9):
        vector = x[0, t].numpy()
        for layer in layers:
            vector = layer.step(vector)
        np.testing.assert_allclose(y[0, t].detach().numpy(), vector, rtol=1e-10, atol=1e-12)
    for l, layer in enumerate(layers):
        for h in range(2):
            np.testing.assert_allclose(state.matrix[0, l, h].detach().numpy().T, layer.S[h], rtol=1e-10, atol=1e-12)


def scrambled(config: DeltaNetConfig) -> Any:
    torch.manual_seed(3)
    return laws.scramble(build(config)).double()


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
    torch.testing.assert_close(twice(x, twice.init_state(2))[0], once(x, once.init_state(2))[0], **laws.CLOSE)


def test_a_gate_that_keeps_everything_is_no_gate() -> None:
    plain = scrambled(DeltaNetConfig(width=4, heads=2, products=2))
    gated = scrambled(DeltaNetConfig(width=4, heads=2, products=2, gated=True))
    missing, _ = gated.load_state_dict(plain.state_dict(), strict=False)
    assert missing == [f"layers.{l}.keep.{name}" for l in range(2) for name in ("weight", "bias")]
    for layer in gated.layers:
        torch.nn.init.zeros_(layer.keep.weight)
        torch.nn.init.constant_(layer.keep.bias, 50.0)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(gated(x, gated.init_state(2))[0], plain(x, plain.init_state(2))[0], **laws.CLOSE)


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
    with pytest.raises(ValueError, match="DeltaNet cannot take tokens back"):
        core.init_state(2).crop(1)
    with pytest.raises(ValueError, match="use slack=0"):
        core.init_state(2, slack=1)


def test_sizes_that_make_no_sense_are_refused() -> None:
    for options, message in (
        ({"products": 0}, "products must be at least 1, not 0"),
        ({"head_width": 0}, "head_width must be at least 1, not 0"),
        ({"width": 6, "heads": 4}, "width 6 is not divisible by 4 heads"),
    ):
        with pytest.raises(ValueError, match=message):
            DeltaNetConfig(**options)  # type: ignore[arg-type]
