"""Linear maps outside autograd, with the fastest product that PyTorch offers for the shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN's linear map, which torch uses in compiled graphs. Not every build of torch has it.
ONEDNN_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
ONEDNN_PACK = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None) if ONEDNN_LINEAR is not None else None
ONEDNN_MIN_PRODUCTS = 1 << 24  # multiplications above which oneDNN is faster
PACK_AFTER = 4  # products after which a weight is packed


class PackedLinear:
    """x W^T + b for a constant weight (m, n) that is used repeatedly, with an optional bias.

    oneDNN packs a weight for every product, which takes up to a fifth of its time. For large products the weight is
    packed once, at the cost of a copy of the weight. The results are bit-identical."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.packed_weight, self.uses = weight, 0

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        """(B, n) -> (B, m), with an optional ReLU."""
        if suits_onednn(x, self.weight):
            self.uses += 1
            if self.uses == PACK_AFTER and ONEDNN_PACK is not None:
                self.packed_weight = ONEDNN_PACK(self.weight.detach().contiguous(), x.shape[0])
            return onednn_linear(x.contiguous(), self.packed_weight, self.bias, relu)
        if 2 <= x.shape[0] <= 6 and x.device.type == "cpu":
            # PyTorch's CPU product is slowest for a batch of 2 to 6; the transposed product is 1.5 times as fast.
            y = torch.mm(self.weight, x.T).T.contiguous()
        else:
            y = F.linear(x, self.weight)
        # Product and sum are faster than the fused operation: for B = 1 the product is a matrix times a vector.
        if self.bias is not None:
            y.add_(self.bias)
        return y.relu_() if relu else y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Return x W^T + b for a large batch, with an optional ReLU."""
    if suits_onednn(x, weight):
        return onednn_linear(x.contiguous(), weight, bias, relu)
    y = F.linear(x, weight, bias)
    return y.relu_() if relu else y


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN supports the product and is faster (by up to a third) than PyTorch's default."""
    batch = x.shape[0]
    if ONEDNN_LINEAR is None or batch < 7 or batch * weight.numel() < ONEDNN_MIN_PRODUCTS:
        return False
    if torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return False
    return x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    assert ONEDNN_LINEAR is not None
    y: Tensor = ONEDNN_LINEAR(x, weight, bias, "relu" if relu else "none", [], "")
    return y
