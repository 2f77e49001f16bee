"""Ring buffers for decoding: keys and values of the past stay where they are; the slot that is written moves on.

A ring has R slots a row. All rows write the same slot at a step, the one at the cursor c, so a slot lies at the same
distance in every row and a row's own age only decides how much of the ring it sees:

    distance of slot j = first + (c - first - j) mod R,     R = S + 1 - first + max_crop

where first is 0 if a token sees itself, else 1. The last `max_crop` tokens can be taken back: the cursor goes back, and
what had left the window is still there.

Nothing is rolled when the cursor moves: the position vectors lie twice in a row in a table, in ring order, and the
slots' vectors are the view of R of them that begins at R - c.

A ring is as long as what is in it: it begins with a few slots and is made longer before it would have to forget what
is still in sight, until it has all R. Letters: B rows, H heads, K head width, R slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.cores.time import Window, filled
from stairwell.layers import AdaptiveSpan, RelativePosition

FEW = 16  # slots that a ring begins with


def longer(slots: int, needed: int, most: int) -> int:
    """The next length of a ring of so many slots: a few more than needed, so that it does not change at every step."""
    return min(most, max(needed, slots + max(FEW, slots // 4)))


class RowBuffer:
    """A tensor (capacity, ...) of which the first rows are in use; rows come, go and change places."""

    def __init__(self, like: Tensor, capacity: int, *shape: int) -> None:
        self.all = like.new_zeros(capacity, *shape)

    def grow(self, capacity: int) -> None:
        grown = self.all.new_zeros(capacity, *self.all.shape[1:])
        grown[: self.all.shape[0]] = self.all
        self.all = grown

    def move(self, rows: Tensor, places: Tensor) -> None:
        """Row b becomes what row rows[b] was; `places` are those that change."""
        self.all.index_copy_(0, places, self.all.index_select(0, rows[places]))

    def clear(self, rows: Tensor) -> None:
        self.all.index_fill_(0, rows, 0)


class RawRing(RowBuffer):
    """The raw memory (capacity, slots, ...), which makes the state again. It may have no slots at all.

    It is read only when a state is asked for, so rows that change places leave their slots where they are: `lies`
    remembers in which row."""

    def __init__(self, like: Tensor, capacity: int, most: int, *shape: int) -> None:
        super().__init__(like, capacity, longer(0, 0, most), *shape)
        self.most = most  # slots of the state
        self.cursor = 0  # the oldest slot, the next to be written
        self.filled = 0  # tokens of the row that has most of them
        self.lies: Tensor | None = None  # (B, slots): the row of each slot; none if it is the row itself

    @property
    def length(self) -> int:
        return self.all.shape[1]

    def lengthen(self, needed: int) -> None:
        """Have room for so many tokens, or for as many as a state has."""
        if min(needed, self.most) <= self.length:
            return
        self.settle()
        more = longer(self.length, needed, self.most) - self.length
        fresh = self.all.new_zeros(self.all.shape[0], more, *self.all.shape[2:])
        self.all = torch.cat([fresh, self.all.roll(-self.cursor, 1)], 1)
        self.cursor = 0

    def move(self, rows: Tensor, places: Tensor) -> None:
        if self.lies is not None:
            self.lies = self.lies[rows]
        elif len(places):
            self.lies = rows[:, None].repeat(1, self.length)

    def settle(self) -> None:
        """Let every slot lie in its own row again."""
        if self.lies is not None:
            self.all[: len(self.lies)] = self.all[self.lies, torch.arange(self.length, device=self.lies.device)]
            self.lies = None

    def clear(self, rows: Tensor) -> None:
        self.settle()
        super().clear(rows)

    def slot(self, batch: int) -> Tensor:
        """The slot to be written, (B, ...); nothing where nothing is kept."""
        self.lengthen(self.filled + 1)
        if self.lies is not None and self.length:
            self.lies[:, self.cursor] = torch.arange(batch, device=self.lies.device)
        return self.all[:batch, self.cursor : self.cursor + 1]

    def slots(self, tokens: int) -> Tensor:
        """The next slots to be written."""
        self.lengthen(self.filled + tokens)
        self.settle()
        return torch.arange(self.cursor, self.cursor + tokens, device=self.all.device) % max(1, self.length)

    def advance(self, tokens: int = 1) -> None:
        self.cursor = (self.cursor + tokens) % max(1, self.length)
        self.filled += tokens

    def back(self, tokens: int) -> None:
        """The last tokens were never written."""
        self.advance(-tokens)
        self.all.index_fill_(1, self.slots(tokens), 0)

    def load(self, first: int, memory: Tensor, filled: int) -> None:
        """memory (b, slots of the state, ...), oldest first, of which the newest `filled` hold something"""
        self.settle()
        self.filled = max(self.filled, filled) if first else filled
        self.lengthen(self.filled)
        n = min(filled, self.length)
        slots = torch.arange(self.cursor - n, self.cursor, device=memory.device) % max(1, self.length)
        rows = self.all[first : first + memory.shape[0]]
        rows.zero_().index_copy_(1, slots, memory[:, self.most - n :])

    def memory(self, batch: int) -> Tensor:
        self.settle()
        memory = self.all[:batch].roll(-self.cursor, 1)
        if self.length == self.most:
            return memory
        return torch.cat([memory.new_zeros(batch, self.most - self.length, *memory.shape[2:]), memory], 1)


class KeyRing:
    """Keys and values as one layer (or all layers) reads them. Slots that a row has not filled hold zero values, so a
    row that sees nothing reads nothing, whatever its weights are.

    A head's slots lie side by side, (B, H, K, R): products with one query run along them, which on a CPU is up to twice
    as fast as across; a write, once a token, is scattered for it."""

    def __init__(self, like: Tensor, capacity: int, H: int, R: int, K: int) -> None:
        self.keys, self.values = RowBuffer(like, capacity, H, K, R), RowBuffer(like, capacity, H, K, R)

    def fit(self, B: int) -> None:
        """Make the views that a step of B rows needs."""
        self.key_slots, self.value_slots = self.keys.all[:B], self.values.all[:B]
        self.flat_keys = self.key_slots.flatten(0, 1)  # (B * H, K, R)
        self.flat_values = self.value_slots.flatten(0, 1).transpose(1, 2)  # (B * H, R, K)

    def write(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """keys, values (B, H * K)"""
        shape = self.key_slots.shape[:-1]
        self.key_slots.select(3, slot).copy_(keys.view(shape))
        self.value_slots.select(3, slot).copy_(values.view(shape))

    def write_run(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys, values (B * T, H * K) into slots (T,)"""
        B, H, K, _ = self.key_slots.shape
        for rows, given in ((self.key_slots, keys), (self.value_slots, values)):
            rows.index_copy_(3, slots, given.reshape(B, -1, H, K).permute(0, 2, 3, 1))

    def load(self, first: int, keys: Tensor, values: Tensor, begin: int) -> None:
        """Rows from `first` on get keys, values (b, H, S, K), oldest first, and nothing else; the oldest goes to slot
        `begin`."""
        b, _, S, _ = keys.shape
        R = self.keys.all.shape[3]
        slots = torch.arange(begin, begin + S, device=keys.device) % R
        for rows, given in ((self.keys, keys), (self.values, values)):
            rows.all[first : first + b].zero_().index_copy_(3, slots, given.transpose(2, 3))

    def lengthen(self, R: int, cursor: int) -> None:
        """Have R slots; the oldest, at the cursor, becomes the first."""
        for rows in (self.keys, self.values):
            ordered = rows.all.roll(-cursor, 3)
            rows.all = torch.nn.functional.pad(ordered, (0, R - ordered.shape[3]))

    def empty(self, slots: Tensor) -> None:
        """Nothing was written into these slots."""
        self.values.all.index_fill_(3, slots, 0)


