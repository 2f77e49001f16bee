"""A state is a value: everything a model remembers of its streams, as batch-first tensors in a frozen dataclass.

It holds raw memory and counts, so it can be saved, moved, reordered, cut and compared. It knows no model: a core
defines its own subclass, one tensor (or a tuple of tensors) a field, each with its role (see `roles`). A field may also
be another state: a translator's state holds its decoder's. Tensors are named by their path, `decoder.memory`.
A state is a pytree of PyTorch, so `torch.func`, `torch.export` and `torch.compile` take it.
Letters: B rows, N numbers a row.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stairwell.errors import UserError
from stairwell.field_types import PACKED_TYPES, FieldType, Leaf
from stairwell.outputs import Kind, has_format, write_output
from stairwell.tensor_files import read_hashed, write_hashed

RowNumbers = Tensor | Sequence[int]  # rows by their numbers, or one bool a row
FORMAT = "stairwell.state.3"
STATE = Kind("a saved state", has_format("stairwell.state"))
MAX_TOKENS = 1 << 48  # of one stream: counts stay far from where int64 overflows


class State:
    """The base of every state. A fresh row is all zeros, but for what is static.

    A core's state has `count`, `room` and `max_crop` of its own; one that holds another state has that one's."""

    kinds: ClassVar[dict[str, type[State]]] = {}  # every state class by name, for `load`
    max_tokens: int | None = None  # how many growing slots there can ever be, where there are any; none: no limit

    if TYPE_CHECKING:

        @property
        def count(self) -> Tensor:
            """(B,) int64: tokens since the row's own start"""

        @property
        def croppable(self) -> Tensor:
            """(B,) int64: how many of the last tokens `crop` can still take back"""

        @property
        def max_crop(self) -> int:
            """How many tokens `crop` can take back at most."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        State.kinds[cls.__name__] = cls
        _register_pytree(cls)

    @property
    def batch(self) -> int:
        return self.count.shape[0]

    def leaves(self, prefix: str = "") -> Iterator[Leaf]:
        """Every tensor with its path and role; the tensors of a tuple are `name.0`, `name.1`, ..."""
        for name, role, value in self._fields():
            path = prefix + name
            if role is FieldType.NESTED:
                yield from value.leaves(f"{path}.")
            elif isinstance(value, tuple):
                yield from (Leaf(f"{path}.{i}", role, tensor, self.max_tokens) for i, tensor in enumerate(value))
            elif role is not FieldType.SIZE:
                yield Leaf(path, role, value, self.max_tokens)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its path."""
        return ((leaf.path, leaf.tensor) for leaf in self.leaves())

    def form(self) -> dict[str, Any]:
        """What the tensors do not say, as JSON: the kind of the state, its sizes, and the form of states within."""
        form: dict[str, Any] = {"kind": type(self).__name__}
        for name, role, value in self._fields():
            if role is FieldType.NESTED:
                form[name] = value.form()
            elif role is FieldType.SIZE:
                form[name] = value
        return form

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A new state with `change` applied to every tensor."""
        return self._with(change(leaf.tensor) for leaf in self.leaves())

    def select(self, rows: RowNumbers) -> Self:
        """The given rows, in the given order; a row may be taken several times (a beam's parents)."""
        index = row_numbers(rows, self.batch, self.count.device)
        return self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))._trimmed()

    def reset(self, rows: RowNumbers) -> Self:
        """The same state with the given rows fresh, as if they had never seen a token; what is static stays."""
        fresh = torch.zeros(self.batch, dtype=torch.bool, device=self.count.device)
        fresh[row_numbers(rows, self.batch, self.count.device)] = True
        return self._with(leaf.reset(fresh) for leaf in self.leaves())._trimmed()

    @classmethod
    def join(cls, states: Iterable[Self]) -> Self:
        """The rows of several states as one: rows may come and go while a stream runs.

        Sources and growing slots may differ in length; all else must be alike."""
        if isinstance(states, State):
            raise TypeError(f"{cls.__name__}.join takes a list of states, not one state; use join([a, b])")
        states = list(states)
        if not states:
            raise ValueError("join needs at least one state")
        first = states[0]
        for state in states:
            if not isinstance(state, cls):
                raise TypeError(f"{cls.__name__}.join takes states of that kind, not a {type(state).__name__}")
            if state.form() != first.form():
                raise ValueError(f"cannot join states that are not alike: {first.form()} and {state.form()}")
            if odd := {path for path, _ in first.tensors()} ^ {path for path, _ in state.tensors()}:
                raise ValueError(f"cannot join states that are not alike: only one of them has '{min(odd)}'")
        together = zip(*(state.leaves() for state in states), strict=True)
        return first._with(Leaf.join(leaves) for leaves in together)

    def detach(self) -> Self:
        """The same numbers, with no way for a gradient to flow further back."""
        return self.map(Tensor.detach)

    def check_counts(self, where: str = "the state") -> None:
        """Refuse values of `count` and `room` that no stream can have: engines use them as indices into memory."""
        for row, (count, croppable) in enumerate(zip(self.count.tolist(), self.croppable.tolist(), strict=True)):
            if not (0 <= croppable <= count < MAX_TOKENS and croppable <= self.max_crop):
                raise UserError(
                    f"{where} is damaged: stream {row} has count {count} and croppable {croppable}, where 0 <= croppable <= count < "
                    f"{MAX_TOKENS} and croppable <= max_crop {self.max_crop} must hold; start from init_state(batch)"
                )

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """On another device or in another floating type: `to(device)`, `to(dtype)` or `to(device, dtype)`, as a tensor;
        counts stay integers."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"a state is of a floating type, not {dtype}; counts are always torch.int64")
        return self.map(lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype))

    @property
    def nbytes(self) -> int:
        """What the state really holds on to: the bytes of its storages, each counted once."""
        storages = (tensor.untyped_storage() for _, tensor in self.tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def crop(self, tokens: int | Tensor | Sequence[int]) -> Self:
        """Take back the last `tokens` tokens (one number, or one a row), exactly as if they had never been read.

        Possible as far as the state was made with `max_crop`, within what a row has read since it last began.
        """
        for leaf in self.leaves():
            if leaf.role is FieldType.CARRY:
                raise ValueError(
                    f"this {type(self).__name__} cannot take tokens back: its '{leaf.path}' holds no single token; "
                    "keep an earlier state instead"
                )
        back = self._tokens_back(tokens)
        return self._with(leaf.crop(back) for leaf in self.leaves())._trimmed()

    def pack(self) -> Tensor:
        """One vector a row, (B, N), for libraries whose recurrent state is one; a core's or model's `unpack` is the way
        back. A fresh row is zeros and zeros are a fresh row; gradients flow through all but the counts."""
        leaves = list(self.leaves())
        types = {leaf.tensor.dtype for leaf in leaves if leaf.role not in (FieldType.COUNT, FieldType.STATIC)}
        if len(types) != 1 or not types <= set(PACKED_TYPES):
            found = ", ".join(sorted(map(str, types)))
            raise ValueError(f"a state packs in float32 or float64, not {found}; use state.to(dtype=torch.float32)")
        return torch.cat([leaf.pack(*types) for leaf in leaves], 1)

    def unpack(self, vector: Tensor) -> Self:
        """The state that was packed into `vector` (B, N). This one says what it is like; its own rows do not matter."""
        leaves = list(self.leaves())
        sizes = [leaf.packed_size for leaf in leaves]
        if not isinstance(vector, Tensor) or vector.dim() != 2 or vector.dtype not in PACKED_TYPES:
            found = f"{vector.dtype} of {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
            raise TypeError(f"a packed state is (rows, {sum(sizes)}) of float32 or float64, not {found}")
        if vector.shape[1] != sum(sizes):
            raise ValueError(
                f"a {type(self).__name__} with max_crop {self.max_crop} packs into {sum(sizes)} numbers a row, not "
                f"{vector.shape[1]}; unpack with the core and the max_crop that it was made with"
            )
        return self._with(leaf.unpack(part) for leaf, part in zip(leaves, vector.split(sizes, 1)))._trimmed()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as a safetensors file with a hash of its contents, whole or not at all."""
        text = {"format": FORMAT, "form": json.dumps(self.form())}
        write_output(path, STATE, lambda temporary: write_hashed(temporary, dict(self.tensors()), text))

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> State:
        """Read a state that `save` wrote; its core's module must have been imported. A damaged file is refused."""
        where = os.fspath(path)
        tensors, text = read_hashed(path, FORMAT)
        try:
            form = json.loads(text.get("form", ""))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} does not say what kind of state it is: {error}") from error
        return State.from_tensors(tensors, form, where).to(device)

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, Tensor], form: dict[str, Any] | None = None, where: str = "the state"
    ) -> Self:
        """The inverse of `tensors()` and `form()`; without a form, a state of this class with its usual sizes.

        Tensors may come from anywhere, so everything that can be checked without a model is: element types, numbers of
        rows, counts, NaN and infinity. Shapes are checked by the core that reads the state (`Core.check_state`)."""
        left = dict(tensors)
        state = assemble(form or {"kind": cls.__name__}, left, where)
        if left:
            raise UserError(f"{where}: '{min(left)}' belongs to no {type(state).__name__}")
        if not isinstance(state, cls):
            raise UserError(f"{where} is a {type(state).__name__}, not a {cls.__name__}")
        for leaf in state.leaves():
            leaf.check_type(where)
        rows = {name: tensor.shape[0] for name, tensor in tensors.items()}
        if len(set(rows.values())) > 1:
            raise UserError(f"{where}: its tensors differ in their number of rows: {rows}")
        state.check_counts(where)
        return state

    def _fields(self) -> Iterator[tuple[str, FieldType, Any]]:
        return ((name, role, getattr(self, name)) for name, role in roles(type(self)))

    def _with(self, tensors: Iterable[Tensor]) -> Self:
        """The same state with other tensors, in the order of `leaves`."""
        rest = iter(tensors)
        fields: dict[str, Any] = {}
        for name, role, value in self._fields():
            if role is FieldType.NESTED:
                fields[name] = value._with(rest)
            elif isinstance(value, tuple):
                fields[name] = tuple(next(rest) for _ in value)
            else:
                fields[name] = value if role is FieldType.SIZE else next(rest)
        return type(self)(**fields)

    def _trimmed(self) -> Self:
        """Without growing slots that no row uses, so that a state does not remember rows that left."""
        if all(leaf.role is not FieldType.GROWING for leaf in self.leaves()):
            return self
        longest = int(self.count.max()) if self.batch else 0
        return self._with(
            leaf.tensor[:, leaf.tensor.shape[1] - longest :].clone() if leaf.role is FieldType.GROWING else leaf.tensor
            for leaf in self.leaves()
        )

    def _tokens_back(self, tokens: int | Tensor | Sequence[int]) -> Tensor:
        """How many tokens to take back of each row, (B,), after making sure that it can be done."""
        wanted = f"crop takes a whole number of tokens, or one for each of its {self.batch} rows"
        back = _whole_numbers(tokens, wanted, self.count.device)
        if back.dtype == torch.bool:
            raise TypeError(f"{wanted}, not bools")
        if back.shape not in ((), (self.batch,)):
            raise ValueError(f"{wanted}, not numbers of shape {tuple(back.shape)}")
        back = back.expand(self.batch)
        if (back < 0).any():
            raise ValueError(f"crop takes 0 or more tokens back, not {int(back.min())}")
        short = (back > self.croppable).nonzero().flatten().tolist()
        if short:
            row = short[0]
            raise ValueError(
                f"cannot crop {int(back[row])} tokens of row {row}: it can take back {int(self.croppable[row])} "
                f"(read since its start: {int(self.count[row])}); make the state with init_state(batch, max_crop=...) "
                "of at least as many tokens as will be taken back"
            )
        return back


