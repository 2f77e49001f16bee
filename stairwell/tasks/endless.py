"""Endless streams: how long does a model that was trained on short episodes stay correct?

If the label of a token follows from the tokens so far, an episode can continue without end: bits, moves, factors.
Labels are computed block by block from a carried state, so memory does not grow. A stream is identified by a seed and
a number; it does not depend on the streams it is batched with or on the segment length.

Letters: B streams, T tokens per block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.batch_sources import check_segments, to_batch
from stairwell.tasks.generated import Array, EndlessStream, random_generator

BLOCK = 4096  # tokens generated at a time; even, for tasks whose tokens come in pairs


class StreamId(NamedTuple):
    seed: int
    number: int


def endless_batches(
    task: EndlessStream, streams: Sequence[StreamId], tokens: int, segment: int
) -> Iterator[TokenBatch]:
    """Yield the first `tokens` tokens of every stream, at most `segment` at a time."""
    check_segments(len(streams), segment)
    prefix = np.tile(np.array(task.prefix, dtype=np.int64), (len(streams), 1))[:, :tokens]
    yield from _segments(prefix, np.full(prefix.shape, IGNORE_INDEX), segment)
    remaining, carry = tokens - prefix.shape[1], None
    for block in count():
        if remaining <= 0:
            return
        generators = [random_generator("endless", number, block, seed) for seed, number in streams]
        ids = np.stack([task.generate(generator, BLOCK) for generator in generators])  # (B, T)
        labels, carry = task.labels(ids, carry)
        scored = task.is_scored(block * BLOCK + np.arange(1, BLOCK + 1))
        yield from _segments(ids[:, :remaining], np.where(scored, labels, IGNORE_INDEX)[:, :remaining], segment)
        remaining -= BLOCK


def _segments(tokens: Array, targets: Array, segment: int) -> Iterator[TokenBatch]:
    for first in range(0, tokens.shape[1], segment):
        part = slice(first, first + segment)
        yield to_batch(tokens[:, part], targets[:, part], None)
