"""What one token a row does besides products, where a module's call would cost as much as its work."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stairwell.fast.products import linear
from stairwell.layers import Sublayer
from stairwell.models.embedding import Head


def symbol_scores(head: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a model's head says. (B, D) -> (B, V)"""
    if isinstance(head, Head):
        return linear(x, head.vectors if head.embedding is None else head.embedding.vectors, head.bias)
    return head(x)


def plain(norm: nn.LayerNorm) -> Sublayer:
    """A norm as a function of its input alone."""
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
