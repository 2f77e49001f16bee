"""Ring buffers for decoding: keys and values of the past stay in place, and a cursor marks the slot to write next.

A ring has R slots per stream. In each step all streams write the slot at the cursor c, so a slot has the same distance
in every stream, and a stream's own count only decides how many slots are visible:

    distance of slot j = first + (c - first - j) mod R,     R = S + 1 - first + max_crop

where first is 0 if a token attends to itself, else 1. Cropping moves the cursor back by up to `max_crop` tokens: the
slots of tokens that had left the window have not been overwritten.

Nothing is rolled when the cursor moves. A table holds the position embeddings twice, in ring order, and the embeddings
of the slots are the view of R of them that starts at R - c.

A ring starts with a few slots and grows before it would overwrite a visible one, until it has all R.
Letters: B streams, T tokens, S memory slots, H heads, K head width, R slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.cores.time import Window, filled
from stairwell.layers import AdaptiveSpan, RelativePosition

INITIAL_SLOTS = 16


def grown_length(slots: int, needed: int, max_slots: int) -> int:
    """Return the next length of a ring: more than needed, so that it does not grow at every step."""
    return min(max_slots, max(needed, slots + max(INITIAL_SLOTS, slots // 4)))


class BatchBuffer:
    """A tensor (capacity, ...) whose first elements are the streams of a session."""

    def __init__(self, like: Tensor, capacity: int, *shape: int) -> None:
        self.all = like.new_zeros(capacity, *shape)

    def grow(self, capacity: int) -> None:
        grown = self.all.new_zeros(capacity, *self.all.shape[1:])
        grown[: self.all.shape[0]] = self.all
        self.all = grown

    def select(self, index: Tensor, changed: Tensor) -> None:
        """Replace stream b by stream index[b]; `changed` lists the b for which the two differ."""
        self.all.index_copy_(0, changed, self.all.index_select(0, index[changed]))

    def reset(self, index: Tensor) -> None:
        self.all.index_fill_(0, index, 0)


class RawRing(BatchBuffer):
    """The raw memory (capacity, slots, ...), from which the state is built. It may have no slots.

    It is read only to build a state, so `select` does not copy slots: `batch_index` records the stream in whose buffer
    each slot is."""

    def __init__(self, like: Tensor, capacity: int, max_slots: int, *shape: int) -> None:
        super().__init__(like, capacity, grown_length(0, 0, max_slots), *shape)
        self.max_slots = max_slots  # slots of the state
        self.cursor = 0  # the oldest slot, the next to be written
        self.filled = 0  # the largest number of tokens in any stream
        self.batch_index: Tensor | None = None  # (B, slots); None: every slot is in its own stream's buffer

    @property
    def length(self) -> int:
        return self.all.shape[1]

    def lengthen(self, needed: int) -> None:
        """Make room for `needed` tokens, or for as many as a state has."""
        if min(needed, self.max_slots) <= self.length:
            return
        self.gather_batch()
        added = grown_length(self.length, needed, self.max_slots) - self.length
        zeros = self.all.new_zeros(self.all.shape[0], added, *self.all.shape[2:])
        self.all = torch.cat([zeros, self.all.roll(-self.cursor, 1)], 1)
        self.cursor = 0

    def select(self, index: Tensor, changed: Tensor) -> None:
        if self.batch_index is not None:
            self.batch_index = self.batch_index[index]
        elif len(changed):
            self.batch_index = index[:, None].repeat(1, self.length)

    def gather_batch(self) -> None:
        """Copy every slot into the buffer of its own stream."""
        if self.batch_index is not None:
            slots = torch.arange(self.length, device=self.batch_index.device)
            self.all[: len(self.batch_index)] = self.all[self.batch_index, slots]
            self.batch_index = None

    def reset(self, index: Tensor) -> None:
        self.gather_batch()
        super().reset(index)

    def slot(self, batch: int) -> Tensor:
        """Return the slot to write, (B, 1, ...), or (B, 0, ...) if there are no slots."""
        self.lengthen(self.filled + 1)
        if self.batch_index is not None and self.length:
            self.batch_index[:, self.cursor] = torch.arange(batch, device=self.batch_index.device)
        return self.all[:batch, self.cursor : self.cursor + 1]

    def next_slots(self, tokens: int) -> Tensor:
        """Return the indices of the next slots to write."""
        self.lengthen(self.filled + tokens)
        self.gather_batch()
        return torch.arange(self.cursor, self.cursor + tokens, device=self.all.device) % max(1, self.length)

    def advance(self, tokens: int = 1) -> None:
        self.cursor = (self.cursor + tokens) % max(1, self.length)
        self.filled += tokens

    def crop(self, tokens: int) -> None:
        self.advance(-tokens)
        self.all.index_fill_(1, self.next_slots(tokens), 0)

    def load(self, first: int, memory: Tensor, filled: int) -> None:
        """Load memory (b, slots of the state, ...), oldest first, into the streams from `first` on; only the newest
        `filled` slots are used."""
        self.gather_batch()
        self.filled = max(self.filled, filled) if first else filled
        self.lengthen(self.filled)
        n = min(filled, self.length)
        slots = torch.arange(self.cursor - n, self.cursor, device=memory.device) % max(1, self.length)
        loaded = self.all[first : first + memory.shape[0]]
        loaded.zero_().index_copy_(1, slots, memory[:, self.max_slots - n :])

    def memory(self, batch: int) -> Tensor:
        """Return the memory of a state, oldest first, (B, slots of the state, ...)."""
        self.gather_batch()
        memory = self.all[:batch].roll(-self.cursor, 1)
        if self.length == self.max_slots:
            return memory
        return torch.cat([memory.new_zeros(batch, self.max_slots - self.length, *memory.shape[2:]), memory], 1)


class KeyRing:
    """Keys and values that one layer (or all layers) attends to. The values of empty slots are zero, so a stream that
    has nothing to attend to reads zero, whatever its attention weights are.

    The slots of a head are contiguous, (B, H, K, R): products with one query run along them, which on a CPU is up to
    twice as fast as across. The price is one scattered write per token."""

    def __init__(self, like: Tensor, capacity: int, H: int, R: int, K: int) -> None:
        self.keys, self.values = BatchBuffer(like, capacity, H, K, R), BatchBuffer(like, capacity, H, K, R)

    def set_batch(self, B: int) -> None:
        """Create the views that a step of B streams uses."""
        self.key_slots, self.value_slots = self.keys.all[:B], self.values.all[:B]
        self.flat_keys = self.key_slots.flatten(0, 1)  # (B * H, K, R)
        self.flat_values = self.value_slots.flatten(0, 1).transpose(1, 2)  # (B * H, R, K)

    def write(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """keys, values (B, H * K)"""
        shape = self.key_slots.shape[:-1]
        self.key_slots.select(3, slot).copy_(keys.view(shape))
        self.value_slots.select(3, slot).copy_(values.view(shape))

    def write_segment(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys, values (B * T, H * K) to slots (T,)."""
        B, H, K, _ = self.key_slots.shape
        for buffer, new in ((self.key_slots, keys), (self.value_slots, values)):
            buffer.index_copy_(3, slots, new.reshape(B, -1, H, K).permute(0, 2, 3, 1))

    def load(self, first: int, keys: Tensor, values: Tensor, start: int) -> None:
        """Replace the contents of the streams from `first` on by keys, values (b, H, S, K), oldest first; the oldest
        goes to slot `start`."""
        b, _, S, _ = keys.shape
        R = self.keys.all.shape[3]
        slots = torch.arange(start, start + S, device=keys.device) % R
        for buffer, new in ((self.keys, keys), (self.values, values)):
            buffer.all[first : first + b].zero_().index_copy_(3, slots, new.transpose(2, 3))

    def lengthen(self, R: int, cursor: int) -> None:
        """Grow to R slots; the oldest, at the cursor, becomes the first."""
        for buffer in (self.keys, self.values):
            ordered = buffer.all.roll(-cursor, 3)
            buffer.all = torch.nn.functional.pad(ordered, (0, R - ordered.shape[3]))

    def clear(self, slots: Tensor) -> None:
        """Mark slots as empty."""
        self.values.all.index_fill_(3, slots, 0)