class RingPosition:
    """Which distance each slot has, wherever the cursor is. Distances beyond the window have any vector: nobody looks
    so far."""

    def __init__(self, position: RelativePosition, window: Window, R: int, cursor: int = 0) -> None:
        self.window, self.first, self.R, self.cursor = window, window.first, R, cursor
        self.nearest_first = position.table(window.distances).detach()  # (distances, K)
        index = (-torch.arange(2 * self.R, device=position.vectors.device) - self.first) % self.R
        self.vectors = self.nearest_first[index.clamp(max=window.distances - 1)]  # (2R, K), in ring order, twice
        self.distance = index + self.first  # (2R,)

    def advance(self, tokens: int = 1) -> None:
        self.cursor = (self.cursor + tokens) % self.R

    def slot(self, back: int) -> int:
        """The slot of the token so far before the next one."""
        return (self.cursor - back) % self.R

    def next_slots(self, tokens: int) -> Tensor:
        """The slots of the next tokens."""
        return torch.arange(self.cursor, self.cursor + tokens, device=self.vectors.device) % self.R

    def slots(self) -> slice:
        """Where the slots 0..R-1 lie in the tables."""
        return slice(self.R - self.cursor, 2 * self.R - self.cursor)

    def pieces(self, reach: int) -> list[slice]:
        """The slots of the nearest `reach` distances, oldest first: one or two ranges."""
        if reach >= self.R:
            return [slice(0, self.R)]
        last = (self.cursor - self.first) % self.R + 1
        if last >= reach:
            return [slice(last - reach, last)]
        return [slice(self.R + last - reach, self.R), slice(0, last)]


