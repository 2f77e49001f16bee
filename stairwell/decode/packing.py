"""Matrices in the order in which native code reads them, in one buffer.

A matrix (m, n) is stored as panels of `PANEL_ROWS` rows, (panels, n, PANEL_ROWS), the last one padded with zeros. With
one stream every parameter is read from memory once per token, so the order of reading decides the speed. Where the
system offers them, large pages hold the buffer: hardware prefetches only within a page.

Letters: m rows, n columns.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL_ROWS = 32  # must equal PANEL_ROWS in csrc/step.h
LINE = 64  # bytes of a cache line
LARGE_PAGE = 1 << 21


def panels(matrix: Tensor) -> Tensor:
    """Return the panels of a matrix, as a view of a padded copy. (m, n) -> (panels, n, PANEL_ROWS)"""
    m, n = matrix.shape
    return F.pad(matrix, (0, 0, 0, -m % PANEL_ROWS)).view(-1, PANEL_ROWS, n).transpose(1, 2)


def padded(vector: Tensor) -> Tensor:
    """Return a vector (m,) as long as the panels of a matrix of m rows."""
    return F.pad(vector, (0, -len(vector) % PANEL_ROWS))


def in_one_buffer(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return contiguous copies of CPU tensors, in their order in one buffer."""
    offsets, size = [], 0
    for tensor in tensors:
        offsets.append(size)
        size += -(-tensor.nbytes // LINE) * LINE
    buffer = allocate(size)
    copies = []
    for offset, tensor in zip(offsets, tensors):
        copy = buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        copies.append(copy.copy_(tensor))
    return copies


def allocate(size: int) -> Tensor:
    """Return `size` bytes, on large pages if there are any."""
    if size < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    # Private, because memory that processes share has no large pages by default.
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    first = -buffer.data_ptr() % LARGE_PAGE
    return buffer[first : first + size]