class RingPosition:
    """The cursor of a ring and the distance of each slot. Slots beyond the window have an arbitrary position embedding:
    they are masked."""

    def __init__(self, position: RelativePosition, window: Window, R: int, cursor: int = 0) -> None:
        self.window, self.first, self.R, self.cursor = window, window.first, R, cursor
        self.nearest_first = position.table(window.distances).detach()  # (distances, K)
        index = (-torch.arange(2 * self.R, device=position.vectors.device) - self.first) % self.R
        self.embeddings = self.nearest_first[index.clamp(max=window.distances - 1)]  # (2R, K), in ring order, twice
        self.distance = index + self.first  # (2R,)

    def advance(self, tokens: int = 1) -> None:
        self.cursor = (self.cursor + tokens) % self.R

    def slot(self, distance: int) -> int:
        """Return the slot at a distance from the next token."""
        return (self.cursor - distance) % self.R

    def next_slots(self, tokens: int) -> Tensor:
        """Return the slots of the next tokens."""
        return torch.arange(self.cursor, self.cursor + tokens, device=self.embeddings.device) % self.R

    def table_slice(self) -> slice:
        """Return the slice of the tables that belongs to slots 0..R-1."""
        return slice(self.R - self.cursor, 2 * self.R - self.cursor)

    def nearest_slots(self, distances: int) -> list[slice]:
        """Return the slots of the nearest distances, oldest first, as one or two slices."""
        if distances >= self.R:
            return [slice(0, self.R)]
        last = (self.cursor - self.first) % self.R + 1
        if last >= distances:
            return [slice(last - distances, last)]
        return [slice(self.R + last - distances, self.R), slice(0, last)]


