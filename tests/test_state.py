"""The state as a value: reordered, cut, moved, saved and loaded without losing a bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stairwell.cores import CORES, build
from stairwell.cores.feedback import FeedbackConfig, FeedbackState
from stairwell.cores.lstm import LSTMConfig
from stairwell.cores.staircase import GlobalCachedStaircaseConfig
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.state import State

SMALL: dict[str, Any] = {"width": 4, "layers": 2}


def used(name: str, slack: int = 0) -> State:
    """A state that has read seven tokens, three rows at different ages."""
    torch.manual_seed(0)
    kind = CORES[name][0]
    core = build(kind(**SMALL))
    start = torch.zeros(3, 7, dtype=torch.bool)
    start[1, 4] = True
    with torch.no_grad():
        return core(torch.randn(3, 7, 4), core.init_state(3, slack), start)[1]


@pytest.mark.parametrize("name", sorted(CORES))
def test_a_saved_state_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    state = used(name)
    state.save(tmp_path / "state.safetensors")
    again = State.load(tmp_path / "state.safetensors")
    assert type(again) is type(state)
    for (field, a), (same, b) in zip(state.tensors(), again.tensors(), strict=True):
        assert field == same
        assert torch.equal(a, b)


def test_a_loaded_state_with_nan_is_refused(tmp_path: Path) -> None:
    state: Any = used("feedback")
    state.memory[0, -1] = torch.nan
    state.save(tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match=r"bad.safetensors: 'memory' holds NaN"):
        State.load(tmp_path / "bad.safetensors")


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a readable state"):
        State.load(tmp_path / "text")
    save_file({"weight": torch.zeros(2)}, tmp_path / "model")
    with pytest.raises(ValueError, match="not a stairwell state"):
        State.load(tmp_path / "model")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    used("feedback").save(path)
    before = path.read_bytes()

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stairwell.state.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        used("lstm").save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", sorted(CORES))
def test_reset_rows_are_fresh_and_others_untouched(name: str) -> None:
    state = used(name)
    fresh = build(CORES[name][0](**SMALL)).init_state(1)
    for rows in ([1], torch.tensor([False, True, False])):
        reset = state.reset(rows)
        for (_, a), (_, b) in zip(reset.select([1]).tensors(), fresh.tensors(), strict=True):
            assert torch.equal(a, b)
        for (_, a), (_, b) in zip(reset.select([0, 2]).tensors(), state.select([0, 2]).tensors(), strict=True):
            assert torch.equal(a, b)


def test_select_takes_rows_in_any_order_and_more_than_once() -> None:
    state: Any = used("feedback")
    chosen = state.select([2, 0, 0])
    assert torch.equal(chosen.memory, state.memory[[2, 0, 0]])
    assert torch.equal(state.select(torch.tensor([True, False, True])).count, state.count[[0, 2]])
    with pytest.raises(IndexError, match=r"rows must be in 0\.\.2"):
        state.select([3])
    with pytest.raises(ValueError, match="mask of rows"):
        state.select(torch.tensor([True]))


def test_a_growing_cache_does_not_remember_rows_that_left() -> None:
    state: Any = used("global-cached-staircase")
    assert state.cache.shape[1] == 7
    assert state.select([1]).cache.shape[1] == 3
    assert state.select([1]).nbytes < state.nbytes / 3
    joined = type(state).join([state.select([1]), state.select([0])])
    assert torch.equal(joined.cache, state.select([1, 0]).cache)


def test_counts_stay_integers_when_a_state_changes_its_type() -> None:
    state: Any = used("feedback").to(dtype=torch.float64)
    assert (state.memory.dtype, state.count.dtype) == (torch.float64, torch.int64)


def test_a_state_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        used("lstm").count = torch.zeros(3)  # type: ignore[misc]


@pytest.mark.parametrize("make_up", ["all", "average", "recurrent", 0, 3])
def test_feedback_remembers_layers_times_less_than_transformer_xl(make_up: Any) -> None:
    """Measured on what a call returns, storage and all; `recurrent` holds as much as Transformer-XL."""
    options: dict[str, Any] = {"width": 32, "layers": 3, "memory": 50}
    sizes = []
    for config in (TransformerXLConfig(**options), FeedbackConfig(**options, make_up=make_up)):
        core = build(config)
        with torch.no_grad():
            _, state = core(torch.randn(2, 70, 32), core.init_state(2))
        sizes.append(state.nbytes - state.count.nbytes - state.room.nbytes)
    assert sizes[0] == 2 * 50 * 3 * 32 * 4
    assert sizes[0] / sizes[1] == (1 if make_up == "recurrent" else 3)


def test_crop_beyond_the_slack_is_an_error_and_loses_nothing() -> None:
    state: Any = used("feedback", slack=2)
    memory = state.memory.clone()
    with pytest.raises(ValueError, match=r"cannot crop 3 tokens of row 0: it can take back 2 .*slack"):
        state.crop(3)
    with pytest.raises(ValueError, match="0 or more"):
        state.crop(-1)
    # What was taken back once cannot be taken back again.
    with pytest.raises(ValueError, match="it can take back 1"):
        state.crop(1).crop(2)
    assert torch.equal(state.memory, memory)


def test_crop_stops_at_a_rows_start() -> None:
    core = build(FeedbackConfig(**SMALL, memory=5))
    start = torch.tensor([[False, False, False, True]])
    with torch.no_grad():
        _, state = core(torch.randn(1, 4, 4), core.init_state(1, slack=3), start)
    with pytest.raises(ValueError, match="it can take back 1"):
        state.crop(2)
    fresh = state.crop(1)
    assert isinstance(fresh, FeedbackState)
    assert fresh.count.item() == 0
    assert fresh.memory.abs().sum() == 0


def test_an_lstm_says_that_it_cannot_crop() -> None:
    with pytest.raises(ValueError, match="LSTMState cannot take tokens back"):
        used("lstm").crop(1)
    with pytest.raises(ValueError, match="use slack=0"):
        build(LSTMConfig(**SMALL)).init_state(2, slack=1)


def test_a_limit_on_the_growing_cache_is_kept() -> None:
    core = build(GlobalCachedStaircaseConfig(**SMALL, chunk=2, max_tokens=6))
    _, state = core(torch.randn(1, 6, 4), core.init_state(1))
    with pytest.raises(ValueError, match="7 tokens since its start, more than max_tokens=6"):
        core(torch.randn(1, 1, 4), state)
    core(torch.randn(1, 1, 4), state, torch.tensor([[True]]))
