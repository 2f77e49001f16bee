"""Encoded text as a model reads it: documents one after the other, episodes of one length, tokens with labels. The ids
may be memory-mapped; only what is read is loaded. n tokens in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from stairwell.data.cache import Array

IGNORE = -100  # a target that is not scored; the number that torch's cross entropy ignores


class Encoded(Protocol):
    """A split: tokens one after the other. Places are of any shape, and so is what is read there."""

    divisible: ClassVar[bool]  # rows may be cut elsewhere than where the text begins anew

    @property
    def unit(self) -> int:
        """Rows of training begin at multiples of that many tokens."""

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
    unit: ClassVar[int] = 1
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

    @property
    def unit(self) -> int:
        return self.size  # so that rows stay in step

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
class LabeledTokens:
    """Episodes one after the other, and a label for each of their tokens."""

    divisible: ClassVar[bool] = False
    unit: ClassVar[int] = 1
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


def _among(places: Array, members: Array) -> Array:
    """Which places are members of a sorted array."""
    found = np.searchsorted(members, places)
    return members[np.minimum(found, len(members) - 1)] == places
