"""Ring buffers for decoding: keys and values of the past stay in place, and a cursor marks the slot of the next token.

All streams write the same slot in each step, so a slot has the same distance in every stream: the slot of the current
token is at distance 0, the one before it at distance 1. A stream's own count only decides how many slots are visible. A
ring has one slot for each distance at which it is read, and `max_crop` more: cropping moves the cursor back to tokens
that have not been overwritten.

A ring starts with a few slots and grows before it would overwrite a visible one, until it has all of them.
Letters: B streams, T tokens, S memory slots, H heads, K head width, R slots.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from stairwell.layers import AdaptiveSpan

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
    def slots(self) -> int:
        return self.all.shape[1]

    def lengthen(self, needed: int) -> bool:
        """Make room for `needed` tokens, or for as many as a state has. Return whether the buffer was replaced."""
        if min(needed, self.max_slots) <= self.slots:
            return False
        self.gather_batch()
        added = grown_length(self.slots, needed, self.max_slots) - self.slots
        zeros = self.all.new_zeros(self.all.shape[0], added, *self.all.shape[2:])
        self.all = torch.cat([zeros, self.all.roll(-self.cursor, 1)], 1)
        self.cursor = 0
        return True

    def select(self, index: Tensor, changed: Tensor) -> None:
        if self.batch_index is not None:
            self.batch_index = self.batch_index[index]
        elif len(changed):
            self.batch_index = index[:, None].repeat(1, self.slots)

    def gather_batch(self) -> None:
        """Copy every slot into the buffer of its own stream."""
        if self.batch_index is not None:
            slots = torch.arange(self.slots, device=self.batch_index.device)
            self.all[: len(self.batch_index)] = self.all[self.batch_index, slots]
            self.batch_index = None

    def reset(self, index: Tensor) -> None:
        self.gather_batch()
        super().reset(index)

    def claim_slot(self) -> None:
        """Record that every stream writes the slot at the cursor in its own buffer."""
        if self.batch_index is not None and self.slots:
            self.batch_index[:, self.cursor] = torch.arange(len(self.batch_index), device=self.batch_index.device)

    def write(self, vectors: Tensor) -> None:
        """Write the vectors (B, T, ...) of the next tokens."""
        B, T = vectors.shape[:2]
        T = min(T, self.slots)
        if T == 1:
            self.claim_slot()
            self.all[:B, self.cursor].copy_(vectors[:, 0])
        elif T:
            slots = self.next_slots(vectors.shape[1])
            self.all[:B].index_copy_(1, slots[-T:], vectors[:, -T:])

    def next_slots(self, tokens: int) -> Tensor:
        """Return the indices of the next slots to write."""
        self.gather_batch()
        return torch.arange(self.cursor, self.cursor + tokens, device=self.all.device) % max(1, self.slots)

    def advance(self, tokens: int = 1) -> None:
        self.cursor = (self.cursor + tokens) % max(1, self.slots)
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
        n = min(filled, self.slots)
        slots = torch.arange(self.cursor - n, self.cursor, device=memory.device) % max(1, self.slots)
        loaded = self.all[first : first + memory.shape[0]]
        loaded.zero_().index_copy_(1, slots, memory[:, self.max_slots - n :])

    def memory(self, batch: int) -> Tensor:
        """Return the memory of a state, oldest first, (B, slots of the state, ...)."""
        self.gather_batch()
        memory = self.all[:batch].roll(-self.cursor, 1)
        if self.slots == self.max_slots:
            return memory
        return torch.cat([memory.new_zeros(batch, self.max_slots - self.slots, *memory.shape[2:]), memory], 1)


class KeyRing:
    """Keys and values of one vector per token. The values of empty slots are zero.

    The slots of a head are contiguous, (B, H, K, R): products with one query run along them, which on a CPU is up to
    twice as fast as across. The price is one scattered write per token."""

    def __init__(self, like: Tensor, capacity: int, H: int, K: int, max_slots: int) -> None:
        """`like` has the dtype of the buffers, which may be bfloat16: what is written is rounded."""
        self.max_slots = max_slots
        R = grown_length(0, 0, max_slots)
        self.keys, self.values = BatchBuffer(like, capacity, H, K, R), BatchBuffer(like, capacity, H, K, R)
        self.cursor = 0  # the slot of the next token

    @property
    def slots(self) -> int:
        return self.keys.all.shape[3]

    def set_batch(self, B: int) -> None:
        """Create the views that a step of B streams uses."""
        self.key_slots, self.value_slots = self.keys.all[:B], self.values.all[:B]
        self.flat_keys = self.key_slots.flatten(0, 1)  # (B * H, K, R)
        self.flat_values = self.value_slots.flatten(0, 1).transpose(1, 2)  # (B * H, R, K)

    def advance(self, tokens: int) -> None:
        self.cursor = (self.cursor + tokens) % self.slots

    def crop(self, tokens: int) -> None:
        self.advance(-tokens)
        self.values.all.index_fill_(3, self.next_slots(tokens), 0)

    def next_slots(self, tokens: int) -> Tensor:
        """Return the slots of the next tokens."""
        return torch.arange(self.cursor, self.cursor + tokens, device=self.keys.all.device) % self.slots

    def slices(self, farthest: int, nearest: int) -> Iterator[tuple[slice, int]]:
        """Yield the slots at distance farthest..nearest from the next token as one or two slices, oldest first, each
        with the distance of its first slot. Tokens after the next one have negative distances."""
        first, size = (self.cursor - farthest) % self.slots, farthest - nearest + 1
        until_end = min(size, self.slots - first)
        yield slice(first, first + until_end), farthest
        if until_end < size:
            yield slice(0, size - until_end), farthest - until_end

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Write keys, values (B * T, H * K) of the next T tokens."""
        B, H, K, _ = self.key_slots.shape
        T = keys.shape[0] // B
        slots = self.next_slots(T) if T > 1 else None
        for buffer, new in ((self.key_slots, keys), (self.value_slots, values)):
            if slots is None:
                buffer.select(3, self.cursor).copy_(new.view(B, H, K))
            else:
                buffer.index_copy_(3, slots, new.reshape(B, T, H, K).permute(0, 2, 3, 1).to(buffer.dtype))

    def load(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Replace the contents of the streams from `first` on by keys, values (b, H, S, K), oldest first; the newest is
        that of the last token."""
        b, _, S, _ = keys.shape
        slots = torch.arange(self.cursor - S, self.cursor, device=keys.device) % self.slots
        for buffer, new in ((self.keys, keys), (self.values, values)):
            buffer.all[first : first + b].zero_().index_copy_(3, slots, new.transpose(2, 3).to(buffer.all.dtype))

    def restore(self, keys: Tensor, values: Tensor, cursor: Tensor, filled: int) -> None:
        """Replace the contents by copies of those of a ring of the same streams with `filled` tokens."""
        B, H, K, _ = self.key_slots.shape
        R = keys.shape[-1] if keys.dim() == 4 else 0
        has_room = 0 < R <= self.max_slots and min(filled, self.max_slots) <= R
        if keys.shape != (B, H, K, R) or values.shape != keys.shape or not has_room:
            raise ValueError(f"keys {tuple(keys.shape)} or values {tuple(values.shape)} do not fit this stream")
        if {keys.dtype, values.dtype} != {self.keys.all.dtype} or cursor.shape != () or cursor.dtype != torch.int64:
            raise ValueError("keys, values or a cursor have the wrong type")
        if not 0 <= int(cursor) < R:
            raise ValueError(f"a cursor is {int(cursor)}, which is not in 0..{R - 1}")
        capacity = self.keys.all.shape[0]
        for buffer, new in ((self.keys, keys), (self.values, values)):
            buffer.all = buffer.all.new_zeros(capacity, H, K, R)
            buffer.all[:B] = new
        self.cursor = int(cursor)

    def lengthen(self, needed: int) -> bool:
        """Make room for `needed` tokens, or for as many as are ever attended to. Return whether buffers were
        replaced."""
        R = self.slots
        if min(needed, self.max_slots) <= R:
            return False
        longer = grown_length(R, needed, self.max_slots)
        for buffer in (self.keys, self.values):
            ordered = buffer.all.roll(-self.cursor, 3)
            buffer.all = torch.nn.functional.pad(ordered, (0, longer - R))
        self.cursor = R
        return True


def log_ramp(span: AdaptiveSpan, distance: Tensor) -> Tensor:
    """Return the logarithm of a layer's span mask at distances (n,), to be added to the scores: (H, n)."""
    ramp: Tensor = span(distance[None]).detach()[:, 0]
    return ramp.log().clamp_(min=lowest(ramp.dtype) / 4)


def lowest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min


def attend_parts(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend to slots in several buffers. scores (B * H, T, j), values (B * H, j, K) -> (B * H, T, K)"""
    weights = torch.split(torch.softmax(torch.cat(scores, -1), -1), [part.shape[-1] for part in scores], -1)
    output = torch.bmm(weights[0], values[0])
    for weight, part in zip(weights[1:], values[1:]):
        output.baddbmm_(weight, part)
    return output
