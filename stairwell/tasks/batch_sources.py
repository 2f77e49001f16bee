"""Training batches and splits of a fixed sequence.

Letters: B streams, T tokens per read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stairwell.data.cache import Array
from stairwell.data.packed import Encoded
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch


class SequenceSource:
    """One fixed sequence as `batch` endless parallel streams: stream b starts b/batch of the way into the sequence and
    continues with its first token after its last. If the sequence has resets, a stream is also reset at its own first
    token and wherever it wraps around."""

    def __init__(self, data: Encoded, streams: range, batch: int) -> None:
        if len(data) == 0:
            raise UserError("the training sequence is empty; it needs at least one token")
        check_streams(streams, batch)
        self.data = data
        units = len(data) // data.alignment
        self._starts = np.array([stream * units // batch * data.alignment for stream in streams], dtype=np.int64)
        self._offsets = self._starts.copy()  # not wrapped, so the first token differs from the same one an epoch later

    def read(self, length: int) -> TokenBatch:
        offsets = self._offsets[:, None] + np.arange(length)  # (B, T)
        positions = offsets % len(self.data)
        start = None
        if self.data.start_positions is not None:
            start = self.data.starts(positions) | (positions == 0) | (offsets == self._starts[:, None])
        self._offsets += length
        return to_batch(self.data.tokens(positions), self.data.targets(positions), start)

    def change(self, **options: Any) -> None:
        raise UserError(
            f"cannot change {', '.join(options) or 'anything'} of a fixed training sequence; "
            "a curriculum needs an endless training set"
        )

    def position(self) -> dict[str, Any]:
        return {"streams": self._offsets.tolist(), "options": {}}

    def seek(self, position: dict[str, Any]) -> None:
        check_position(position, len(self._offsets))
        self._offsets = np.array(position["streams"], dtype=np.int64)


def split_batches(data: Encoded, batch: int, segment: int) -> Iterator[TokenBatch]:
    """Yield every token of a split once, in `batch` streams.

    With at least as many documents as streams, streams start where documents start, and the batch size does not change
    the result; episodes are never split. Otherwise streams have equal lengths, and the first tokens of a stream are
    read without their context. The first token of a stream is then the target of the last token of the stream before,
    so it is still scored.
    """
    check_segments(batch, segment)
    edges = _stream_edges(data, batch)
    length = int(np.diff(edges).max())
    return (_read(data, edges, first, min(segment, length - first)) for first in range(0, length, segment))


def _stream_edges(data: Encoded, batch: int) -> Array:
    """Return the position where each stream starts, and the end of the last one: (batch + 1,)."""
    even = np.arange(batch + 1) * len(data) // batch
    if data.start_positions is None or (data.divisible and len(data.start_positions) < batch):
        return even
    documents = np.append(data.start_positions, len(data))
    # Move each edge to the nearest document. A stream without a document has only padding.
    after = np.searchsorted(documents, even)
    before = np.maximum(after - 1, 0)
    return np.where(even - documents[before] < documents[after] - even, documents[before], documents[after])


def _read(data: Encoded, edges: Array, offset: int, length: int) -> TokenBatch:
    """Return tokens `offset` to `offset + length` of every stream; a stream that has ended is padded with token 0,
    which is not scored."""
    shape = (len(edges) - 1, length)
    tokens, targets, start = np.zeros(shape, np.int64), np.full(shape, IGNORE_INDEX, np.int64), np.zeros(shape, bool)
    for b, (first, end) in enumerate(pairwise(edges)):
        positions = np.arange(first + offset, min(first + offset + length, end))
        n = len(positions)
        tokens[b, :n] = data.tokens(positions)
        targets[b, :n] = data.targets(positions)
        start[b, :n] = data.starts(positions)
    return to_batch(tokens, targets, None if data.start_positions is None else start)


def to_batch(tokens: Array, targets: Array, start: Array | None) -> TokenBatch:
    return TokenBatch(
        torch.from_numpy(np.asarray(tokens, dtype=np.int64)),
        torch.from_numpy(np.asarray(targets, dtype=np.int64)),
        None if start is None else torch.from_numpy(np.asarray(start, dtype=bool)),
    )


def check_streams(streams: range, batch: int) -> None:
    if batch < 1 or len(streams) == 0 or min(streams) < 0 or max(streams) >= batch:
        raise UserError(f"streams {streams} of a batch of {batch}; indices must be in 0..batch-1")


def check_position(position: dict[str, Any], streams: int) -> None:
    if len(position["streams"]) != streams:
        raise UserError(f"the position has {len(position['streams'])} streams, the batch source {streams}")


def check_segments(batch: int, segment: int) -> None:
    if batch < 1 or segment < 1:
        raise UserError(f"{batch} streams in segments of {segment} tokens; both must be at least 1")
