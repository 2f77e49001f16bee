"""One tiny Feedback and one tiny Staircase, worked out by separate straight-line code from the papers' equations.

Nothing here calls the package's layers: numpy, loops over tokens, layers, heads and slots, weights read by name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.cores import build
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import StaircaseConfig
from tests import laws

Array = np.ndarray


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + 1e-5) * weight + bias


class Hand:
    """A layer by hand: `layer(l, x, slots)` where slots are (vector, distance) pairs."""

    def __init__(self, core: torch.nn.Module, heads: int, head_width: int, norm: str, shared: bool, first: int) -> None:
        self.w = {name: tensor.detach().numpy() for name, tensor in core.state_dict().items()}
        self.H, self.K, self.norm, self.shared, self.first = heads, head_width, norm, shared, first

    def normed(self, l: int, which: str, x: Array) -> Array:
        return layer_norm(x, self.w[f"layers.{l}.{which}.weight"], self.w[f"layers.{l}.{which}.bias"])

    def attention(self, l: int, x: Array, slots: list[tuple[Array, int]]) -> Array:
        keys_from = 0 if self.shared else l
        query_input = self.normed(l, "attention_norm", x) if self.norm == "pre" else x
        q = self.w[f"layers.{l}.attention.query.weight"] @ query_input
        heads = []
        for h in range(self.H):
            part = slice(h * self.K, (h + 1) * self.K)
            scores, values = [], []
            for vector, distance in slots:
                m = self.normed(keys_from, "attention_norm", vector) if self.norm == "pre" else vector
                k = (self.w[f"layers.{keys_from}.attention.key.weight"] @ m)[part]
                v = (self.w[f"layers.{keys_from}.attention.value.weight"] @ m)[part]
                p = self.w["position.vectors"][distance - self.first]
                scores.append(float(q[part] @ (k + p)) / math.sqrt(self.K))
                values.append(v)
            if not slots:
                heads.append(np.zeros(self.K))
                continue
            powers = np.exp(np.array(scores) - max(scores))
            heads.append(sum(w * v for w, v in zip(powers / powers.sum(), values)))
        return self.w[f"layers.{l}.attention.out.weight"] @ np.concatenate(heads)

    def feed_forward(self, l: int, x: Array) -> Array:
        inner = self.w[f"layers.{l}.feed_forward.inner.weight"] @ x + self.w[f"layers.{l}.feed_forward.inner.bias"]
        return (
            self.w[f"layers.{l}.feed_forward.out.weight"] @ np.maximum(inner, 0)
            + self.w[f"layers.{l}.feed_forward.out.bias"]
        )

    def layer(self, l: int, x: Array, slots: list[tuple[Array, int]]) -> Array:
        if self.norm == "pre":
            z = x + self.attention(l, x, slots)
            return z + self.feed_forward(l, self.normed(l, "feed_forward_norm", z))
        z = self.normed(l, "attention_norm", x + self.attention(l, x, slots))
        return self.normed(l, "feed_forward_norm", z + self.feed_forward(l, z))


def our_output(config: Any, T: int) -> tuple[torch.nn.Module, Array, Array]:
    torch.manual_seed(11)
    core = laws.scramble(build(config)).double()
    x = torch.randn(1, T, config.width, dtype=torch.float64)
    y, _ = core(x, core.init_state(1))  # type: ignore[operator]
    return core, x[0].numpy(), y[0].detach().numpy()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shared", [True, False])
def test_feedback_by_hand(norm: Any, shared: bool) -> None:
    L, S, T = 2, 3, 8
    config = FeedbackConfig(width=4, heads=2, head_width=3, inner=5, layers=L, memory=S, norm=norm, share_kv=shared)
    core, x, ours = our_output(config, T)
    hand = Hand(core, heads=2, head_width=3, norm=norm, shared=shared, first=1)
    mix = np.exp(hand.w["mix.weights"][0])
    mix /= mix.sum()
    memory: list[Array] = []
    for t in range(T):
        levels = [x[t]]
        for l in range(L):
            slots = [(memory[t - distance], distance) for distance in range(1, S + 1) if t - distance >= 0]
            levels.append(hand.layer(l, levels[-1], slots))
        np.testing.assert_allclose(ours[t], levels[-1], rtol=1e-10, atol=1e-12)
        memory.append(sum(mix[l] * levels[l] for l in range(L + 1)))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_staircase_by_hand(norm: Any) -> None:
    """Equation 3 as it is printed: step by step N chunks on a diagonal go through the core together."""
    L, N, C, T = 2, 3, 2, 12
    config = StaircaseConfig(width=4, heads=2, head_width=3, inner=5, layers=L, passes=N, chunk=C, norm=norm)
    core, x, ours = our_output(config, T)
    hand = Hand(core, heads=2, head_width=3, norm=norm, shared=False, first=0)
    H = {(i, 0): [x[i * C + j] for j in range(C)] for i in range(T // C)}  # H[chunk, passes done]
    for step in range(T // C + N - 1):
        # The diagonal of this step, oldest chunk first: chunk i enters with step - i passes done.
        chunks = [i for i in range(step - N + 1, step + 1) if 0 <= i < T // C]
        tokens = [(i * C + j, H[i, step - i][j]) for i in chunks for j in range(C)]
        for l in range(L):
            tokens = [
                (place, hand.layer(l, vector, [(v, place - p) for p, v in tokens if p <= place]))
                for place, vector in tokens
            ]
        for i in chunks:
            H[i, step - i + 1] = [vector for place, vector in tokens if place // C == i]
    for t in range(T):
        np.testing.assert_allclose(ours[t], H[t // C, N][t % C], rtol=1e-10, atol=1e-12)
