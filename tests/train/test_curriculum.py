"""A curriculum grows when a stage is mastered, and stands where it was after a pause."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stairwell.runs import preset
from stairwell.train.curriculum import WINDOW, Curriculum


def test_a_range_grows_by_a_quarter_and_ends_where_it_should() -> None:
    lengths = [stage["length"] for stage in Curriculum.parse("length=8..100").stages]
    assert lengths[:4] == [8, 10, 12, 15] and lengths[-1] == 100
    assert all(b > a and (b <= a * 1.25 + 1) for a, b in pairwise(lengths))
    assert [stage["length"] for stage in Curriculum.parse("length=1..5").stages] == [1, 2, 3, 4, 5]


def test_stages_are_listed_and_a_range_stands_for_several() -> None:
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
def test_what_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read the curriculum"):
        Curriculum.parse(text)


def test_a_stage_is_mastered_by_a_whole_window_of_updates() -> None:
    curriculum = Curriculum.parse("length=2..4", accuracy=90)
    for update in range(WINDOW):
        assert curriculum.mastered(9, 10) == (update == WINDOW - 1)
    assert curriculum.options == {"length": 3}
    for _ in range(WINDOW):
        assert not curriculum.mastered(8, 10)
    assert curriculum.options == {"length": 3} and not curriculum.finished
    # Nothing scored is nothing mastered.
    assert not any(curriculum.mastered(0, 0) for _ in range(WINDOW))
    # Neither worse windows before count, nor better ones.
    assert sum(curriculum.mastered(9, 10) for _ in range(WINDOW)) == 1
    assert curriculum.options == {"length": 4} and not curriculum.finished
    for right in (10, 8):
        for _ in range(WINDOW):
            curriculum.mastered(right, 10)
        assert curriculum.finished == (right == 10)


def test_the_last_stage_is_the_end() -> None:
    curriculum = Curriculum.parse("length=2..3", accuracy=50)
    answers = [curriculum.mastered(1, 1) for _ in range(3 * WINDOW)]
    assert sum(answers) == 1 and curriculum.options == {"length": 3} and curriculum.finished


def test_a_pause_changes_nothing() -> None:
    whole, paused = Curriculum.parse("length=2..9", accuracy=60), Curriculum.parse("length=2..9", accuracy=60)
    for update in range(5 * WINDOW):
        right = (7 * update) % 11
        again = Curriculum.parse("length=2..9", accuracy=60)
        again.seek(paused.position())
        paused = again
        assert whole.mastered(right, 10) == paused.mastered(right, 10)
        assert whole.options == paused.options and whole.finished == paused.finished


def test_a_curriculum_ends_where_the_task_does() -> None:
    assert Curriculum.reaching("length=8..100", {"length": 12}) == "length=8;length=10;length=12"
    assert Curriculum.reaching("length=8..10", {"length": 20}) == "length=8;length=10;length=20"
    assert Curriculum.reaching("length=8..100", {"grid": 4}) == Curriculum.reaching("length=8..100", {})
    assert Curriculum.reaching("", {"length": 5}) == ""
    short = preset("random-walk/lstm").with_options({"task.length": "10"})
    assert short.train.curriculum == "length=8;length=10"
    own = preset("random-walk/lstm").with_options({"task.length": "10", "train.curriculum": "length=2..5"})
    assert own.train.curriculum == "length=2..5"
