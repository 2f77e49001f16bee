"""Scores count what they say, however the split is cut into segments."""

from __future__ import annotations

from math import isnan, log

import pytest
import torch

from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.scores import SequenceScore, TokenScore


def test_loss_and_accuracy_are_those_of_the_scored_tokens() -> None:
    batch = Batch(torch.zeros(2, 3, dtype=torch.long), torch.tensor([[4, IGNORE, 2], [IGNORE, 0, 1]]))
    score = TokenScore()
    score.add(batch, torch.tensor([[1.0, 9.0, 0.5], [9.0, 2.0, 0.5]]), torch.tensor([[4, IGNORE, 2], [0, 1, 1]]))
    assert score.result() == {"loss": 1.0, "scored": 4, "accuracy": 75.0, "error": 25.0}


def test_a_token_that_does_not_count_is_left_out_of_everything() -> None:
    batch = Batch(torch.tensor([[7, 1, 1, 7]]), torch.tensor([[0, 0, 0, IGNORE]]))
    score = TokenScore(counts=lambda tokens: tokens != 7)
    score.add(batch, torch.tensor([[100.0, 1.0, 3.0, 0.0]]), torch.tensor([[1, 0, 1, 0]]))
    assert score.result() == {"loss": 2.0, "scored": 2, "accuracy": 50.0, "error": 50.0}


def test_losses_of_half_precision_are_added_up_exactly() -> None:
    batch = Batch(torch.zeros(1, 5000, dtype=torch.long), torch.zeros(1, 5000, dtype=torch.long))
    score = TokenScore()
    score.add(batch, torch.full((1, 5000), 0.5, dtype=torch.bfloat16), batch.tokens)
    assert score.result()["loss"] == 0.5


@pytest.mark.parametrize("score", [TokenScore(), SequenceScore()])
def test_nothing_scored_has_no_accuracy(score: TokenScore) -> None:
    assert score.result()["scored"] == 0
    assert all(isnan(value) for name, value in score.result().items() if name not in ("scored", "sequences"))


def by_hand(targets: list[int], guesses: list[int], starts: list[bool]) -> list[list[bool]]:
    """For each sequence of a row, whether each of its scored tokens is right."""
    sequences: list[list[bool]] = [[]]
    for target, guess, start in zip(targets, guesses, starts):
        if start:
            sequences.append([])
        if target != IGNORE:
            sequences[-1].append(target == guess)
    return [sequence for sequence in sequences if sequence]


@pytest.mark.parametrize("seed", range(20))
def test_sequences_are_judged_whole_wherever_segments_are_cut(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    B, T = 4, 60
    targets = torch.where(torch.rand(B, T, generator=rng) < 0.4, IGNORE, 1)
    guesses = (torch.rand(B, T, generator=rng) < 0.8).long()
    starts = torch.rand(B, T, generator=rng) < 0.15
    starts[1] = False  # one endless sequence
    targets[2, 20:] = IGNORE  # a row that ends early
    judged = [s for row in zip(targets.tolist(), guesses.tolist(), starts.tolist()) for s in by_hand(*row)]
    expected = {
        "sequences": len(judged),
        "sequence_accuracy": pytest.approx(100 * sum(all(sequence) for sequence in judged) / len(judged)),
        "last_accuracy": pytest.approx(100 * sum(sequence[-1] for sequence in judged) / len(judged)),
    }
    for segment in (1, 3, 7, 60):
        score = SequenceScore()
        for at in range(0, T, segment):
            piece = slice(at, at + segment)
            batch = Batch(targets[:, piece], targets[:, piece], starts[:, piece])
            score.add(batch, torch.full(batch.tokens.shape, log(2)), guesses[:, piece])
            score.result()  # a look in between changes nothing
        assert {name: score.result()[name] for name in expected} == expected
        right = sum(sum(sequence) for sequence in judged)
        assert score.result()["accuracy"] == pytest.approx(100 * right / score.result()["scored"])
        assert score.result()["loss"] == pytest.approx(log(2))


def test_sequences_cannot_be_told_apart_without_start_flags() -> None:
    tokens = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="without start flags"):
        SequenceScore().add(Batch(tokens, tokens), torch.zeros(1, 1), tokens)
