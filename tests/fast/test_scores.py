"""What a search asks of the scores of all symbols: native code against PyTorch, and in its corners."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stairwell.fast import native

pytestmark = pytest.mark.skipif(bool(native.MISSING), reason=native.MISSING or "-")
each_set = pytest.mark.parametrize("instruction_set", range(native.BEST + 1))
each_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def scores(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return 5 * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@each_set
@each_type
@pytest.mark.parametrize("V", [1, 3, 31, 64, 127, 128, 1000, 8001])
def test_the_logarithmic_sum_is_that_of_pytorch(V: int, dtype: torch.dtype, instruction_set: int) -> None:
    x = scores(2, 3, V, dtype=dtype)
    x[0, 1] += 1000.0
    x[1, 2] -= 1000.0
    x[1, 0, V // 2 :] = -math.inf
    torch.testing.assert_close(native.log_sums(x, instruction_set), x.logsumexp(-1))


@each_set
@each_type
def test_the_logarithmic_sum_of_what_is_not_finite_is_that_of_pytorch(dtype: torch.dtype, instruction_set: int) -> None:
    x = scores(5, 200, dtype=dtype)
    x[0] = -math.inf
    x[1, 7] = math.inf
    x[2, 150] = math.nan
    x[3, 0], x[3, 1] = math.nan, math.inf
    x[4, 199] = math.nan
    torch.testing.assert_close(native.log_sums(x, instruction_set), x.logsumexp(-1), equal_nan=True)


@each_set
@each_type
@pytest.mark.parametrize(("V", "k"), [(1, 1), (5, 5), (63, 10), (64, 64), (128, 64), (200, 70), (1000, 1), (8001, 10)])
def test_the_highest_are_those_of_an_order(V: int, k: int, dtype: torch.dtype, instruction_set: int) -> None:
    x = scores(4, 2, V, dtype=dtype)
    x[1] = -x[1].abs().sort(descending=True).values  # every score is higher than those before it
    x[2] = -x[1]
    x[3, :, V // 2 :] = -math.inf
    values, symbols = native.highest(x, k, instruction_set)
    torch.testing.assert_close(values, x.topk(k, -1).values, rtol=0, atol=0)
    assert torch.equal(x.gather(-1, symbols), values)


@each_set
def test_of_equal_scores_the_lower_symbol_comes_first(instruction_set: int) -> None:
    x = scores(6, 500).div(5).round()  # a few whole numbers
    x[1] = 0.0
    x[2] = -math.inf
    x[3, :490] = -math.inf
    order = x.sort(dim=-1, descending=True, stable=True)
    for k in (1, 7, 20, 64):
        values, symbols = native.highest(x, k, instruction_set)
        assert torch.equal(values, order.values[:, :k])
        assert torch.equal(symbols, order.indices[:, :k])


@each_set
def test_a_row_with_nan_still_gives_different_symbols_and_leaves_other_rows_alone(instruction_set: int) -> None:
    x = scores(200, 300)
    dice = torch.Generator().manual_seed(1)
    x[1:].masked_fill_(torch.rand(199, 300, generator=dice) < torch.linspace(0, 1, 199)[:, None], math.nan)
    values, symbols = native.highest(x, 10, instruction_set)
    assert torch.equal(values[0], x[0].topk(10).values)
    assert all(len(set(row)) == 10 and min(row) >= 0 and max(row) < 300 for row in symbols.tolist())
    torch.testing.assert_close(x.gather(-1, symbols), values, equal_nan=True, rtol=0, atol=0)


def test_scores_need_not_lie_side_by_side() -> None:
    x = scores(40, 3).T
    torch.testing.assert_close(native.log_sums(x), x.logsumexp(-1))
    assert torch.equal(native.highest(x, 4)[0], x.topk(4).values)


def test_no_rows_and_too_many_symbols() -> None:
    assert native.log_sums(scores(0, 5)).shape == (0,)
    assert native.highest(scores(0, 5), 2)[1].shape == (0, 2)
    with pytest.raises(RuntimeError, match="the vocabulary has 5 tokens"):
        native.highest(scores(2, 5), 6)
