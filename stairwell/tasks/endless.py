"""One stream without end: how far can a model be followed that was trained on short episodes?

Where the label of a token follows from the tokens so far, an episode can go on for ever: bits, moves, factors. Labels
are worked out as the stream goes, from what the task carries on, so the memory that this takes does not grow. A stream
is known by a seed and a row: which others are read beside it, and in how large segments, changes nothing.

Letters: B streams, T tokens of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.batch_sources import check_segments, to_batch
from stairwell.tasks.generated import Array, Endless, random_numbers

BLOCK = 4096  # tokens of a stream that are made at a time; an even number, for tasks whose tokens come in pairs


class StreamName(NamedTuple):
    seed: int
    row: int


def endless_batches(task: Endless, streams: Sequence[StreamName], tokens: int, segment: int) -> Iterator[Batch]:
    """The first `tokens` tokens of every stream, at most `segment` of them at a time."""
    check_segments(len(streams), segment)
    opening = np.tile(np.array(task.opening, dtype=np.int64), (len(streams), 1))[:, :tokens]
    yield from _segments(opening, np.full(opening.shape, IGNORE), segment)
    left, before = tokens - opening.shape[1], None
    for block in count():
        if left <= 0:
            return
        drawn = [task.go_on(random_numbers("endless", row, block, seed), BLOCK) for seed, row in streams]
        symbols = np.stack(drawn)  # (B, T)
        labels, before = task.follow(symbols, before)
        asked = task.asks(block * BLOCK + np.arange(1, BLOCK + 1))
        yield from _segments(symbols[:, :left], np.where(asked, labels, IGNORE)[:, :left], segment)
        left -= BLOCK


def _segments(tokens: Array, targets: Array, segment: int) -> Iterator[Batch]:
    for first in range(0, tokens.shape[1], segment):
        part = slice(first, first + segment)
        yield to_batch(tokens[:, part], targets[:, part], None)
