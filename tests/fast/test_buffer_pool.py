"""Buffers are reused, but never while a tensor still uses them."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.fast import buffer_pool
from stairwell.fast.buffer_pool import pooled_empty

LIKE = torch.zeros(1)


@pytest.fixture(autouse=True)
def empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "_idle", [])
    monkeypatch.setattr(buffer_pool, "_returned", deque())


def test_a_buffer_returns_when_its_last_tensor_is_freed() -> None:
    first = pooled_empty(LIKE, 200, 300)
    address, part = first.data_ptr(), first[3:]
    del first
    assert pooled_empty(LIKE, 200, 300).data_ptr() != address
    del part
    assert address in {pooled_empty(LIKE, 199, 300).data_ptr(), pooled_empty(LIKE, 200, 300).data_ptr()}


def test_shape_dtype_and_contents_are_those_of_a_normal_tensor() -> None:
    for dtype in (torch.float32, torch.float64):
        tensor = pooled_empty(LIKE.to(dtype), 300, 7, 100)
        assert tensor.shape == (300, 7, 100) and tensor.dtype == dtype and tensor.is_contiguous()
        other = pooled_empty(LIKE.to(dtype), 300, 7, 100).fill_(1)
        assert (tensor.fill_(2) == 2).all() and (other == 1).all()


def test_idle_buffers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "MAX_IDLE_BYTES", 1_000_000)
    tensors = [pooled_empty(LIKE, 100_000) for _ in range(5)]
    del tensors
    assert sum(buffer.nbytes for buffer in buffer_pool._idle) == 800_000


def test_small_tensors_are_not_pooled() -> None:
    small = pooled_empty(LIKE, 10)
    del small
    assert not buffer_pool._idle


class Switching(list[Any]):
    """A list that always lets other threads run while an item is read."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(1e-5)
        return super().__getitem__(index)


def test_threads_share_idle_buffers_but_never_a_buffer_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "_idle", Switching())
    monkeypatch.setattr(buffer_pool, "MAX_IDLE_BYTES", 2_000_000)
    like = torch.zeros(1, dtype=torch.uint8)

    def use(thread: int) -> None:
        for i in range(20):
            tensors = [pooled_empty(like, 70_000 * (1 + (thread + i + j) % 4)) for j in range(3)]
            for tensor in tensors:
                tensor[:8] = thread
            time.sleep(1e-5)
            assert all((tensor[:8] == thread).all() for tensor in tensors)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(6)))


def test_a_buffer_may_return_while_its_own_thread_holds_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection may run finalizers anywhere, so a finalizer must not wait for its own thread's lock."""
    held = [pooled_empty(LIKE, 100_000)]
    address = held[0].data_ptr()

    class Collecting(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            held.clear()
            return super().__getitem__(index)

    monkeypatch.setattr(buffer_pool, "_idle", Collecting([np.empty(1 << 20, dtype=np.uint8)]))
    assert pooled_empty(LIKE, 50_000).data_ptr() != address
    assert not held
    assert pooled_empty(LIKE, 100_000).data_ptr() == address
