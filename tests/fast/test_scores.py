"""Native reductions of scores over the vocabulary (logsumexp, topk) against PyTorch, with edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stairwell.fast import native

pytestmark = pytest.mark.skipif(bool(native.UNAVAILABLE_REASON), reason=native.UNAVAILABLE_REASON or "-")
each_set = pytest.mark.parametrize("instruction_set", range(native.BEST_INSTRUCTION_SET + 1))
each_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def scores(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return 5 * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@each_set
@each_type
@pytest.mark.parametrize("V", [1, 3, 31, 64, 127, 128, 1000, 8001])
def test_logsumexp_equals_that_of_pytorch(V: int, dtype: torch.dtype, instruction_set: int) -> None:
    x = scores(2, 3, V, dtype=dtype)
    x[0, 1] += 1000.0
    x[1, 2] -= 1000.0
    x[1, 0, V // 2 :] = -math.inf
    torch.testing.assert_close(native.logsumexp(x, instruction_set), x.logsumexp(-1))


@each_set
@each_type
def test_logsumexp_of_infinities_and_nan_equals_that_of_pytorch(dtype: torch.dtype, instruction_set: int) -> None:
    x = scores(5, 200, dtype=dtype)
    x[0] = -math.inf
    x[1, 7] = math.inf
    x[2, 150] = math.nan
    x[3, 0], x[3, 1] = math.nan, math.inf
    x[4, 199] = math.nan
    torch.testing.assert_close(native.logsumexp(x, instruction_set), x.logsumexp(-1), equal_nan=True)


@each_set
@each_type
@pytest.mark.parametrize(("V", "k"), [(1, 1), (5, 5), (63, 10), (64, 64), (128, 64), (200, 70), (1000, 1), (8001, 10)])
def test_topk_equals_that_of_pytorch(V: int, k: int, dtype: torch.dtype, instruction_set: int) -> None:
    x = scores(4, 2, V, dtype=dtype)
    x[1] = -x[1].abs().sort(descending=True).values  # ascending
    x[2] = -x[1]
    x[3, :, V // 2 :] = -math.inf
    values, tokens = native.topk(x, k, instruction_set)
    torch.testing.assert_close(values, x.topk(k, -1).values, rtol=0, atol=0)
    assert torch.equal(x.gather(-1, tokens), values)


@each_set
def test_on_ties_the_lower_token_id_comes_first(instruction_set: int) -> None:
    x = scores(6, 500).div(5).round()  # a few distinct integers
    x[1] = 0.0
    x[2] = -math.inf
    x[3, :490] = -math.inf
    order = x.sort(dim=-1, descending=True, stable=True)
    for k in (1, 7, 20, 64):
        values, tokens = native.topk(x, k, instruction_set)
        assert torch.equal(values, order.values[:, :k])
        assert torch.equal(tokens, order.indices[:, :k])


@each_set
def test_scores_with_nan_give_distinct_tokens_and_do_not_affect_other_rows(instruction_set: int) -> None:
    x = scores(200, 300)
    generator = torch.Generator().manual_seed(1)
    x[1:].masked_fill_(torch.rand(199, 300, generator=generator) < torch.linspace(0, 1, 199)[:, None], math.nan)
    values, tokens = native.topk(x, 10, instruction_set)
    assert torch.equal(values[0], x[0].topk(10).values)
    assert all(len(set(row)) == 10 and min(row) >= 0 and max(row) < 300 for row in tokens.tolist())
    torch.testing.assert_close(x.gather(-1, tokens), values, equal_nan=True, rtol=0, atol=0)


def test_scores_may_be_noncontiguous() -> None:
    x = scores(40, 3).T
    torch.testing.assert_close(native.logsumexp(x), x.logsumexp(-1))
    assert torch.equal(native.topk(x, 4)[0], x.topk(4).values)


def test_empty_batches_are_accepted_and_a_too_large_k_raises() -> None:
    assert native.logsumexp(scores(0, 5)).shape == (0,)
    assert native.topk(scores(0, 5), 2)[1].shape == (0, 2)
    with pytest.raises(RuntimeError, match="the vocabulary has 5 tokens"):
        native.topk(scores(2, 5), 6)
