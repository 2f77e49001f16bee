"""What the tensors of a state are, and what happens to each of them when rows begin anew, come together, take tokens
back or become a plain vector. Every field of a state says its role where it is written:

    memory: Tensor = field(metadata=SLOTS)

Letters: B rows, n numbers a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from stairwell.devices import on_accelerator
from stairwell.errors import UserError

# A count becomes three floats, digits to this base: exact in float32, and all of int64 that counts can reach.
BASE, DIGITS = 1 << 21, 3
PACKED_TYPES = (torch.float32, torch.float64)  # narrower ones cannot hold a digit
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class FieldType(Enum):
    SLOTS = "one place a token, (B, slots, ...), oldest first: zero in a fresh row; crop shifts them"
    GROWING = "slots of which there are as many as the longest row has tokens"
    CARRY = "handed on from token to token, (B, ...): zero in a fresh row; crop is impossible"
    STATIC = "given once, (B, length, ...): a fresh row keeps it; rows of other lengths are padded at the far end"
    COUNT = "a number of tokens, (B,) int64"
    NESTED = "another state"
    SIZE = "a plain number that says how large the state was made; no tensor"


SLOTS, GROWING, CARRY, STATIC, COUNT, NESTED, SIZE = ({"role": role} for role in FieldType)


class Leaf(NamedTuple):
    """A tensor of a state, named by its path."""

    path: str
    role: FieldType
    tensor: Tensor
    limit: int | None = None  # growing slots: how many there can ever be

    def check_type(self, where: str) -> None:
        """Refuse an element type or number of dimensions that no model gives this leaf, NaN and infinity."""
        tensor, counts = self.tensor, self.role is FieldType.COUNT
        types = {FieldType.COUNT: (torch.int64,), FieldType.STATIC: (torch.bool, *FLOAT_TYPES)}.get(
            self.role, FLOAT_TYPES
        )
        if tensor.dtype not in types or tensor.dim() < 1 or (tensor.dim() == 1) != counts:
            expected = ", ".join(str(dtype) for dtype in types)
            raise UserError(
                f"{where} is damaged: '{self.path}' is {tensor.dtype} of shape {tuple(tensor.shape)}; expected "
                f"{'(rows,)' if counts else '(rows, ...)'} of {expected}"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{where}: '{self.path}' holds NaN or infinity; start from a fresh state instead")

    def reset(self, fresh: Tensor) -> Tensor:
        """With nothing in the rows where `fresh` (B,) is true."""
        if self.role is FieldType.STATIC:
            return self.tensor
        return self.tensor.masked_fill(fresh.view(-1, *[1] * (self.tensor.dim() - 1)), 0)

    def crop(self, back: Tensor) -> Tensor:
        """Without the last back[b] tokens of each row."""
        if self.role is FieldType.STATIC:
            return self.tensor
        back = back.to(self.tensor.device)
        return self.tensor - back if self.role is FieldType.COUNT else shift(self.tensor, back)

    @property
    def length(self) -> int:
        """How many slots, or how long a source."""
        return self.tensor.shape[1] if self.tensor.dim() > 1 else 0

    def pad(self, length: int) -> Tensor:
        """With zeros up to `length`: slots where the oldest are, what is static at its far end."""
        if length == self.length:
            return self.tensor
        missing = length - self.length
        ends = [0, missing] if self.role is FieldType.STATIC else [missing, 0]
        return torch.nn.functional.pad(self.tensor, [0, 0] * (self.tensor.dim() - 2) + ends)

    @staticmethod
    def join(leaves: Sequence[Leaf]) -> Tensor:
        """The same leaf of several states, with the rows of all."""
        first = leaves[0]
        if first.role in (FieldType.GROWING, FieldType.STATIC):
            longest = max(leaf.length for leaf in leaves)
            leaves = [leaf._replace(tensor=leaf.pad(longest)) for leaf in leaves]
        makes = [(tuple(leaf.tensor.shape[1:]), leaf.tensor.dtype, leaf.tensor.device) for leaf in leaves]
        for shape, dtype, device in makes:
            if (shape, dtype, device) != makes[0]:
                raise ValueError(
                    f"cannot join states that are not alike: '{first.path}' is {makes[0][0]} a row, {makes[0][1]} on "
                    f"{makes[0][2]} in one, {shape}, {dtype} on {device} in another"
                )
        return torch.cat([leaf.tensor for leaf in leaves])

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """What a row of it becomes in a vector."""
        if self.role is FieldType.COUNT:
            return (DIGITS,)
        if self.role is FieldType.STATIC:
            raise ValueError(
                f"'{self.path}' is static: it would be lost where a packed state is reset by zeros; pack the state "
                "without it and keep it beside the vector"
            )
        if self.role is not FieldType.GROWING:
            return tuple(self.tensor.shape[1:])
        if self.limit is None:
            raise ValueError(
                f"'{self.path}' grows with the stream; it packs only if its core was built with max_tokens"
            )
        return (self.limit, *self.tensor.shape[2:])

    @property
    def packed_size(self) -> int:
        return math.prod(self.packed_shape)

    def pack(self, dtype: torch.dtype) -> Tensor:
        """As plain numbers (B, n)."""
        shape = self.packed_shape
        if self.role is FieldType.COUNT:
            return torch.stack([self.tensor // BASE**i % BASE for i in range(DIGITS)], 1).to(dtype)
        return (self.pad(shape[0]) if self.role is FieldType.GROWING else self.tensor).flatten(1)

    def unpack(self, numbers: Tensor) -> Tensor:
        """The inverse of `pack`, in this leaf's own type. numbers (B, n)"""
        if self.role is not FieldType.COUNT:
            # A copy: what owns the vector may write into it.
            return numbers.unflatten(1, self.packed_shape).to(self.tensor.dtype, copy=True).contiguous()
        check_digits(numbers, self.path)
        return sum(numbers[:, i].to(torch.int64) * BASE**i for i in range(DIGITS))


def check_digits(numbers: Tensor, path: str) -> None:
    # Looking at values would stall an accelerator and cannot be compiled.
    if on_accelerator(numbers) or torch.compiler.is_compiling():
        return
    if not ((numbers >= 0) & (numbers < BASE) & (numbers == numbers.round())).all():
        raise ValueError(
            f"the vector's '{path}' is no whole number: packed states must not be rounded, mixed or scaled"
        )


def shift(memory: Tensor, back: Tensor) -> Tensor:
    """Drop the newest back[b] slots of each row and fill with zeros at the oldest end. memory (B, slots, ...)"""
    if not memory.shape[1]:
        return memory
    slot = torch.arange(memory.shape[1], device=memory.device) - back[:, None]
    row = torch.arange(memory.shape[0], device=memory.device)[:, None]
    shifted = memory[row, slot.clamp(min=0)]
    return shifted.masked_fill((slot < 0).view(*slot.shape, *[1] * (memory.dim() - 2)), 0)
