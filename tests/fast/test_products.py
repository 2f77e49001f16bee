"""Products outside autograd: whichever way they are made, they are PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stairwell.fast import products
from stairwell.fast.products import PackedLinear


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("large", [0, products.LARGE])
def test_a_factor_multiplies_as_pytorch_does(
    large: int, biased: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LARGE", large)
    torch.manual_seed(0)
    weight, bias = torch.randn(33, 20, dtype=dtype), torch.randn(33, dtype=dtype) if biased else None
    factor = PackedLinear(weight, bias)
    for rows in (1, 2, 6, 7, 40, 40, 40, 40, 9, 200, 3):  # packed on the way, and then of other sizes
        x = torch.randn(rows, 20, dtype=dtype)
        torch.testing.assert_close(factor(x), F.linear(x, weight, bias))
        if biased:
            torch.testing.assert_close(factor(x, relu=True), F.linear(x, weight, bias).relu())
    packed = large == 0 and dtype == torch.float32 and products.PACK is not None
    assert (factor.laid_out is not weight) == packed


@pytest.mark.skipif(products.PACK is None, reason="this torch has no oneDNN")
def test_a_weight_that_is_laid_out_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LARGE", 0)
    torch.manual_seed(0)
    factor, x = PackedLinear(torch.randn(300, 64)), torch.randn(40, 64)
    first, *others = [factor(x) for _ in range(products.OFTEN + 2)]
    assert factor.laid_out is not factor.weight
    assert all(torch.equal(first, other) for other in others)