def log_ramp(span: AdaptiveSpan, distance: Tensor) -> Tensor:
    """The logarithm of a layer's span at distances (n,): (H, n), to be added to the scores."""
    ramp = span(distance[None]).detach()[:, 0]
    return ramp.log().clamp_(min=lowest(ramp.dtype) / 4)


def lowest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min


@dataclass(frozen=True)
class RingView:
    """What all layers have in common at one step, in slot order."""

    position: RingPosition
    slots: slice
    vectors: Tensor  # (K, R)
    empty: Tensor | None  # (B, 1, R) bool: slots that a row has not filled; none if every row is full

    @staticmethod
    def at(position: RingPosition, count: Tensor, newest: int) -> RingView:
        slots = position.slots()
        empty = None
        if not position.window.always_filled(newest):
            empty = filled(position.distance[slots], count[:, None]).logical_not_()[:, None]
        return RingView(position, slots, position.vectors[slots].T, empty)


@dataclass(frozen=True)
class RunView:
    """What all layers have in common where T tokens are read at once. Their slots, oldest first, are those of the first
    token's window and of the tokens themselves; place j of them lies at distance t + S - j of token t."""

    pieces: list[slice]  # of the ring: one or two ranges
    index: Tensor  # (T, n) of each distance among the vectors, nearest first
    place: Tensor  # (T, n) of each distance in the tables
    hidden: Tensor  # (B or 1, 1, T, n) bool
    nothing: Tensor | None  # (B, 1, T, 1) bool: tokens that see nothing at all; none if there are none

    @staticmethod
    def at(position: RingPosition, count: Tensor, newest: int, T: int) -> RunView:
        window, R = position.window, position.R
        n = window.last + T - window.first
        begin = position.slot(window.last)
        pieces = [slice(begin, min(begin + n, R)), slice(0, max(begin + n - R, 0))]
        time = torch.arange(T, device=count.device)
        distance = time[:, None] + window.last - torch.arange(n, device=count.device)  # (T, n)
        age = count[:, None] + time  # (B, T)
        if window.always_filled(newest):
            age = age[:1]
        nothing = window.sees_nothing(age)[:, None, :, None] if newest < window.first else None
        hidden = ~window.sees(distance, age[..., None])[:, None]
        index = (distance - window.first).clamp(0, window.distances - 1)
        return RunView([piece for piece in pieces if piece.stop], index, (-distance) % R, hidden, nothing)

    def read(self, q: Tensor, ring: KeyRing, position: RingPosition, ramp: Tensor | None) -> Tensor:
        """q (B * T, H * K), already divided by sqrt(K) -> (B * T, H * K)"""
        B, H, K, _ = ring.key_slots.shape
        T, n = self.index.shape
        q = q.view(B, T, H, K).transpose(1, 2).reshape(B * H, T, K)
        scores = (q @ position.nearest_first.T).gather(-1, self.index.expand(B * H, T, n))
        by_head = scores.view(B, H, T, n)
        if ramp is not None:
            by_head += ramp[:, self.place]
        by_head.masked_fill_(self.hidden, lowest(scores.dtype))
        sizes = [piece.stop - piece.start for piece in self.pieces]
        parts = [
            torch.baddbmm(part, q, ring.flat_keys[:, :, piece])
            for part, piece in zip(scores.split(sizes, -1), self.pieces)
        ]
        z = read_parts(parts, [ring.flat_values[:, piece] for piece in self.pieces]).view(B, H, T, K)
        if self.nothing is not None:
            z = z.masked_fill(self.nothing, 0)
        return z.transpose(1, 2).reshape(B * T, H * K)


