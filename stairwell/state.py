"""A state is a value: everything a model remembers of its streams, as batch-first tensors in a frozen dataclass.

It holds raw memory and counts, so it can be saved, moved, reordered, cut and compared. It knows no model: a core
defines its own subclass with one tensor (or a tuple of tensors) a field, each `(B, slots, ...)`, oldest slot first.
Letters: B rows.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stairwell.files import write_atomically

Rows = Tensor | Sequence[int]
FORMAT = "stairwell.state.1"


@dataclass(frozen=True, eq=False)
class State:
    """The base of every core's state. A fresh row is all zeros."""

    count: Tensor  # (B,) int64: tokens since the row's own start
    room: Tensor  # (B,) int64: how many of the last tokens `crop` can still take back

    kinds: ClassVar[dict[str, type[State]]] = {}  # every state class by name, for `load`

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        State.kinds[cls.__name__] = cls

    @property
    def batch(self) -> int:
        return self.count.shape[0]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its name; the tensors of a tuple are `name.0`, `name.1`, ..."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                yield from ((f"{field.name}.{i}", tensor) for i, tensor in enumerate(value))
            else:
                yield field.name, value

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A new state with `change` applied to every tensor."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changed: dict[str, Any] = {
            name: tuple(change(tensor) for tensor in value) if isinstance(value, tuple) else change(value)
            for name, value in fields.items()
        }
        return type(self)(**changed)

    def select(self, rows: Rows) -> Self:
        """The given rows, in the given order; a row may be taken several times (a beam's parents)."""
        index = self._index(rows)
        return self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))

    def reset(self, rows: Rows) -> Self:
        """The same state with the given rows fresh, as if they had never seen a token."""
        fresh = torch.zeros(self.batch, dtype=torch.bool, device=self.count.device)
        fresh[self._index(rows)] = True
        return self.map(lambda tensor: tensor.masked_fill(fresh.view(-1, *[1] * (tensor.dim() - 1)), 0))

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """The rows of several states as one: rows may come and go while a stream runs."""
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(state, field.name) for state in states]
            if isinstance(values[0], tuple):
                fields[field.name] = tuple(torch.cat(tensors) for tensors in zip(*values, strict=True))
            else:
                fields[field.name] = torch.cat(values)
        return cls(**fields)

    def detach(self) -> Self:
        """The same numbers, with no way for a gradient to flow further back."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """On another device or in another floating type; counts stay integers."""
        return self.map(lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype))

    @property
    def nbytes(self) -> int:
        """What the state really holds on to: the bytes of its storages, each counted once."""
        storages = (tensor.untyped_storage() for _, tensor in self.tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def crop(self, tokens: int | Tensor | Sequence[int]) -> Self:
        """Take back the last `tokens` tokens (one number, or one a row), exactly as if they had never been read.

        Possible as far as the state was made with `slack`, within what a row has read since it last began.
        """
        back = torch.as_tensor(tokens, device=self.count.device).expand(self.batch)
        if (back < 0).any():
            raise ValueError(f"crop takes 0 or more tokens back, not {int(back.min())}")
        self._check_room(back)
        cropped = self.map(lambda tensor: _shift(tensor, back) if tensor.dim() > 1 else tensor)
        return dataclasses.replace(cropped, count=self.count - back, room=self.room - back)

    def _check_room(self, back: Tensor) -> None:
        short = (back > self.room).nonzero().flatten().tolist()
        if short:
            row = short[0]
            raise ValueError(
                f"cannot crop {int(back[row])} tokens of row {row}: it can take back {int(self.room[row])} "
                f"(read since its start: {int(self.count[row])}); make the state with init_state(batch, slack=...) "
                "of at least as many tokens as will be taken back"
            )

    def _index(self, rows: Rows) -> Tensor:
        index = torch.as_tensor(rows, device=self.count.device)
        if index.dtype == torch.bool:
            if index.shape != (self.batch,):
                raise ValueError(f"a mask of rows must have shape ({self.batch},), not {tuple(index.shape)}")
            return index.nonzero().flatten()
        index = index.to(torch.int64)  # an empty list is a float tensor to torch
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.batch:
            raise IndexError(f"rows must be in 0..{self.batch - 1}, got {index.tolist()}")
        return index

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as a safetensors file, whole or not at all."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.tensors()}
        note = {"format": FORMAT, "kind": type(self).__name__}
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=note))

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> State:
        """Read a state that `save` wrote; its core's module must have been imported."""
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                note = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{os.fspath(path)} is not a readable state: {error}") from error
        if note.get("format") != FORMAT or note.get("kind") not in State.kinds:
            raise ValueError(f"{os.fspath(path)} is not a stairwell state (its note says {note or 'nothing'})")
        return State.kinds[note["kind"]].from_tensors(tensors, where=os.fspath(path))

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], where: str = "the state") -> Self:
        """The inverse of `tensors()`. NaN and infinity are refused: no stream recovers from them."""
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ValueError(f"{where}: '{name}' holds NaN or infinity; start from a fresh state instead")
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            several = {int(name.split(".")[1]): tensors[name] for name in tensors if name.startswith(f"{field.name}.")}
            if several:
                fields[field.name] = tuple(several[i] for i in sorted(several))
            elif field.name in tensors:
                fields[field.name] = tensors[field.name]
            else:
                raise ValueError(f"{where}: '{field.name}' is missing; a {cls.__name__} needs it")
        return cls(**fields)


def _shift(memory: Tensor, back: Tensor) -> Tensor:
    """Drop the newest `back[b]` slots of each row and fill with zeros at the oldest end. memory (B, slots, ...)"""
    slot = torch.arange(memory.shape[1], device=memory.device) - back.to(memory.device)[:, None]
    if not memory.shape[1]:
        return memory
    row = torch.arange(memory.shape[0], device=memory.device)[:, None]
    shifted = memory[row, slot.clamp(min=0)]
    return shifted.masked_fill((slot < 0).view(*slot.shape, *[1] * (memory.dim() - 2)), 0)