def log_ramp(span: AdaptiveSpan, distance: Tensor) -> Tensor:
    """Return the logarithm of a layer's span mask at distances (n,), to be added to the scores: (H, n)."""
    ramp: Tensor = span(distance[None]).detach()[:, 0]
    return ramp.log().clamp_(min=lowest(ramp.dtype) / 4)


def lowest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min


@dataclass(frozen=True)
class RingView:
    """What all layers share in one step, in slot order."""

    position: RingPosition
    table_slice: slice
    embeddings: Tensor  # (K, R)
    empty: Tensor | None  # (B, 1, R) bool: slots that a stream has not filled; None if every stream has filled all

    @staticmethod
    def at(position: RingPosition, count: Tensor, min_count: int) -> RingView:
        table_slice = position.table_slice()
        empty = None
        if not position.window.always_filled(min_count):
            empty = filled(position.distance[table_slice], count[:, None]).logical_not_()[:, None]
        return RingView(position, table_slice, position.embeddings[table_slice].T, empty)


@dataclass(frozen=True)
class SegmentView:
    """What all layers share when T tokens are read at once. The n visible slots, oldest first, are those of the first
    token's window and of the tokens themselves; slot j of them is at distance t + S - j from token t."""

    slots: list[slice]  # of the ring: one or two slices
    index: Tensor  # (T, n): of each distance among the embeddings, nearest first
    table_index: Tensor  # (T, n): of each distance in the tables
    hidden: Tensor  # (B or 1, 1, T, n) bool
    nothing_visible: Tensor | None  # (B, 1, T, 1) bool: tokens with nothing to attend to; None if there are none

    @staticmethod
    def at(position: RingPosition, count: Tensor, min_count: int, T: int) -> SegmentView:
        window, R = position.window, position.R
        n = window.last + T - window.first
        start = position.slot(window.last)
        slots = [slice(start, min(start + n, R)), slice(0, max(start + n - R, 0))]
        time = torch.arange(T, device=count.device)
        distance = time[:, None] + window.last - torch.arange(n, device=count.device)  # (T, n)
        count = count[:, None] + time  # (B, T)
        if window.always_filled(min_count):
            count = count[:1]
        nothing_visible = window.is_empty(count)[:, None, :, None] if min_count < window.first else None
        hidden = ~window.visible(distance, count[..., None])[:, None]
        index = (distance - window.first).clamp(0, window.distances - 1)
        return SegmentView([part for part in slots if part.stop], index, (-distance) % R, hidden, nothing_visible)

    def attend(self, q: Tensor, ring: KeyRing, position: RingPosition, ramp: Tensor | None) -> Tensor:
        """q (B * T, H * K), already divided by sqrt(K) -> (B * T, H * K)"""
        B, H, K, _ = ring.key_slots.shape
        T, n = self.index.shape
        q = q.view(B, T, H, K).transpose(1, 2).reshape(B * H, T, K)
        scores = (q @ position.nearest_first.T).gather(-1, self.index.expand(B * H, T, n))
        by_head = scores.view(B, H, T, n)
        if ramp is not None:
            by_head += ramp[:, self.table_index]
        by_head.masked_fill_(self.hidden, lowest(scores.dtype))
        sizes = [part.stop - part.start for part in self.slots]
        parts = [
            torch.baddbmm(part_scores, q, ring.flat_keys[:, :, part])
            for part_scores, part in zip(torch.split(scores, sizes, -1), self.slots)
        ]
        z = attend_parts(parts, [ring.flat_values[:, part] for part in self.slots]).view(B, H, T, K)
        if self.nothing_visible is not None:
            z = z.masked_fill(self.nothing_visible, 0)
        return z.transpose(1, 2).reshape(B * T, H * K)


