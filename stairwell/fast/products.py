"""Products of a few rows with a weight, outside autograd: whichever of those that PyTorch has is the fastest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# A product of oneDNN's, which torch has for compiled graphs; not every build of it does.
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
PACK = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None) if ONEDNN is not None else None
LARGE = 1 << 24  # multiplications from which on oneDNN is the faster one
OFTEN = 4  # products after which a weight is packed


class PackedLinear:
    """x W^T, + b, for a weight (m, n) that does not change and is multiplied with rows (B, n) again and again.

    oneDNN lays a weight out anew for every product, which takes up to a fifth of it. Where products are large this is
    done once, for the price of a copy of the weight; the results are the same, bit for bit."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.laid_out, self.uses = weight, 0

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        """(B, n) -> (B, m), and ReLU of that."""
        if not suits_onednn(x, self.weight):
            return multiply(x, self.weight) if self.bias is None else affine(x, self.weight, self.bias, relu)
        self.uses += 1
        if self.uses == OFTEN and PACK is not None:
            self.laid_out = PACK(self.weight.detach().contiguous(), x.shape[0])
        return by_onednn(x.contiguous(), self.laid_out, self.bias, relu)


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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """The same for many rows, with or without a bias."""
    if suits_onednn(x, weight):
        return by_onednn(x.contiguous(), weight, bias, relu)
    y = F.linear(x, weight, bias)
    return y.relu_() if relu else y


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN can multiply them, and is faster by up to a third than what torch calls otherwise."""
    rows = x.shape[0]
    if ONEDNN is None or rows < 7 or rows * weight.numel() < LARGE or torch.is_autocast_enabled("cpu"):
        return False
    return x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and bool(torch.backends.mkldnn.enabled)


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    assert ONEDNN is not None
    y: Tensor = ONEDNN(x, weight, bias, "relu" if relu else "none", [], "")
    return y
