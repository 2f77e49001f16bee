"""Memory is used again, but never while somebody still holds it."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.fast import memory
from stairwell.fast.memory import recycled

LIKE = torch.zeros(1)


@pytest.fixture(autouse=True)
def nothing_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_idle", [])
    monkeypatch.setattr(memory, "_returned", deque())


def test_a_block_comes_back_when_its_last_user_is_gone() -> None:
    first = recycled(LIKE, 200, 300)
    place, part = first.data_ptr(), first[3:]
    del first
    assert recycled(LIKE, 200, 300).data_ptr() != place
    del part
    assert place in {recycled(LIKE, 199, 300).data_ptr(), recycled(LIKE, 200, 300).data_ptr()}


def test_shape_type_and_contents_are_as_of_any_other_tensor() -> None:
    for dtype in (torch.float32, torch.float64):
        tensor = recycled(LIKE.to(dtype), 300, 7, 100)
        assert tensor.shape == (300, 7, 100) and tensor.dtype == dtype and tensor.is_contiguous()
        other = recycled(LIKE.to(dtype), 300, 7, 100).fill_(1)
        assert (tensor.fill_(2) == 2).all() and (other == 1).all()


def test_no_more_is_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST", 1_000_000)
    tensors = [recycled(LIKE, 100_000) for _ in range(5)]
    del tensors
    assert sum(block.nbytes for block in memory._idle) == 800_000


def test_small_tensors_are_left_to_the_c_library() -> None:
    del_me = recycled(LIKE, 10)
    del del_me
    assert not memory._idle


class Switching(list[Any]):
    """A list during whose reading another thread always gets its turn, as it sometimes does with any list."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(1e-5)
        return super().__getitem__(index)


def test_threads_share_the_idle_blocks_and_never_a_block_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_idle", Switching())
    monkeypatch.setattr(memory, "MOST", 2_000_000)
    like = torch.zeros(1, dtype=torch.uint8)

    def use(thread: int) -> None:
        for i in range(20):
            tensors = [recycled(like, 70_000 * (1 + (thread + i + j) % 4)) for j in range(3)]
            for tensor in tensors:
                tensor[:8] = thread
            time.sleep(1e-5)
            assert all((tensor[:8] == thread).all() for tensor in tensors)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(6)))


def test_a_block_may_come_back_while_its_own_thread_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection calls finalizers wherever a thread happens to be: it must not wait for itself."""
    held = [recycled(LIKE, 100_000)]
    place = held[0].data_ptr()

    class Collecting(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            held.clear()
            return super().__getitem__(index)

    monkeypatch.setattr(memory, "_idle", Collecting([np.empty(1 << 20, dtype=np.uint8)]))
    assert recycled(LIKE, 50_000).data_ptr() != place
    assert not held
    assert recycled(LIKE, 100_000).data_ptr() == place
