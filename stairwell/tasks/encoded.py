"""Encoded text as a model reads it: documents one after the other, episodes of one length, tokens with labels. The ids
may be memory-mapped; only what is read is loaded. Letters: n tokens, B rows, T tokens of one read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Protocol, cast

import numpy as np
import torch

from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.cache import Array
from stairwell.tasks.streams import FiniteStream


class Encoded(Protocol):
    """A split: tokens one after the other. Places are of any shape, and so is what is read there."""

    divisible: ClassVar[bool]  # rows may be cut elsewhere than where the text begins anew

    @property
    def begins(self) -> Array | None:
        """Where the text begins anew, in order; None if it never does."""

    def __len__(self) -> int: ...
    def tokens(self, places: Array) -> Array: ...
    def targets(self, places: Array) -> Array: ...
    def starts(self, places: Array) -> Array: ...


@dataclass(frozen=True)
class Packed:
    """Documents one after the other. A token's target is the next one; nothing is scored at the very end and at the
    last token before a start, where no model could know what comes next."""

    divisible: ClassVar[bool] = True
    ids: Array  # (n,)
    begins: Array | None = None  # (documents,)

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, places: Array) -> Array:
        return self.ids[places].astype(np.int64)

    def targets(self, places: Array) -> Array:
        following = places + 1
        unknown = (following == len(self)) | self.starts(following)
        return np.where(unknown, IGNORE, self.tokens(np.minimum(following, len(self) - 1)))

    def starts(self, places: Array) -> Array:
        return np.zeros(places.shape, bool) if self.begins is None else _among(places, self.begins)


@dataclass(frozen=True)
class Episodic:
    """Documents cut into episodes of `size` tokens, each a fresh start; the last one of a document is filled up with
    token 0, which is not scored. A last episode of one token has nothing to score and is left out."""

    divisible: ClassVar[bool] = False
    packed: Packed
    size: int

    @cached_property
    def _episodes(self) -> tuple[Array, Array]:
        """Where each episode begins among the ids, and how many of them it has."""
        begins = self.packed.begins if self.packed.begins is not None else np.zeros(1, np.int64)
        lengths = np.diff(begins, append=len(self.packed))
        counts = -(-lengths // self.size)
        number_in_document = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        skipped = number_in_document * self.size
        left = np.repeat(lengths, counts) - skipped
        kept = left > 1
        return (np.repeat(begins, counts) + skipped)[kept], np.minimum(left, self.size)[kept]

    @property
    def begins(self) -> Array:
        return np.arange(len(self._episodes[0])) * self.size

    def __len__(self) -> int:
        return len(self._episodes[0]) * self.size

    def tokens(self, places: Array) -> Array:
        begins, lengths = self._episodes
        episode, offset = places // self.size, places % self.size
        present = offset < lengths[episode]
        return np.where(present, self.packed.tokens(np.where(present, begins[episode] + offset, 0)), 0)

    def targets(self, places: Array) -> Array:
        begins, lengths = self._episodes
        episode, following = places // self.size, places % self.size + 1
        scored = following < lengths[episode]
        return np.where(scored, self.packed.tokens(np.where(scored, begins[episode] + following, 0)), IGNORE)

    def starts(self, places: Array) -> Array:
        return places % self.size == 0


@dataclass(frozen=True)
class LabelledTokens:
    """Episodes one after the other, and a label for each of their tokens."""

    divisible: ClassVar[bool] = False
    ids: Array  # (n,)
    labels: Array  # (n,): 0 is not scored, i + 1 is label i
    begins: Array  # (episodes,)

    @property
    def episodes(self) -> int:
        return len(self.begins)

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, places: Array) -> Array:
        return self.ids[places].astype(np.int64)

    def targets(self, places: Array) -> Array:
        labels = self.labels[places].astype(np.int64)
        return np.where(labels == 0, IGNORE, labels - 1)

    def starts(self, places: Array) -> Array:
        return _among(places, self.begins)


def training_stream(data: Encoded, rows: range, batch: int) -> FiniteStream:
    tokens, targets, starts = (
        cast(Array, Column(read, len(data))) for read in (data.tokens, data.targets, data.starts)
    )
    unit = data.size if isinstance(data, Episodic) else 1  # rows that begin with an episode stay in step
    return FiniteStream(tokens, targets, rows, batch, None if data.begins is None else starts, unit)


def split_batches(data: Encoded, rows: int, segment: int) -> Iterator[Batch]:
    """Every token of a split once, in `rows` rows.

    With at least as many documents as rows, the rows are cut where documents begin, and how many there are changes no
    result; episodes are never cut. Otherwise the cuts are even: the first tokens of a row are read without what came
    before them. A row's first token is then the target of the last one of the row before, so that it is still scored.
    """
    if rows < 1 or segment < 1:
        raise ValueError(f"{rows} rows of segments of {segment} tokens; both must be at least 1")
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
    return Batch(
        torch.from_numpy(tokens), torch.from_numpy(targets), None if data.begins is None else torch.from_numpy(start)
    )


@dataclass(frozen=True)
class Column:
    """What is read at places, as something to index like an array."""

    read: Callable[[Array], Array]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, places: Array) -> Array:
        return self.read(places)


def _among(places: Array, members: Array) -> Array:
    """Which places are members of a sorted array."""
    found = np.searchsorted(members, places)
    return members[np.minimum(found, len(members) - 1)] == places
