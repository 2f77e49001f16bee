"""Scores of labeled tasks: the loss and the accuracy of tokens, and of whole sequences.

A token is scored if its target is not IGNORE. Accuracies and errors are in percent. Where nothing is scored, what would
be divided by zero is not a number.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import torch
from torch import Tensor

from .base import IGNORE, Batch


class TokenScore:
    """`loss` (nats per scored token), `scored`, `accuracy` and `error` of the scored tokens.

    `counts(tokens)` tells for each input token whether it counts; a token that does not is left out of all four.
    """

    def __init__(self, counts: Callable[[Tensor], Tensor] | None = None) -> None:
        self._counts = counts
        self._loss = 0.0
        self._scored = 0
        self._right = 0

    def add(self, batch: Batch, nll: Tensor, predictions: Tensor) -> None:
        scored, right = self._judge(batch, predictions)
        self._loss += float(nll.cpu()[scored].sum(dtype=torch.float64))
        self._scored += int(scored.sum())
        self._right += int(right.sum())

    def result(self) -> dict[str, float]:
        accuracy = _percent(self._right, self._scored)
        loss = self._loss / self._scored if self._scored else nan
        return {"loss": loss, "scored": self._scored, "accuracy": accuracy, "error": 100 - accuracy}

    def _judge(self, batch: Batch, predictions: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are scored, and which of those are right: (B, T) bool."""
        targets = batch.targets.cpu()
        scored = targets != IGNORE
        if self._counts is not None:
            scored &= self._counts(batch.tokens.cpu())
        return scored, scored & (predictions.cpu() == targets)


class SequenceScore(TokenScore):
    """Adds `sequences`, `sequence_accuracy` (sequences whose scored tokens are all right) and `last_accuracy`
    (sequences whose last scored token is right).

    A sequence runs from one start flag of its row to the next, over as many segments as it takes. One without a scored
    token does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._closed = torch.zeros(3, dtype=torch.int64)  # how many sequences, all right, right at the last token
        self._open: Tensor | None = None  # (3, B), of the sequences under way: tokens scored, right, last one right

    def add(self, batch: Batch, nll: Tensor, predictions: Tensor) -> None:
        super().add(batch, nll, predictions)
        if batch.start is None:
            raise ValueError("a batch without start flags; they are what tells sequences apart")
        scored, right = self._judge(batch, predictions)
        B, T = scored.shape
        # 0 is the sequence that was under way before this segment
        sequence = batch.start.cpu().long().cumsum(dim=1)  # (B, T)
        tally = torch.zeros(3, B, int(sequence.max()) + 1, dtype=torch.int64)
        tally[0].scatter_add_(1, sequence, scored.long())
        tally[1].scatter_add_(1, sequence, right.long())
        place = torch.arange(1, T + 1) * scored
        last = torch.zeros_like(tally[0]).scatter_reduce_(1, sequence, place, "amax")  # 0: none scored here
        tally[2] = torch.where(last > 0, right.long().gather(1, (last - 1).clamp(min=0)), 0)
        if self._open is not None:
            tally[:2, :, 0] += self._open[:2]
            tally[2, :, 0] = torch.where(last[:, 0] > 0, tally[2, :, 0], self._open[2])
        newest = sequence[:, -1:]
        self._closed += _count(tally[:, torch.arange(tally.shape[2]) < newest])
        self._open = tally.gather(2, newest.expand(3, B, 1)).squeeze(2)

    def result(self) -> dict[str, float]:
        total = self._closed if self._open is None else self._closed + _count(self._open)
        sequences, whole, last = total.tolist()
        return super().result() | {
            "sequences": sequences,
            "sequence_accuracy": _percent(whole, sequences),
            "last_accuracy": _percent(last, sequences),
        }


def _count(tally: Tensor) -> Tensor:
    """From tokens scored, right and last right (3, n) of n sequences: how many they are, all right, last right."""
    scored, right, last = tally
    return torch.stack([(scored > 0).sum(), ((scored > 0) & (right == scored)).sum(), last.sum()])


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else nan
