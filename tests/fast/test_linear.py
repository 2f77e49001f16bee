"""Linear maps outside autograd give PyTorch's results for every shape."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stairwell.fast import linear
from stairwell.fast.linear import PackedLinear


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("large", [0, linear.ONEDNN_MIN_PRODUCTS])
def test_a_packed_linear_gives_the_results_of_pytorch(
    large: int, biased: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "ONEDNN_MIN_PRODUCTS", large)
    torch.manual_seed(0)
    weight, bias = torch.randn(33, 20, dtype=dtype), torch.randn(33, dtype=dtype) if biased else None
    packed = PackedLinear(weight, bias)
    for batch in (1, 2, 6, 7, 40, 40, 40, 40, 9, 200, 3):  # packed at the fourth large batch
        x = torch.randn(batch, 20, dtype=dtype)
        torch.testing.assert_close(packed(x), F.linear(x, weight, bias))
        if biased:
            torch.testing.assert_close(packed(x, relu=True), F.linear(x, weight, bias).relu())
    should_pack = large == 0 and dtype == torch.float32 and linear.ONEDNN_PACK is not None
    assert (packed.packed_weight is not weight) == should_pack


@pytest.mark.skipif(linear.ONEDNN_PACK is None, reason="this torch has no oneDNN")
def test_packing_gives_bit_identical_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "ONEDNN_MIN_PRODUCTS", 0)
    torch.manual_seed(0)
    packed, x = PackedLinear(torch.randn(300, 64)), torch.randn(40, 64)
    first, *others = [packed(x) for _ in range(linear.PACK_AFTER + 2)]
    assert packed.packed_weight is not packed.weight
    assert all(torch.equal(first, other) for other in others)
