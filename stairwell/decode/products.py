"""What one token a row does besides products, where a module's call would cost as much as its work."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stairwell.fast.products import PackedLinear, suits_onednn
from stairwell.layers import Sublayer
from stairwell.models.embedding import Head


def symbol_scores(head: Callable[[Tensor], Tensor]) -> Sublayer:
    """What a model's head says, as a function (B, D) -> (B, V)."""
    if not isinstance(head, Head):
        return head
    factor = PackedLinear(head.vectors if head.embedding is None else head.embedding.vectors, head.bias)
    return lambda x: factor(x) if suits_onednn(x, factor.weight) else head(x)


def plain(norm: nn.LayerNorm) -> Sublayer:
    """A norm as a function of its input alone."""
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
