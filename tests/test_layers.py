"""Attention with values that are not finite."""

from __future__ import annotations

import pytest
import torch

from stairwell import FeedbackConfig, build
from stairwell.layers import is_finite, sum_of_visible, weighted_sum


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_is_finite_is_exact_when_the_sum_overflows(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    values = torch.full((3, 50), largest, dtype=dtype)
    assert is_finite(values) and is_finite(-values) and is_finite(torch.zeros(0, dtype=dtype))
    for wrong in (torch.nan, torch.inf, -torch.inf):
        values[1, 7] = wrong
        assert not is_finite(values)
    values[2, 3] = torch.inf  # inf - inf: the sum is NaN
    assert not is_finite(values)


def test_only_visible_values_that_are_not_finite_make_the_sum_nan() -> None:
    B, H, T, J, K = 2, 3, 4, 5, 6
    weights = torch.rand(B, H, T, J).double()
    visible = torch.rand(B, 1, T, J) < 0.6
    weights = weights * visible
    values = [torch.randn(B, H, j, K).double() for j in (2, 3)]
    expected = weighted_sum(weights, values)
    values[0][0, 1, 1, 2] = torch.nan
    values[1][1, 2, 0, 5] = -torch.inf
    actual = sum_of_visible(weights, values, visible)
    affected = torch.zeros(B, H, T, dtype=torch.bool)
    affected[0, 1], affected[1, 2] = visible[0, 0, :, 1], visible[1, 0, :, 2]
    assert affected.any() and not affected.all()
    assert actual[affected].isnan().all()
    torch.testing.assert_close(actual[~affected], expected[~affected])


def test_a_nan_within_a_learned_span_propagates() -> None:
    core = build(FeedbackConfig(width=8, heads=2, layers=1, memory=4, adaptive_span=True))
    core.engine = None
    x = torch.randn(1, 3, 8)
    x[0, 0] = torch.nan
    assert core(x, core.init_state(1))[0][0, 1].isnan().all()
