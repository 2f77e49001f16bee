"""Baselines of summarization."""

from __future__ import annotations

from stairwell.tasks.baselines import NearestSummary, baselines, lead


def test_the_lead_is_the_first_sentence() -> None:
    assert lead("It rains. It pours! No?") == "It rains."
    assert lead("no end") == "no end"


def test_the_lead_of_a_function_is_the_first_line_of_its_body() -> None:
    assert lead("def f(a, ⏎ b=2) -> int: ⏎ x = {a: b} ⏎ return x") == "x = {a: b}"
    assert lead("def f(a): ⏎ if a: ⏎ return 1") == "if a:"


def test_the_nearest_article_shares_rare_words() -> None:
    train = [("the cat sat on the mat", "cats"), ("the dog sat on the log", "dogs"), ("the bird sang", "birds")]
    nearest = NearestSummary(train)
    assert [nearest(text) for text in ("a dog, the dog", "the bird sat", "on the mat")] == ["dogs", "birds", "cats"]
    summaries = baselines(train, ["The cat. It sat."])
    assert summaries == {"lead": ["The cat."], "nearest": ["cats"]}
