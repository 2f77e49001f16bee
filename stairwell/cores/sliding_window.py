"""Helpers of the reference forwards: tokens since start, attention windows, and the memory after a call.

Letters: B batch size, T tokens of this call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_SEGMENT = 32  # a segment with fewer tokens is merged with the next one


def tokens_since_start(count: Tensor, start: Tensor | None, T: int) -> Tensor:
    """Return the number of tokens since the last reset before each token of this call. (B,), (B, T) bool -> (B, T)

    Everything that depends on the start of a stream (visible slots, chunk boundaries) is computed from this.
    """
    t = torch.arange(T, device=count.device)
    since_start = count[:, None] + t
    if start is None:
        return since_start
    last_start = torch.where(start, t, -1).cummax(1).values  # the last start at or before each token
    return torch.where(last_start >= 0, t - last_start, since_start)


def next_counts(
    count: Tensor, croppable: Tensor, start: Tensor | None, since_start: Tensor, max_crop: int
) -> tuple[Tensor, Tensor]:
    """Return `count` and `croppable` after this call. since_start (B, T)"""
    T = since_start.shape[1]
    next_count = since_start[:, -1] + 1
    croppable = croppable + T
    if start is not None:
        croppable = torch.where(start.any(1), next_count, croppable)
    return next_count, croppable.clamp(max=max_crop)


@dataclass(frozen=True)
class Window:
    """The attention window of Feedback and Transformer-XL: the distances first..last, limited to tokens since
    the last reset of the stream."""

    first: int  # 0 if a token attends to itself, else 1
    last: int

    @property
    def distances(self) -> int:
        return self.last + 1 - self.first

    def trimmed(self, last: int) -> Window:
        """Return the window limited to distances up to `last`."""
        return Window(self.first, min(self.last, last))

    def visible(self, distance: Tensor, since_start: Tensor) -> Tensor:
        return (self.first <= distance) & (distance <= self.last) & filled(distance, since_start)

    def is_empty(self, since_start: Tensor) -> Tensor:
        return since_start < self.first

    def always_filled(self, min_since_start: int) -> bool:
        """Return whether all distances are filled for tokens with at least this many tokens since start."""
        return min_since_start >= self.last


def filled(distance: Tensor, since_start: Tensor) -> Tensor:
    """Return whether there is a token at this distance since the stream was last reset."""
    return distance <= since_start


def slide(memory: Tensor, new: Tensor, count: Tensor, start: Tensor | None) -> Tensor:
    """Return the memory after the tokens `new`: the same number of slots, newest last, zero before the last reset.

    memory (B, slots, ...), new (B, T, ...), count (B,) after the call. Copies the memory once.
    """
    slots, T = memory.shape[1], new.shape[1]
    shifted = torch.cat([memory[:, min(T, slots) :], new[:, max(T - slots, 0) :]], 1)
    return shifted if start is None else zero_before_start(shifted, count)


def zero_before_start(memory: Tensor, count: Tensor) -> Tensor:
    """Zero the slots from before each stream's last reset, in place. memory (B, slots, ...), count (B,)"""
    slots = memory.shape[1]
    empty = ~filled(torch.arange(slots, 0, -1, device=memory.device), count[:, None])
    return memory.masked_fill_(empty.view(*empty.shape, *[1] * (memory.dim() - 2)), 0)


class GrowingSequence:
    """Keys (or values) along time, (B, H, time, K), that are appended to and read as a few views.

    The initial memory is never copied. New tokens are merged into segments of growing size, like the digits of a binary
    counter: T tokens make about log T segments, and each token is copied about log T times.
    """

    def __init__(self, memory: Tensor) -> None:
        self.segments = [memory]

    def append(self, new: Tensor) -> None:
        self.segments.append(new)
        while len(self.segments) > 2 and self._size(-2) <= max(self._size(-1), MIN_SEGMENT - 1):
            new = self.segments.pop()
            self.segments[-1] = torch.cat([self.segments[-1], new], 2)

    def slice_back(self, near: int, far: int) -> list[Tensor]:
        """Return views of the slots [end - far, end - near), oldest first; (0, S) are the last S."""
        views: list[Tensor] = []
        following = 0  # slots after the segment
        for segment in reversed(self.segments):
            size = segment.shape[2]
            first, last = max(size + following - far, 0), min(size + following - near, size)
            if first < last:
                views.append(segment[:, :, first:last])
            following += size
        return views[::-1]

    def _size(self, index: int) -> int:
        return self.segments[index].shape[2]


class KeysValues:
    """The keys and values of one memory along time, as projected for one layer (or shared by all).

    With `rounds`, they are rounded to bfloat16; gradients pass through the rounding."""

    def __init__(
        self, project: Callable[[Tensor], tuple[Tensor, Tensor]], memory: Tensor, rounds: bool = False
    ) -> None:
        self.project, self.rounds = project, rounds
        keys, values = map(self.stored, project(memory))
        self.keys, self.values = GrowingSequence(keys), GrowingSequence(values)

    def append(self, memory: Tensor) -> None:
        """Project new memory vectors (B, t, D) and append them."""
        self.append_projected(*self.project(memory))

    def append_projected(self, keys: Tensor, values: Tensor) -> None:
        self.keys.append(self.stored(keys))
        self.values.append(self.stored(values))

    def stored(self, projected: Tensor) -> Tensor:
        if not self.rounds:
            return projected
        exact = projected.detach()
        return projected + (exact.to(torch.bfloat16).to(exact.dtype) - exact)  # the sum is exactly the rounded value

    def slice_back(self, near: int, far: int) -> tuple[list[Tensor], list[Tensor]]:
        return self.keys.slice_back(near, far), self.values.slice_back(near, far)


def concat_time(segments: Sequence[Tensor]) -> Tensor:
    """Concatenate segments of a call (B, t, ...) along time."""
    return segments[0] if len(segments) == 1 else torch.cat(list(segments), 1)