def row_numbers(rows: RowNumbers, batch: int, device: torch.device | None = None) -> Tensor:
    """Rows given by number, or by one bool a row, as numbers (n,) in 0..batch-1."""
    index = _whole_numbers(rows, "rows are whole numbers, or one bool a row", device)
    if index.dtype == torch.bool:
        if index.shape != (batch,):
            raise ValueError(f"a mask of rows must have shape ({batch},), not {tuple(index.shape)}")
        return index.nonzero().flatten()
    if index.dim() != 1:
        raise ValueError(f"rows must be a list of numbers, not of shape {tuple(index.shape)}")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
        raise IndexError(f"rows must be in 0..{batch - 1}, got {index.tolist()}")
    return index


def roles(kind: type[State]) -> list[tuple[str, FieldType]]:
    """The fields of a kind of state with their roles."""
    if kind in _roles:
        return _roles[kind]
    found = []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if "role" not in field.metadata:
            raise TypeError(
                f"{kind.__name__}.{field.name} has no role; write `{field.name}: Tensor = field(metadata=SLOTS)`, or "
                "CARRY, STATIC, COUNT, NESTED, SIZE"
            )
        found.append((field.name, field.metadata["role"]))
    return _roles.setdefault(kind, found)


_roles: dict[type[State], list[tuple[str, FieldType]]] = {}  # found once: torch.compile cannot look into a dataclass


