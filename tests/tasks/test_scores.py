"""Metrics do not depend on segments."""

from __future__ import annotations

from math import isnan, log

import pytest
import torch

from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.scores import SequenceScore, TokenScore

pytestmark = pytest.mark.quick


def test_loss_and_accuracy_are_of_the_scored_tokens() -> None:
    batch = TokenBatch(torch.zeros(2, 3, dtype=torch.long), torch.tensor([[4, IGNORE_INDEX, 2], [IGNORE_INDEX, 0, 1]]))
    score = TokenScore()
    score.add(batch, torch.tensor([[1.0, 9.0, 0.5], [9.0, 2.0, 0.5]]), torch.tensor([[4, IGNORE_INDEX, 2], [0, 1, 1]]))
    assert score.result() == {"loss": 1.0, "scored": 4, "accuracy": 75.0, "error": 25.0}


def test_excluded_tokens_do_not_count() -> None:
    batch = TokenBatch(torch.tensor([[7, 1, 1, 7]]), torch.tensor([[0, 0, 0, IGNORE_INDEX]]))
    score = TokenScore(is_scored=lambda tokens: tokens != 7)
    score.add(batch, torch.tensor([[100.0, 1.0, 3.0, 0.0]]), torch.tensor([[1, 0, 1, 0]]))
    assert score.result() == {"loss": 2.0, "scored": 2, "accuracy": 50.0, "error": 50.0}


def test_half_precision_losses_are_summed_exactly() -> None:
    batch = TokenBatch(torch.zeros(1, 5000, dtype=torch.long), torch.zeros(1, 5000, dtype=torch.long))
    score = TokenScore()
    score.add(batch, torch.full((1, 5000), 0.5, dtype=torch.bfloat16), batch.tokens)
    assert score.result()["loss"] == 0.5


@pytest.mark.parametrize("score", [TokenScore(), SequenceScore()])
def test_without_scored_tokens_the_metrics_are_nan(score: TokenScore) -> None:
    assert score.result()["scored"] == 0
    assert all(isnan(value) for name, value in score.result().items() if name not in ("scored", "sequences"))


def expected_sequences(targets: list[int], predictions: list[int], starts: list[bool]) -> list[list[bool]]:
    """Return whether each scored token of each sequence of a stream is correct."""
    sequences: list[list[bool]] = [[]]
    for target, prediction, start in zip(targets, predictions, starts):
        if start:
            sequences.append([])
        if target != IGNORE_INDEX:
            sequences[-1].append(target == prediction)
    return [sequence for sequence in sequences if sequence]


@pytest.mark.parametrize("seed", range(20))
def test_sequence_accuracies_do_not_depend_on_segments(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    B, T = 4, 60
    targets = torch.where(torch.rand(B, T, generator=generator) < 0.4, IGNORE_INDEX, 1)
    predictions = (torch.rand(B, T, generator=generator) < 0.8).long()
    starts = torch.rand(B, T, generator=generator) < 0.15
    starts[1] = False  # one endless sequence
    targets[2, 20:] = IGNORE_INDEX  # a stream that ends early
    streams = zip(targets.tolist(), predictions.tolist(), starts.tolist())
    sequences = [sequence for stream in streams for sequence in expected_sequences(*stream)]
    expected = {
        "sequences": len(sequences),
        "sequence_accuracy": pytest.approx(100 * sum(all(sequence) for sequence in sequences) / len(sequences)),
        "last_accuracy": pytest.approx(100 * sum(sequence[-1] for sequence in sequences) / len(sequences)),
    }
    for segment in (1, 3, 7, 60):
        score = SequenceScore()
        for first in range(0, T, segment):
            part = slice(first, first + segment)
            batch = TokenBatch(targets[:, part], targets[:, part], starts[:, part])
            score.add(batch, torch.full(batch.tokens.shape, log(2)), predictions[:, part])
            score.result()  # has no side effects
        assert {name: score.result()[name] for name in expected} == expected
        correct = sum(sum(sequence) for sequence in sequences)
        assert score.result()["accuracy"] == pytest.approx(100 * correct / score.result()["scored"])
        assert score.result()["loss"] == pytest.approx(log(2))


def test_sequence_scores_require_start_flags() -> None:
    tokens = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="no start flags"):
        SequenceScore().add(TokenBatch(tokens, tokens), torch.zeros(1, 1), tokens)
