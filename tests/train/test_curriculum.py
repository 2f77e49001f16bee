"""Curricula: parsing, advancing by accuracy, saving and restoring the position."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stairwell.runs import preset
from stairwell.train.curriculum import WINDOW, Curriculum

pytestmark = pytest.mark.quick


def test_a_range_increases_by_a_quarter_up_to_its_end() -> None:
    lengths = [stage["length"] for stage in Curriculum.parse("length=8..100").stages]
    assert lengths[:4] == [8, 10, 12, 15] and lengths[-1] == 100
    assert all(b > a and (b <= a * 1.25 + 1) for a, b in pairwise(lengths))
    assert [stage["length"] for stage in Curriculum.parse("length=1..5").stages] == [1, 2, 3, 4, 5]


def test_a_range_stands_for_several_stages() -> None:
    stages = Curriculum.parse("variables=1,statements=10; variables=2,statements=4..6").stages
    assert stages == [
        {"variables": 1, "statements": 10},
        {"variables": 2, "statements": 4},
        {"variables": 2, "statements": 5},
        {"variables": 2, "statements": 6},
    ]
    assert Curriculum.parse("").stages == []


@pytest.mark.parametrize(
    "text", ["length", "length=", "length=-1", "length=a..b", "length=9..8", "=3", "a=1;b", "a=1..x"]
)
def test_an_invalid_curriculum_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read the curriculum"):
        Curriculum.parse(text)


def test_the_next_stage_starts_after_a_window_with_the_accuracy() -> None:
    curriculum = Curriculum.parse("length=2..4", accuracy=90)
    for step in range(WINDOW):
        assert curriculum.update(9, 10) == (step == WINDOW - 1)
    assert curriculum.options == {"length": 3}
    for _ in range(WINDOW):
        assert not curriculum.update(8, 10)
    assert curriculum.options == {"length": 3} and not curriculum.mastered
    # A window without scored tokens does not count.
    assert not any(curriculum.update(0, 0) for _ in range(WINDOW))
    # Windows are independent of each other.
    assert sum(curriculum.update(9, 10) for _ in range(WINDOW)) == 1
    assert curriculum.options == {"length": 4} and not curriculum.mastered
    for correct in (10, 8):
        for _ in range(WINDOW):
            curriculum.update(correct, 10)
        assert curriculum.mastered == (correct == 10)


def test_the_last_stage_stays() -> None:
    curriculum = Curriculum.parse("length=2..3", accuracy=50)
    advanced = [curriculum.update(1, 1) for _ in range(3 * WINDOW)]
    assert sum(advanced) == 1 and curriculum.options == {"length": 3} and curriculum.mastered


def test_a_restored_position_continues_exactly() -> None:
    whole, resumed = Curriculum.parse("length=2..9", accuracy=60), Curriculum.parse("length=2..9", accuracy=60)
    for step in range(5 * WINDOW):
        correct = (7 * step) % 11
        restored = Curriculum.parse("length=2..9", accuracy=60)
        restored.seek(resumed.position())
        resumed = restored
        assert whole.update(correct, 10) == resumed.update(correct, 10)
        assert whole.options == resumed.options and whole.mastered == resumed.mastered


def test_a_presets_curriculum_ends_at_the_tasks_difficulty() -> None:
    assert Curriculum.ending_at("length=8..100", {"length": 12}) == "length=8;length=10;length=12"
    assert Curriculum.ending_at("length=8..10", {"length": 20}) == "length=8;length=10;length=20"
    assert Curriculum.ending_at("length=8..100", {"grid": 4}) == Curriculum.ending_at("length=8..100", {})
    assert Curriculum.ending_at("", {"length": 5}) == ""
    short = preset("random-walk/lstm").with_options({"task.length": "10"})
    assert short.train.curriculum == "length=8;length=10"
    own = preset("random-walk/lstm").with_options({"task.length": "10", "train.curriculum": "length=2..5"})
    assert own.train.curriculum == "length=2..5"
