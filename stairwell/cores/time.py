"""What every walk over time needs: the age of each token, its window, and the memory it leaves behind.

Letters: B rows, T tokens of this call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

TAIL = 32  # tokens that are gathered one by one before they become a piece of their own


def ages(count: Tensor, start: Tensor | None, T: int) -> Tensor:
    """How many tokens of its own a row has read before each token of this call. (B,), (B, T) bool -> (B, T)

    Everything that depends on where a row began (who is visible, where chunks end) follows from this.
    """
    steps = torch.arange(T, device=count.device)
    age = count[:, None] + steps
    if start is None:
        return age
    begun = torch.where(start, steps, -1).cummax(1).values  # the last start at or before each token
    return torch.where(begun >= 0, steps - begun, age)


def counts(count: Tensor, croppable: Tensor, start: Tensor | None, age: Tensor, max_crop: int) -> tuple[Tensor, Tensor]:
    """A row's count and how far it can be cropped, after this call."""
    T = age.shape[1]
    after = age[:, -1] + 1
    croppable = croppable + T
    if start is not None:
        croppable = torch.where(start.any(1), after, croppable)
    return after, croppable.clamp(max=max_crop)


@dataclass(frozen=True)
class Window:
    """What a token sees in Feedback and Transformer-XL: the distances first..last, as far back as its row goes.

    A token of age a has a tokens of its row before it, so the distances up to a are filled."""

    first: int  # 0 if it sees itself, else 1
    last: int

    @property
    def distances(self) -> int:
        return self.last + 1 - self.first

    def trimmed(self, last: int) -> Window:
        """The same for a layer that looks no farther than `last`."""
        return Window(self.first, min(self.last, last))

    def sees(self, distance: Tensor, age: Tensor) -> Tensor:
        return (self.first <= distance) & (distance <= self.last) & filled(distance, age)

    def sees_nothing(self, age: Tensor) -> Tensor:
        return age < self.first

    def always_filled(self, newest: int) -> bool:
        """Whether all distances are filled for tokens of this age and older ones."""
        return newest >= self.last


def filled(distance: Tensor, age: Tensor) -> Tensor:
    """Whether there is a token so far before one of this age."""
    return distance <= age


def slide(memory: Tensor, new: Tensor, count: Tensor, start: Tensor | None) -> Tensor:
    """The memory after the tokens `new`: as many slots as before, newest last, what lies before a start zeroed.

    memory (B, slots, ...), new (B, T, ...), count (B,) after the call. Copies the memory once.
    """
    slots, T = memory.shape[1], new.shape[1]
    moved = torch.cat([memory[:, min(T, slots) :], new[:, max(T - slots, 0) :]], 1)
    return moved if start is None else forget(moved, count)


def after(state: Any, new: Tensor, age: Tensor, start: Tensor | None) -> Any:
    """A state of one memory after the tokens `new`, whose ages are those of this call."""
    count, croppable = counts(state.count, state.croppable, start, age, state.max_crop)
    return replace(state, count=count, croppable=croppable, memory=slide(state.memory, new, count, start))


def forget(memory: Tensor, count: Tensor) -> Tensor:
    """Zero the slots that are older than the row's start. memory (B, slots, ...), count (B,)"""
    slots = memory.shape[1]
    old = ~filled(torch.arange(slots, 0, -1, device=memory.device), count[:, None])
    return memory.masked_fill_(old.view(*old.shape, *[1] * (memory.dim() - 2)), 0)


class GrowingSequence:
    """Keys (or values) along time, (B, H, time, K), that grows at its end and is read as a few views.

    The memory that a call begins with is never copied. New tokens are merged into pieces of growing size, like the
    digits of a binary counter, so T tokens lie in about log T pieces and each was copied about log T times.
    """

    def __init__(self, memory: Tensor) -> None:
        self.pieces = [memory]

    def append(self, new: Tensor) -> None:
        self.pieces.append(new)
        while len(self.pieces) > 2 and self._size(-2) <= max(self._size(-1), TAIL - 1):
            new = self.pieces.pop()
            self.pieces[-1] = torch.cat([self.pieces[-1], new], 2)

    def back(self, near: int, far: int) -> list[Tensor]:
        """The slots from `far` (not included) to `near` before the end, oldest first: back(0, S) are the last S."""
        views: list[Tensor] = []
        end = 0  # slots behind the piece
        for piece in reversed(self.pieces):
            size = piece.shape[2]
            first, last = max(size + end - far, 0), min(size + end - near, size)
            if first < last:
                views.append(piece[:, :, first:last])
            end += size
        return views[::-1]

    def _size(self, piece: int) -> int:
        return self.pieces[piece].shape[2]


class KeysValues:
    """The keys and values of one memory as one layer (or all layers) reads it, along time."""

    def __init__(self, project: Callable[[Tensor], tuple[Tensor, Tensor]], memory: Tensor) -> None:
        self.project = project
        keys, values = project(memory)
        self.keys, self.values = GrowingSequence(keys), GrowingSequence(values)

    def append(self, memory: Tensor) -> None:
        """Project new memory vectors (B, t, D) and put them at the end."""
        self.append_projected(*self.project(memory))

    def append_projected(self, keys: Tensor, values: Tensor) -> None:
        self.keys.append(keys)
        self.values.append(values)

    def back(self, near: int, far: int) -> tuple[list[Tensor], list[Tensor]]:
        return self.keys.back(near, far), self.values.back(near, far)


def along_time(vectors: Sequence[Tensor]) -> Tensor:
    """Tokens of a call in pieces (B, t, ...), as one tensor."""
    return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors), 1)
