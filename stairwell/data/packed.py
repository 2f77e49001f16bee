"""Encoded data as a model reads it: packed documents, episodes of one length, labeled tokens. The token ids may be
memory-mapped; only what is read is loaded. Letters: n tokens in total."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from stairwell.data.cache import Array
from stairwell.models import IGNORE_INDEX


class Encoded(Protocol):
    """One split as a sequence of tokens. Positions may have any shape; results have the same shape."""

    divisible: ClassVar[bool]  # evaluation streams may start inside a document

    @property
    def alignment(self) -> int:
        """Training streams start at multiples of this many tokens."""

    @property
    def start_positions(self) -> Array | None:
        """Positions of the resets, in order; None if there are none."""

    def __len__(self) -> int: ...
    def tokens(self, positions: Array) -> Array: ...
    def targets(self, positions: Array) -> Array: ...
    def starts(self, positions: Array) -> Array: ...


@dataclass(frozen=True)
class Packed:
    """Concatenated documents. The target of a token is the next token. The last token and every token before a reset
    have no target, because no model could predict what follows."""

    divisible: ClassVar[bool] = True
    alignment: ClassVar[int] = 1
    ids: Array  # (n,)
    start_positions: Array | None = None  # (documents,)

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, positions: Array) -> Array:
        return self.ids[positions].astype(np.int64)

    def targets(self, positions: Array) -> Array:
        following = positions + 1
        unscored = (following == len(self)) | self.starts(following)
        return np.where(unscored, IGNORE_INDEX, self.tokens(np.minimum(following, len(self) - 1)))

    def starts(self, positions: Array) -> Array:
        if self.start_positions is None:
            return np.zeros(positions.shape, bool)
        return _is_member(positions, self.start_positions)


@dataclass(frozen=True)
class Episodic:
    """Documents split into episodes of `size` tokens, with a reset at each. The last episode of a document is padded
    with token 0, which is not scored. A last episode of one token has no target and is left out."""

    divisible: ClassVar[bool] = False
    packed: Packed
    size: int

    @property
    def alignment(self) -> int:
        return self.size  # all streams reset at the same time

    @cached_property
    def _episodes(self) -> tuple[Array, Array]:
        """The position of each episode among the token ids, and its length without padding."""
        starts = self.packed.start_positions if self.packed.start_positions is not None else np.zeros(1, np.int64)
        lengths = np.diff(starts, append=len(self.packed))
        counts = -(-lengths // self.size)
        number_in_document = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = number_in_document * self.size
        remaining = np.repeat(lengths, counts) - offsets
        scored = remaining > 1
        return (np.repeat(starts, counts) + offsets)[scored], np.minimum(remaining, self.size)[scored]

    @property
    def start_positions(self) -> Array:
        return np.arange(len(self._episodes[0])) * self.size

    def __len__(self) -> int:
        return len(self._episodes[0]) * self.size

    def tokens(self, positions: Array) -> Array:
        starts, lengths = self._episodes
        episode, offset = positions // self.size, positions % self.size
        present = offset < lengths[episode]
        return np.where(present, self.packed.tokens(np.where(present, starts[episode] + offset, 0)), 0)

    def targets(self, positions: Array) -> Array:
        starts, lengths = self._episodes
        episode, following = positions // self.size, positions % self.size + 1
        scored = following < lengths[episode]
        return np.where(scored, self.packed.tokens(np.where(scored, starts[episode] + following, 0)), IGNORE_INDEX)

    def starts(self, positions: Array) -> Array:
        return positions % self.size == 0


@dataclass(frozen=True)
class LabeledTokens:
    """Concatenated episodes with a label per token."""

    divisible: ClassVar[bool] = False
    alignment: ClassVar[int] = 1
    ids: Array  # (n,)
    labels: Array  # (n,): 0 is not scored, i + 1 is label i
    start_positions: Array  # (episodes,)

    @property
    def episodes(self) -> int:
        return len(self.start_positions)

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, positions: Array) -> Array:
        return self.ids[positions].astype(np.int64)

    def targets(self, positions: Array) -> Array:
        labels = self.labels[positions].astype(np.int64)
        return np.where(labels == 0, IGNORE_INDEX, labels - 1)

    def starts(self, positions: Array) -> Array:
        return _is_member(positions, self.start_positions)


def _is_member(values: Array, members: Array) -> Array:
    """Return which values are in a sorted array."""
    nearest = np.searchsorted(members, values)
    return members[np.minimum(nearest, len(members) - 1)] == values
