"""Counting, checked as text."""

from __future__ import annotations

import pytest

from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.counting import COUNTING_TOKENS, Counting, CountingConfig


def checked_counts(batch: TokenBatch) -> list[int]:
    """Check every complete sequence of a batch and return the counts."""
    counts = []
    assert batch.start is not None
    for tokens, targets, start in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
        words = [COUNTING_TOKENS[token] for token in tokens]
        labels = ["-" if target == IGNORE_INDEX else COUNTING_TOKENS[target] for target in targets]
        while "END" in words:
            size = words.index("END") + 1
            n = (size - 2) // 2
            assert words[:size] == ["A"] * n + ["SEP"] + ["B"] * n + ["END"]
            assert labels[:size] == ["-"] * n + ["B"] * n + ["END"] + ["-"]
            assert start[:size] == [True] + [False] * (size - 1)
            words, labels, start = words[size:], labels[size:], start[size:]
            counts.append(n)
    return counts


@pytest.mark.parametrize("length", [1, 2, 50])
def test_labels_are_n_bs_and_the_end(length: int) -> None:
    batch = Counting(CountingConfig(length=length)).batch_source(range(50), 50, 0).read(40 * (length + 3))
    assert set(checked_counts(batch)) == set(range(1, length + 1))


def test_counts_are_uniform() -> None:
    task = Counting(CountingConfig(length=10, test_episodes=5000))
    (batch,) = task.batches("test", 1, 10**6)
    counts = checked_counts(batch)
    assert len(counts) == 5000
    assert all(abs(counts.count(n) - 500) < 100 for n in range(1, 11))


def test_test_sequences_can_be_longer() -> None:
    task = Counting(CountingConfig(length=3, test_length=90, valid_episodes=50, test_episodes=50))
    assert max(checked_counts(next(task.batches("valid", 1, 10**5)))) == 3
    assert max(checked_counts(next(task.batches("test", 1, 10**5)))) > 50


def test_a_thousand_can_be_checked_counts() -> None:
    assert max(checked_counts(Counting(CountingConfig(length=1000)).batch_source(range(20), 20, 0).read(8000))) > 900


def test_a_curriculum_may_start_with_smaller_counts() -> None:
    stream = Counting(CountingConfig(length=1000)).batch_source(range(20), 20, 0)
    stream.read(10)
    stream.change(length=3)
    assert set(checked_counts(stream.read(200))) == {1, 2, 3}


def test_invalid_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match="length is 0; it must be at least 1"):
        Counting(CountingConfig(length=0))
    with pytest.raises(ValueError, match="test_length is -1; it must be at least 0"):
        Counting(CountingConfig(test_length=-1))
