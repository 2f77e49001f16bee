"""Packed matrices: panels of rows, padded with zeros, in one aligned buffer."""

from __future__ import annotations

import pytest
import torch

from stairwell.decode.packing import LARGE_PAGE, LINE, PANEL_ROWS, allocate, in_one_buffer, padded, panels

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("rows", [1, PANEL_ROWS, PANEL_ROWS + 5])
def test_panels_hold_every_element_once(rows: int) -> None:
    matrix = torch.randn(rows, 7)
    packed = panels(matrix)
    for m in range(rows):
        assert torch.equal(packed[m // PANEL_ROWS, :, m % PANEL_ROWS], matrix[m])
    assert packed.shape[1:] == (7, PANEL_ROWS) and packed.count_nonzero() == matrix.count_nonzero()
    assert torch.equal(padded(matrix[:, 0])[:rows], matrix[:, 0]) and len(padded(matrix[:, 0])) % PANEL_ROWS == 0


def test_one_buffer_holds_aligned_copies_in_order() -> None:
    tensors = [torch.randn(3, 5), torch.arange(7, dtype=torch.int8), torch.randn(4).bfloat16(), torch.randn(0)]
    copies = in_one_buffer(tensors)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(tensor, copy) and copy.is_contiguous() and copy.dtype == tensor.dtype
        assert (copy.data_ptr() - copies[0].data_ptr()) % LINE == 0
    assert [copy.data_ptr() for copy in copies[:3]] == sorted(copy.data_ptr() for copy in copies[:3])


def test_a_large_buffer_starts_on_a_large_page() -> None:
    buffer = allocate(LARGE_PAGE + 100)
    assert buffer.data_ptr() % LARGE_PAGE == 0 and buffer.nbytes == LARGE_PAGE + 100
    buffer.fill_(7)  # the whole buffer is writable
    assert bool((buffer == 7).all())
