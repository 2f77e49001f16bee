"""Training feeds and splits of a sequence that lies on disk.

Letters: B rows, T tokens of one read.
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
from stairwell.tasks.base import IGNORE, Batch


class SequenceSource:
    """One fixed sequence in `batch` parallel rows, without end: row r begins r/batch of the way into the sequence and
    goes on with its first token after its last. Where the sequence has starts, a row also begins anew at its own first
    token and wherever it wraps around."""

    def __init__(self, data: Encoded, rows: range, batch: int) -> None:
        if len(data) == 0:
            raise UserError("the training sequence is empty; it needs at least one token")
        check_rows(rows, batch)
        self.data = data
        self._begins = np.array([row * (len(data) // data.unit) // batch * data.unit for row in rows], dtype=np.int64)
        self._offsets = self._begins.copy()  # never wrapped, so that a row's first token is told from its second lap

    def read(self, length: int) -> Batch:
        places = self._offsets[:, None] + np.arange(length)  # (B, T)
        index = places % len(self.data)
        start = None
        if self.data.begins is not None:
            start = self.data.starts(index) | (index == 0) | (places == self._begins[:, None])
        self._offsets += length
        return to_batch(self.data.tokens(index), self.data.targets(index), start)

    def change(self, **options: Any) -> None:
        raise UserError(
            f"cannot change {', '.join(options) or 'anything'} of a fixed training sequence; "
            "a curriculum needs an endless training set"
        )

    def position(self) -> dict[str, Any]:
        return {"rows": self._offsets.tolist(), "options": {}}

    def seek(self, position: dict[str, Any]) -> None:
        check_position(position, len(self._offsets))
        self._offsets = np.array(position["rows"], dtype=np.int64)


def split_batches(data: Encoded, rows: int, segment: int) -> Iterator[Batch]:
    """Every token of a split once, in `rows` rows.

    With at least as many documents as rows, the rows are cut where documents begin, and how many there are changes no
    result; episodes are never cut. Otherwise the cuts are even: the first tokens of a row are read without what came
    before them. A row's first token is then the target of the last one of the row before, so that it is still scored.
    """
    check_segments(rows, segment)
    edges = _cuts(data, rows)
    length = int(np.diff(edges).max())
    return (_read(data, edges, begin, min(segment, length - begin)) for begin in range(0, length, segment))


def _cuts(data: Encoded, rows: int) -> Array:
    """Where each of the rows begins and, at last, where the last one ends: (rows + 1,)."""
    even = np.arange(rows + 1) * len(data) // rows
    if data.begins is None or (data.divisible and len(data.begins) < rows):
        return even
    edges = np.append(data.begins, len(data))
    # Each cut moves to the nearest edge. A row that is left without a document has nothing but filling.
    after = np.searchsorted(edges, even)
    before = np.maximum(after - 1, 0)
    return np.where(even - edges[before] < edges[after] - even, edges[before], edges[after])


def _read(data: Encoded, edges: Array, begin: int, length: int) -> Batch:
    """Tokens `begin` to `begin + length` of every row; a row that has ended is filled up with token 0, not scored."""
    shape = (len(edges) - 1, length)
    tokens, targets, start = np.zeros(shape, np.int64), np.full(shape, IGNORE, np.int64), np.zeros(shape, bool)
    for row, (first, end) in enumerate(pairwise(edges)):
        places = np.arange(first + begin, min(first + begin + length, end))
        filled = len(places)
        tokens[row, :filled] = data.tokens(places)
        targets[row, :filled] = data.targets(places)
        start[row, :filled] = data.starts(places)
    return to_batch(tokens, targets, None if data.begins is None else start)


def to_batch(tokens: Array, targets: Array, start: Array | None) -> Batch:
    return Batch(
        torch.from_numpy(np.asarray(tokens, dtype=np.int64)),
        torch.from_numpy(np.asarray(targets, dtype=np.int64)),
        None if start is None else torch.from_numpy(np.asarray(start, dtype=bool)),
    )


def check_rows(rows: range, batch: int) -> None:
    if batch < 1 or len(rows) == 0 or min(rows) < 0 or max(rows) >= batch:
        raise UserError(f"rows {rows} of a batch of {batch}; rows must be some of 0..batch-1")


def check_position(position: dict[str, Any], rows: int) -> None:
    if len(position["rows"]) != rows:
        raise UserError(f"a position of {len(position['rows'])} rows for a feed of {rows} rows; they must agree")


def check_segments(rows: int, segment: int) -> None:
    if rows < 1 or segment < 1:
        raise UserError(f"{rows} rows of segments of {segment} tokens; both must be at least 1")
