"""Products and norms of one token a row, where a module's call would cost as much as its work."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.layers import Sublayer
from stairwell.models.embedding import Head

# A product of oneDNN's, which torch has for compiled graphs; not every build of it does.
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
LARGE = 1 << 19  # numbers in a weight from which on oneDNN is the faster one


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T for (B, n) and a weight (m, n)."""
    # A CPU's product is at its worst for two to six rows; the other way round it is half as fast again.
    if 2 <= x.shape[0] <= 6 and x.device.type == "cpu":
        return torch.mm(weight, x.T).T.contiguous()
    return by_onednn(x, weight, None) if suits_onednn(x, weight) else F.linear(x, weight)


def affine(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """x W^T + b for (B, n), a weight (m, n) and a bias (m,), and ReLU of that."""
    if suits_onednn(x, weight):
        return by_onednn(x, weight, bias, relu)
    # A product and a sum are faster than their fusion: for one row that is a matrix times a vector.
    y = multiply(x, weight).add_(bias)
    return y.relu_() if relu else y


def symbol_scores(head: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a model's head says. (B, D) -> (B, V)"""
    if isinstance(head, Head):
        vectors = head.vectors if head.embedding is None else head.embedding.vectors
        if suits_onednn(x, vectors):
            return by_onednn(x.contiguous(), vectors, head.bias)
    return head(x)


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN can multiply them, and is faster by up to a third than what torch calls otherwise."""
    if ONEDNN is None or x.shape[0] < 7 or weight.numel() < LARGE or torch.is_autocast_enabled("cpu"):
        return False
    return x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and bool(torch.backends.mkldnn.enabled)


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    assert ONEDNN is not None
    y: Tensor = ONEDNN(x, weight, bias, "relu" if relu else "none", [], "")
    return y


def plain(norm: nn.LayerNorm) -> Sublayer:
    """A norm as a function of its input alone."""
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