class RingAttention:
    """Attention of one token per stream to a ring, in buffers allocated once per batch size."""

    def __init__(self, like: Tensor, B: int, H: int, R: int, K: int) -> None:
        self.B, self.H, self.K = B, H, K
        self.scores, self.weights = like.new_empty(2, B * H, 1, R)
        self.output = like.new_empty(B * H, 1, K)

    def __call__(self, q: Tensor, ring: KeyRing, view: RingView, ramp: Tensor | None, span: int) -> Tensor:
        """Attend to the nearest `span` distances. q (B, H * K), already divided by sqrt(K) -> (B, H * K)"""
        q = q.reshape(self.B * self.H, 1, self.K)
        span = min(span, view.position.window.distances)
        if span < view.position.R:
            return self._attend_nearest(q, ring, view, ramp, view.position.nearest_slots(span))
        torch.mm(q[:, 0], view.embeddings, out=self.scores[:, 0])
        self.scores.baddbmm_(q, ring.flat_keys)
        self._mask(self.scores, view, ramp, slice(0, view.position.R))
        torch.softmax(self.scores, -1, out=self.weights)
        torch.bmm(self.weights, ring.flat_values, out=self.output)
        return self.output.view(self.B, self.H * self.K)

    def _attend_nearest(
        self, q: Tensor, ring: KeyRing, view: RingView, ramp: Tensor | None, slots: list[slice]
    ) -> Tensor:
        """Attend to some of the slots, for a layer whose span is shorter than the ring."""
        scores = []
        for part in slots:
            scores.append(torch.baddbmm(q @ view.embeddings[:, part], q, ring.flat_keys[:, :, part]))
            self._mask(scores[-1], view, ramp, part)
        return attend_parts(scores, [ring.flat_values[:, part] for part in slots]).view(self.B, self.H * self.K)

    def _mask(self, scores: Tensor, view: RingView, ramp: Tensor | None, slots: slice) -> None:
        """Add the span's ramp and mask empty slots, in place. scores (B * H, 1, number of slots)"""
        by_head = scores.view(self.B, self.H, scores.shape[-1])
        if ramp is not None:
            by_head += ramp[:, view.table_slice][:, slots]
        if view.empty is not None:
            by_head.masked_fill_(view.empty[..., slots], lowest(scores.dtype))


def attend_parts(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend to slots in several buffers. scores (B * H, T, j), values (B * H, j, K) -> (B * H, T, K)"""
    weights = torch.split(torch.softmax(torch.cat(scores, -1), -1), [part.shape[-1] for part in scores], -1)
    output = torch.bmm(weights[0], values[0])
    for weight, part in zip(weights[1:], values[1:]):
        output.baddbmm_(weight, part)
    return output
