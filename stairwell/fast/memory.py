"""Large memory that is used again instead of being given back to the system.

A segment's trace is tens of megabytes that live from forward to backward. The C library hands them back each time, and
the system clears every page when it is touched anew: a sixth of a Staircase's training step went there. Blocks come
back by themselves when the last tensor that uses them is gone.

Any thread may ask for memory, and any thread's last tensor may go at any time, even while its own thread is in here (a
garbage collection calls finalizers). So a finalizer never waits for the lock: it puts the block into a deque, whose
appends are atomic, and whoever has the lock next takes it from there.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1 << 16  # bytes: below, the C library does well
MOST = 1 << 28  # bytes that are kept while nobody uses them

_lock = threading.Lock()
_idle: list[Any] = []  # blocks, the one that came back last at the end; only touched with the lock
_returned: deque[Any] = deque()  # blocks that came back and are not among the idle ones yet


def recycled(like: Tensor, *shape: int) -> Tensor:
    """Memory of any contents, of the type and place of another tensor."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < SMALLEST:
        return like.new_empty(shape)
    # An array of its own for this use: whatever holds the tensor holds it, and its end is the end of the use.
    block = _take(size)
    use = block.view()
    weakref.finalize(use, _give_back, block).atexit = False
    return torch.from_numpy(use)[:size].view(like.dtype).view(shape)


def _take(size: int) -> Any:
    """A block of at least `size` bytes and at most an eighth more."""
    with _lock:
        _sort_in()
        for i in reversed(range(len(_idle))):
            if size <= _idle[i].nbytes <= size + size // 8:
                return _idle.pop(i)
    return torch.empty(size, dtype=torch.uint8).numpy()


def _give_back(block: Any) -> None:
    _returned.append(block)
    if _lock.acquire(blocking=False):
        try:
            _sort_in()
        finally:
            _lock.release()


def _sort_in() -> None:
    """Put what came back among the idle blocks, and give the oldest ones to the system where there are too many."""
    while _returned:
        _idle.append(_returned.popleft())
    while sum(idle.nbytes for idle in _idle) > MOST:
        del _idle[0]