class Reader:
    """Attention of one token a row to a ring, in buffers that are made once for a number of rows."""

    def __init__(self, like: Tensor, B: int, H: int, R: int, K: int) -> None:
        self.B, self.H, self.K = B, H, K
        self.scores, self.weights = like.new_empty(2, B * H, 1, R)
        self.read = like.new_empty(B * H, 1, K)

    def __call__(self, q: Tensor, ring: KeyRing, view: RingView, ramp: Tensor | None, reach: int) -> Tensor:
        """q (B, H * K), already divided by sqrt(K) -> (B, H * K)"""
        q = q.reshape(self.B * self.H, 1, self.K)
        reach = min(reach, view.position.window.distances)
        if reach < view.position.R:
            return self.near(q, ring, view, ramp, view.position.pieces(reach))
        torch.mm(q[:, 0], view.vectors, out=self.scores[:, 0])
        self.scores.baddbmm_(q, ring.flat_keys)
        self.mask(self.scores, view, ramp, slice(0, view.position.R))
        torch.softmax(self.scores, -1, out=self.weights)
        torch.bmm(self.weights, ring.flat_values, out=self.read)
        return self.read.view(self.B, self.H * self.K)

    def near(self, q: Tensor, ring: KeyRing, view: RingView, ramp: Tensor | None, pieces: list[slice]) -> Tensor:
        """The same for a layer whose learned span is shorter than the ring."""
        scores = []
        for piece in pieces:
            scores.append(torch.baddbmm(q @ view.vectors[:, piece], q, ring.flat_keys[:, :, piece]))
            self.mask(scores[-1], view, ramp, piece)
        return read_parts(scores, [ring.flat_values[:, piece] for piece in pieces]).view(self.B, self.H * self.K)

    def mask(self, scores: Tensor, view: RingView, ramp: Tensor | None, piece: slice) -> None:
        """Let spans fade and hide what a row has not filled. scores (B * H, 1, slots of the piece)"""
        by_head = scores.view(self.B, self.H, scores.shape[-1])
        if ramp is not None:
            by_head += ramp[:, view.slots][:, piece]
        if view.empty is not None:
            by_head.masked_fill_(view.empty[..., piece], lowest(scores.dtype))


def read_parts(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention whose slots lie in several places. scores (B * H, T, j), values (B * H, j, K) -> (B * H, T, K)"""
    weights = torch.softmax(torch.cat(scores, -1), -1).split([part.shape[-1] for part in scores], -1)
    read = torch.bmm(weights[0], values[0])
    for weight, part in zip(weights[1:], values[1:]):
        read.baddbmm_(weight, part)
    return read
