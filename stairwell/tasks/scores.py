"""Metrics of labeled tasks: the loss and accuracy of tokens, and the accuracy of whole sequences.

A token is scored if its target is not IGNORE_INDEX. Accuracies and errors are in percent. Without scored
tokens they are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import torch
from torch import Tensor

from .base import IGNORE_INDEX, TokenBatch


class TokenScore:
    """Accumulates `loss` (nats per scored token), `scored`, `accuracy` and `error` of the scored tokens.

    `is_scored(tokens)` may exclude input tokens from all four.
    """

    def __init__(self, is_scored: Callable[[Tensor], Tensor] | None = None) -> None:
        self._is_scored = is_scored
        self._loss = 0.0
        self._scored = 0
        self._correct = 0

    def add(self, batch: TokenBatch, nll: Tensor, predictions: Tensor) -> None:
        scored, correct = self._compare(batch, predictions)
        self._loss += float(nll.cpu()[scored].sum(dtype=torch.float64))
        self._scored += int(scored.sum())
        self._correct += int(correct.sum())

    def result(self) -> dict[str, float]:
        accuracy = _percent(self._correct, self._scored)
        loss = self._loss / self._scored if self._scored else nan
        return {"loss": loss, "scored": self._scored, "accuracy": accuracy, "error": 100 - accuracy}

    def _compare(self, batch: TokenBatch, predictions: Tensor) -> tuple[Tensor, Tensor]:
        """Return which tokens are scored, and which of those are correct: (B, T) bool."""
        targets = batch.targets.cpu()
        scored = targets != IGNORE_INDEX
        if self._is_scored is not None:
            scored &= self._is_scored(batch.tokens.cpu())
        return scored, scored & (predictions.cpu() == targets)


class SequenceScore(TokenScore):
    """Adds `sequences`, `sequence_accuracy` (sequences whose scored tokens are all correct) and `last_accuracy`
    (sequences whose last scored token is correct).

    A sequence extends from one start flag of its stream to the next, over any number of segments. Sequences without
    scored tokens do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._finished = torch.zeros(3, dtype=torch.int64)  # sequences, all correct, last token correct
        # (3, B), of the unfinished sequence of each stream: tokens scored, tokens correct, last token correct
        self._unfinished: Tensor | None = None

    def add(self, batch: TokenBatch, nll: Tensor, predictions: Tensor) -> None:
        super().add(batch, nll, predictions)
        if batch.start is None:
            raise ValueError("the batch has no start flags, which separate sequences")
        scored, correct = self._compare(batch, predictions)
        B, T = scored.shape
        # 0 is the sequence that was unfinished before this segment.
        sequence = batch.start.cpu().long().cumsum(dim=1)  # (B, T)
        counts = torch.zeros(3, B, int(sequence.max()) + 1, dtype=torch.int64)
        counts[0].scatter_add_(1, sequence, scored.long())
        counts[1].scatter_add_(1, sequence, correct.long())
        position = torch.arange(1, T + 1) * scored
        last = torch.zeros_like(counts[0]).scatter_reduce_(1, sequence, position, "amax")  # 0: none scored here
        counts[2] = torch.where(last > 0, correct.long().gather(1, (last - 1).clamp(min=0)), 0)
        if self._unfinished is not None:
            counts[:2, :, 0] += self._unfinished[:2]
            counts[2, :, 0] = torch.where(last[:, 0] > 0, counts[2, :, 0], self._unfinished[2])
        newest = sequence[:, -1:]
        self._finished += _count_sequences(counts[:, torch.arange(counts.shape[2]) < newest])
        self._unfinished = counts.gather(2, newest.expand(3, B, 1)).squeeze(2)

    def result(self) -> dict[str, float]:
        total = self._finished if self._unfinished is None else self._finished + _count_sequences(self._unfinished)
        sequences, all_correct, last_correct = total.tolist()
        return super().result() | {
            "sequences": sequences,
            "sequence_accuracy": _percent(all_correct, sequences),
            "last_accuracy": _percent(last_correct, sequences),
        }


def _count_sequences(counts: Tensor) -> Tensor:
    """Return the number of sequences, of those all correct and of those with a correct last token. counts (3, n):
    tokens scored, tokens correct and last token correct, of n sequences."""
    scored, correct, last = counts
    return torch.stack([(scored > 0).sum(), ((scored > 0) & (correct == scored)).sum(), last.sum()])


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else nan
