"""Proof by training that memory carries a reward: minutes, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from stairwell.runs import preset
from stairwell.runs.trainings import fit


@pytest.mark.slow
def test_feedback_carries_a_colour_much_farther_than_its_memory_is_long(tmp_path: Path) -> None:
    """A corridor of 20 steps, four slots of memory: `stairwell train rl/feedback --task.length 20 --core.memory 4`."""
    options = {"task.length": "20", "core.memory": "4", "train.steps": "1500"}
    scores = fit(preset("rl/feedback").with_options(options), tmp_path, "cpu")
    assert scores["valid_return"] >= 0.95
