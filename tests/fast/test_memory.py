"""Memory is used again, but never while somebody still holds it."""

from __future__ import annotations

import pytest
import torch

from stairwell.fast import memory
from stairwell.fast.memory import recycled

LIKE = torch.zeros(1)


@pytest.fixture(autouse=True)
def nothing_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_idle", [])


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