def _whole_numbers(values: Any, wanted: str, device: torch.device | None) -> Tensor:
    """The given numbers as integers, or bools if they are; `wanted` is what the error says otherwise."""
    try:
        numbers = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{wanted}, not {values!r}") from error
    if not numbers.numel():  # an empty list is a float tensor to torch
        return numbers.to(torch.int64)
    if numbers.is_floating_point() or numbers.is_complex():
        raise TypeError(f"{wanted}, not {numbers.tolist()}")
    return numbers if numbers.dtype == torch.bool else numbers.to(torch.int64)


def assemble(form: Any, tensors: dict[str, Tensor], where: str = "the state", prefix: str = "") -> Any:
    """A state of the given form; takes its tensors out of `tensors`."""
    kind = State.kinds.get(str(form.get("kind"))) if isinstance(form, dict) else None
    if kind is None:
        raise UserError(f"{where}: {form} is no known kind of state; import the module of its core first")
    fields: dict[str, Any] = {}
    for name, role in roles(kind):
        path = prefix + name
        if role is FieldType.NESTED:
            fields[name] = assemble(form.get(name), tensors, where, f"{path}.")
        elif role is FieldType.SIZE:
            if name in form:
                fields[name] = _size(form[name], path, where)
        elif path in tensors:
            fields[name] = tensors.pop(path)
        elif f"{path}.0" in tensors:
            several = itertools.takewhile(tensors.__contains__, (f"{path}.{i}" for i in itertools.count()))
            fields[name] = tuple(tensors.pop(part) for part in list(several))
        else:
            raise UserError(f"{where}: '{path}' is missing; a {kind.__name__} needs it")
    return kind(**fields)


def _size(value: Any, path: str, where: str) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise UserError(f"{where}: '{path}' must be a whole number, 0 or more, not {value!r}")
    return value


def _register_pytree(kind: type[State]) -> None:
    """Let PyTorch look into a kind of state: tensors are its leaves, sizes part of its form."""

    def flatten_with_keys(state: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        parts = [
            (pytree.GetAttrKey(name), getattr(state, name)) for name, role in roles(kind) if role is not FieldType.SIZE
        ]
        return parts, tuple(getattr(state, name) for name, role in roles(kind) if role is FieldType.SIZE)

    def flatten(state: Any) -> tuple[list[Any], tuple[Any, ...]]:
        parts, sizes = flatten_with_keys(state)
        return [value for _, value in parts], sizes

    def unflatten(parts: Iterable[Any], sizes: tuple[Any, ...]) -> State:
        left, fixed = iter(parts), iter(sizes)
        return kind(**{name: next(fixed if role is FieldType.SIZE else left) for name, role in roles(kind)})

    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=flatten_with_keys,
    )
