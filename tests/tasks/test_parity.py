"""Parity, compared with sums of bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stairwell.tasks.generated import LengthConfig
from stairwell.tasks.parity import Parity


def test_every_label_is_the_parity_of_the_ones_so_far() -> None:
    task = Parity(LengthConfig(length=13, test_length=31, test_episodes=9))
    for batch, length in (
        (task.batch_source(range(6), 6, 0).read(13 * 9), 13),
        (next(task.batches("test", 3, 500)), 31),
    ):
        assert batch.start is not None
        for bits, labels, starts in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
            for t in range(len(bits)):
                first = t - t % length
                assert starts[t] == (t == first)
                assert labels[t] == sum(bits[first : t + 1]) % 2


def test_bits_are_uniform() -> None:
    bits = Parity(LengthConfig()).batch_source(range(64), 64, 0).read(400).tokens
    assert abs(bits.float().mean().item() - 0.5) < 0.01


def test_the_last_label_of_each_sequence_has_its_own_accuracy() -> None:
    task = Parity(LengthConfig(test_length=10, test_episodes=6))
    score = task.score()
    for batch in task.batches("test", 2, 7):
        # correct except at the first token of each sequence
        assert batch.start is not None
        score.add(batch, torch.zeros(batch.tokens.shape), batch.targets ^ batch.start.long())
    result = score.result()
    assert (result["accuracy"], result["sequence_accuracy"], result["last_accuracy"]) == (90.0, 0.0, 100.0)


def test_validation_has_the_training_length_by_default() -> None:
    for valid_length, expected in ((0, 5), (8, 8)):
        task = Parity(LengthConfig(length=5, valid_length=valid_length, valid_episodes=3))
        (batch,) = task.batches("valid", 3, 100)
        assert batch.tokens.shape == (3, expected)


def test_invalid_lengths_are_rejected() -> None:
    for name, minimum in (("length", 1), ("test_length", 1), ("valid_length", 0)):
        with pytest.raises(ValueError, match=f"{name} is -1; it must be at least {minimum}"):
            Parity(replace(LengthConfig(), **{name: -1}))
