"""A pool of large CPU buffers that are reused instead of being returned to the operating system.

The saved activations of a segment are tens of megabytes that live from forward to backward. The C library returns them
to the system every time, which clears each page again on the next use. That took a sixth of a Staircase training step.
A buffer returns to the pool when the last tensor that uses it is freed.

Any thread may free a tensor at any time, even while it holds the lock (a garbage collection runs finalizers). A
finalizer therefore never waits for the lock: it appends the buffer to a deque, which is atomic, and the next holder of
the lock moves it to the idle buffers.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

MIN_BYTES = 1 << 16  # smaller tensors are left to the C library
MAX_IDLE_BYTES = 1 << 28

_lock = threading.Lock()
_idle: list[Any] = []  # NumPy arrays of bytes, most recently returned last; protected by the lock
_returned: deque[Any] = deque()  # returned buffers that are not in _idle yet


def pooled_empty(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialized tensor of the dtype and device of `like`."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < MIN_BYTES:
        return like.new_empty(shape)
    buffer = _take(size)
    # The tensor keeps this view alive; the buffer returns to the pool when the view is freed.
    view = buffer.view()
    weakref.finalize(view, _give_back, buffer).atexit = False
    return torch.from_numpy(view)[:size].view(like.dtype).view(shape)


def _take(size: int) -> Any:
    """Return a buffer of at least `size` bytes and at most an eighth more."""
    with _lock:
        _collect_returned()
        for i in reversed(range(len(_idle))):
            if size <= _idle[i].nbytes <= size + size // 8:
                return _idle.pop(i)
    return torch.empty(size, dtype=torch.uint8).numpy()


def _give_back(buffer: Any) -> None:
    _returned.append(buffer)
    if _lock.acquire(blocking=False):
        try:
            _collect_returned()
        finally:
            _lock.release()


def _collect_returned() -> None:
    """Move returned buffers to the idle ones, and free the oldest idle ones above the limit."""
    while _returned:
        _idle.append(_returned.popleft())
    while sum(buffer.nbytes for buffer in _idle) > MAX_IDLE_BYTES:
        del _idle[0]
