"""Copy and reverse, checked as text."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.copying import END, SEP, Copying, CopyingConfig


def episodes(batch: TokenBatch) -> list[tuple[list[int], list[int]]]:
    """Return the tokens and targets of each episode of a batch, separated by the start flags."""
    split = []
    assert batch.start is not None
    for tokens, targets, start in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start):
        edges = [*start.nonzero().flatten().tolist(), len(tokens)]
        assert edges[0] == 0
        split += [(tokens[a:b], targets[a:b]) for a, b in pairwise(edges)]
    return split


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_each_output_digit_is_the_label_of_the_token_before_it(length: int, reverse: bool) -> None:
    task = Copying(CopyingConfig(length=length, reverse=reverse))
    for tokens, targets in episodes(task.batch_source(range(5), 5, 0).read(6 * (2 * length + 2))):
        digits = tokens[:length]
        outputs = digits[::-1] if reverse else digits
        assert tokens == [*digits, SEP, *outputs, END]
        assert targets == [IGNORE_INDEX] * length + outputs + [IGNORE_INDEX] * 2


def test_test_sequences_are_longer_than_training_sequences() -> None:
    config = CopyingConfig(length=3, test_length=11, valid_episodes=4, test_episodes=5)
    for split, length, count in (("valid", 3, 4), ("test", 11, 5)):
        (batch,) = Copying(config).batches(split, 1, 1000)  # type: ignore[arg-type]
        assert [len(tokens) for tokens, _ in episodes(batch)] == [2 * length + 2] * count
    (batch,) = Copying(replace(config, valid_length=6)).batches("valid", 1, 1000)
    assert len(episodes(batch)[0][0]) == 14


@pytest.mark.parametrize("reverse", [False, True])
def test_sequences_of_different_lengths(reverse: bool) -> None:
    task = Copying(CopyingConfig(length=5, min_length=2, test_length=9, reverse=reverse, test_episodes=300))
    for batch, longest in (
        (task.batch_source(range(4), 4, 0).read(600), 5),
        (next(iter(task.batches("test", 1, 9000))), 9),
    ):
        complete = [(tokens, targets) for tokens, targets in episodes(batch) if tokens[-1] == END]
        for tokens, targets in complete:
            digits = tokens[: tokens.index(SEP)]
            outputs = digits[::-1] if reverse else digits
            assert tokens == [*digits, SEP, *outputs, END]
            assert targets == [IGNORE_INDEX] * len(digits) + outputs + [IGNORE_INDEX] * 2
        assert {len(tokens) // 2 - 1 for tokens, _ in complete} == set(range(2, longest + 1))


def test_a_sequence_is_correct_only_if_every_digit_is_correct() -> None:
    task = Copying(CopyingConfig(test_length=5, test_episodes=4))
    score = task.score()
    for number, batch in enumerate(task.batches("test", 4, 4)):
        predictions = batch.targets.clone()
        if number == 2:  # tokens 8 to 11: the last two output digits
            predictions[0] += 1
            assert (batch.targets[0] != IGNORE_INDEX).sum() == 2
        score.add(batch, torch.zeros(batch.tokens.shape), predictions)
    result = score.result()
    assert (result["accuracy"], result["sequence_accuracy"], result["sequences"]) == (90.0, 75.0, 4)


def test_invalid_lengths_are_rejected() -> None:
    for name, minimum in (("length", 1), ("test_length", 1), ("valid_length", 0), ("min_length", 0)):
        with pytest.raises(ValueError, match=f"{name} is -1; it must be at least {minimum}"):
            Copying(replace(CopyingConfig(), **{name: -1}))
