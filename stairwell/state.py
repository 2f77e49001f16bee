"""The state of a batch of streams as a value: batch-first tensors in a frozen dataclass.

A state holds raw memory and counts, so it can be saved, moved, reordered, cropped and compared. Each core defines its
own subclass. A field is a tensor or a tuple of tensors, and its field type determines what `reset`, `join`, `crop` and
`pack` do with it:

    memory: Tensor = field(metadata=SLOTS)

A field may also be another state: an encoder-decoder model's state contains its decoder's. Tensors are named by their
path, such as `decoder.memory`. A state is a PyTorch pytree, so `torch.func`, `torch.export` and `torch.compile` accept
it.

Letters: B batch size, N packed numbers per stream.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stairwell.devices import on_accelerator
from stairwell.errors import UserError
from stairwell.outputs import OutputType, has_format, write_output
from stairwell.tensor_files import read_hashed, write_hashed

BatchIndices = Tensor | Sequence[int]  # indices of batch elements, or one bool per batch element
FORMAT = "stairwell.state.3"
STATE = OutputType("a saved state", has_format("stairwell.state"))
MAX_TOKENS = 1 << 48  # per stream; far below the int64 limit, so that sums of counts cannot overflow
# A count packs into three floats, its digits in this base: exact in float32, and enough for MAX_TOKENS.
BASE, DIGITS = 1 << 21, 3
PACKED_DTYPES = (torch.float32, torch.float64)  # narrower types cannot represent a digit
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class FieldType(Enum):
    SLOTS = "One slot per token, (B, slots, ...), oldest first. Zero in an initial state; crop shifts the slots."
    GROWING = "Slots, as many as the longest stream of the batch has tokens."
    CARRY = "Recurrent state, (B, ...), updated at every token. Zero in an initial state; crop is not supported."
    STATIC = "Given once, (B, length, ...). Reset does not change it; join pads shorter ones at the end."
    COUNT = "Number of tokens, (B,) int64."
    NESTED = "Another state."
    SIZE = "Integer that configures the size of the state; not a tensor."


SLOTS, GROWING, CARRY, STATIC, COUNT, NESTED, SIZE = ({"field_type": field_type} for field_type in FieldType)


class Leaf(NamedTuple):
    """A tensor of a state, named by its path."""

    path: str
    field_type: FieldType
    tensor: Tensor
    max_slots: int | None = None  # GROWING: upper limit of the number of slots

    def check(self, where: str) -> None:
        """Raise an error for a wrong dtype or number of dimensions, NaN and infinity."""
        tensor, is_count = self.tensor, self.field_type is FieldType.COUNT
        dtypes = {FieldType.COUNT: (torch.int64,), FieldType.STATIC: (torch.bool, *FLOAT_DTYPES)}.get(
            self.field_type, FLOAT_DTYPES
        )
        if tensor.dtype not in dtypes or tensor.dim() < 1 or (tensor.dim() == 1) != is_count:
            expected = ", ".join(str(dtype) for dtype in dtypes)
            raise UserError(
                f"{where} is damaged: '{self.path}' is {tensor.dtype} of shape {tuple(tensor.shape)}; expected "
                f"{'(batch,)' if is_count else '(batch, ...)'} of {expected}"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{where}: '{self.path}' contains NaN or infinity; use an initial state instead")

    def reset(self, mask: Tensor) -> Tensor:
        """Return the tensor, zeroed where mask (B,) is true."""
        if self.field_type is FieldType.STATIC:
            return self.tensor
        return self.tensor.masked_fill(mask.view(-1, *[1] * (self.tensor.dim() - 1)), 0)

    def crop(self, tokens: Tensor) -> Tensor:
        """Return the tensor without the last tokens[b] tokens of each stream. tokens (B,)"""
        if self.field_type is FieldType.STATIC:
            return self.tensor
        tokens = tokens.to(self.tensor.device)
        return self.tensor - tokens if self.field_type is FieldType.COUNT else shift(self.tensor, tokens)

    @property
    def length(self) -> int:
        """Number of slots, or length of a static field."""
        return self.tensor.shape[1] if self.tensor.dim() > 1 else 0

    def pad(self, length: int) -> Tensor:
        """Return the tensor padded with zeros to `length`: slots at the oldest end, static fields at the end."""
        if length == self.length:
            return self.tensor
        missing = length - self.length
        ends = [0, missing] if self.field_type is FieldType.STATIC else [missing, 0]
        return torch.nn.functional.pad(self.tensor, [0, 0] * (self.tensor.dim() - 2) + ends)

    @staticmethod
    def join(leaves: Sequence[Leaf]) -> Tensor:
        """Concatenate the same leaf of several states along the batch."""
        first = leaves[0]
        if first.field_type in (FieldType.GROWING, FieldType.STATIC):
            longest = max(leaf.length for leaf in leaves)
            leaves = [leaf._replace(tensor=leaf.pad(longest)) for leaf in leaves]
        layouts = [(tuple(leaf.tensor.shape[1:]), leaf.tensor.dtype, leaf.tensor.device) for leaf in leaves]
        for layout in layouts:
            if layout != layouts[0]:
                (shape, dtype, device), (other_shape, other_dtype, other_device) = layouts[0], layout
                raise ValueError(
                    f"cannot join incompatible states: '{first.path}' is {shape} per stream, {dtype} on {device} in "
                    f"one, {other_shape}, {other_dtype} on {other_device} in another"
                )
        return torch.cat([leaf.tensor for leaf in leaves])

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed leaf of one stream."""
        if self.field_type is FieldType.COUNT:
            return (DIGITS,)
        if self.field_type is FieldType.STATIC:
            raise ValueError(
                f"'{self.path}' is static: it would be lost when a packed state is reset to zeros; pack the state "
                "without it and keep it separately"
            )
        if self.field_type is not FieldType.GROWING:
            return tuple(self.tensor.shape[1:])
        if self.max_slots is None:
            raise ValueError(f"'{self.path}' grows with the stream; to pack it, build its core with max_tokens")
        return (self.max_slots, *self.tensor.shape[2:])

    @property
    def packed_size(self) -> int:
        return math.prod(self.packed_shape)

    def pack(self, dtype: torch.dtype) -> Tensor:
        """Return the leaf as one vector per stream, (B, packed_size)."""
        shape = self.packed_shape
        if self.field_type is FieldType.COUNT:
            return torch.stack([self.tensor // BASE**i % BASE for i in range(DIGITS)], 1).to(dtype)
        return (self.pad(shape[0]) if self.field_type is FieldType.GROWING else self.tensor).flatten(1)

    def unpack(self, vector: Tensor) -> Tensor:
        """Invert `pack`; the result has this leaf's dtype. vector (B, packed_size)"""
        if self.field_type is not FieldType.COUNT:
            # A copy: the owner of the vector may write into it.
            shaped = torch.unflatten(vector, 1, self.packed_shape)
            return shaped.to(self.tensor.dtype, copy=True).contiguous()
        check_digits(vector, self.path)
        return torch.stack([vector[:, i].to(torch.int64) * BASE**i for i in range(DIGITS)]).sum(0)


class State:
    """Base class of all states. The initial state of a stream is all zeros except for static fields.

    A core's state has its own `count`, `croppable` and `max_crop`; a state with a nested state exposes that state's."""

    classes: ClassVar[dict[str, type[State]]] = {}  # every state class by name, for `load`
    max_tokens: int | None = None  # upper limit of growing slots, None: no limit

    if TYPE_CHECKING:

        @property
        def count(self) -> Tensor:
            """Tokens since each stream's start, (B,) int64."""

        @property
        def croppable(self) -> Tensor:
            """How many of the last tokens `crop` can remove now, (B,) int64."""

        @property
        def max_crop(self) -> int:
            """Upper limit of `croppable`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        State.classes[cls.__name__] = cls
        _register_pytree(cls)

    @property
    def batch(self) -> int:
        return self.count.shape[0]

    def leaves(self, prefix: str = "") -> Iterator[Leaf]:
        """Yield every tensor with its path and field type; the tensors of a tuple are `name.0`, `name.1`, ..."""
        for name, field_type, value in self._fields():
            path = prefix + name
            if field_type is FieldType.NESTED:
                yield from value.leaves(f"{path}.")
            elif isinstance(value, tuple):
                yield from (Leaf(f"{path}.{i}", field_type, part, self.max_tokens) for i, part in enumerate(value))
            elif field_type is not FieldType.SIZE:
                yield Leaf(path, field_type, value, self.max_tokens)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor with its path."""
        return ((leaf.path, leaf.tensor) for leaf in self.leaves())

    def spec(self) -> dict[str, Any]:
        """Return what the tensors do not contain, as JSON: the class, its sizes and the specs of nested states."""
        spec: dict[str, Any] = {"type": type(self).__name__}
        for name, field_type, value in self._fields():
            if field_type is FieldType.NESTED:
                spec[name] = value.spec()
            elif field_type is FieldType.SIZE:
                spec[name] = value
        return spec

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a new state with `function` applied to every tensor."""
        return self._with_tensors(function(leaf.tensor) for leaf in self.leaves())

    def select(self, indices: BatchIndices) -> Self:
        """Return the given batch elements in the given order; an element may be repeated (beam search)."""
        index = batch_indices(indices, self.batch, self.count.device)
        return self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))._trim_growing()

    def reset(self, indices: BatchIndices) -> Self:
        """Return the state with the given batch elements in their initial state; static fields are unchanged."""
        mask = torch.zeros(self.batch, dtype=torch.bool, device=self.count.device)
        mask[batch_indices(indices, self.batch, self.count.device)] = True
        return self._with_tensors(leaf.reset(mask) for leaf in self.leaves())._trim_growing()

    @classmethod
    def join(cls, states: Iterable[Self]) -> Self:
        """Concatenate states along the batch.

        Static fields and growing slots may differ in length; everything else must match."""
        if isinstance(states, State):
            raise TypeError(f"{cls.__name__}.join expects a list of states, not one state; use join([a, b])")
        states = list(states)
        if not states:
            raise ValueError("join needs at least one state")
        first = states[0]
        for state in states:
            if not isinstance(state, cls):
                raise TypeError(f"{cls.__name__}.join expects states of this class, not a {type(state).__name__}")
            if state.spec() != first.spec():
                raise ValueError(f"cannot join incompatible states: {first.spec()} and {state.spec()}")
            if unmatched := {path for path, _ in first.tensors()} ^ {path for path, _ in state.tensors()}:
                raise ValueError(f"cannot join incompatible states: only one of them has '{min(unmatched)}'")
        leaves = zip(*(state.leaves() for state in states), strict=True)
        return first._with_tensors(Leaf.join(same) for same in leaves)

    def detach(self) -> Self:
        """Return the state detached from the autograd graph."""
        return self.map(Tensor.detach)

    def check_counts(self, where: str = "the state") -> None:
        """Raise an error for impossible values of `count` and `croppable`, which engines use as memory indices."""
        for b, (count, croppable) in enumerate(zip(self.count.tolist(), self.croppable.tolist(), strict=True)):
            if not (0 <= croppable <= count < MAX_TOKENS and croppable <= self.max_crop):
                raise UserError(
                    f"{where} is damaged: stream {b} has count {count} and croppable {croppable}, where 0 <= croppable "
                    f"<= count < {MAX_TOKENS} and croppable <= max_crop {self.max_crop} must hold; start from "
                    "init_state(batch)"
                )

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move or cast the state: `to(device)`, `to(dtype)` or `to(device, dtype)`. Counts and masks keep their
        dtype."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"a state has a floating-point dtype, not {dtype}; counts are always torch.int64")
        return self.map(lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype))

    @property
    def nbytes(self) -> int:
        """Memory held by the state: the bytes of its storages, each counted once."""
        storages = (tensor.untyped_storage() for _, tensor in self.tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def crop(self, tokens: int | Tensor | Sequence[int]) -> Self:
        """Remove the last `tokens` tokens (one number, or one per stream), exactly as if they had never been read.

        The limit per stream is `croppable`: at most `max_crop` and at most the tokens since the stream's start.
        """
        for leaf in self.leaves():
            if leaf.field_type is FieldType.CARRY:
                raise ValueError(
                    f"{type(self).__name__} does not support crop: '{leaf.path}' is recurrent and stores no single "
                    "tokens; keep an earlier state instead"
                )
        per_stream = self._check_crop(tokens)
        return self._with_tensors(leaf.crop(per_stream) for leaf in self.leaves())._trim_growing()

    def pack(self) -> Tensor:
        """Return the state as one vector per stream, (B, N), for libraries whose recurrent state is a vector.

        `unpack` of a core or model is the inverse. An initial state packs to zeros and zeros unpack to an initial
        state. Gradients flow through everything except the counts."""
        leaves = list(self.leaves())
        dtypes = {leaf.tensor.dtype for leaf in leaves if leaf.field_type not in (FieldType.COUNT, FieldType.STATIC)}
        if len(dtypes) != 1 or not dtypes <= set(PACKED_DTYPES):
            names = ", ".join(sorted(map(str, dtypes)))
            raise ValueError(f"only float32 and float64 states can be packed, not {names}; use state.to(torch.float32)")
        return torch.cat([leaf.pack(*dtypes) for leaf in leaves], 1)

    def unpack(self, vector: Tensor) -> Self:
        """Return the state packed in `vector` (B, N). `self` is only a template for its shapes and sizes."""
        leaves = list(self.leaves())
        sizes = [leaf.packed_size for leaf in leaves]
        if not isinstance(vector, Tensor) or vector.dim() != 2 or vector.dtype not in PACKED_DTYPES:
            actual = f"{vector.dtype} of {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
            raise TypeError(f"a packed state is (batch, {sum(sizes)}) of float32 or float64, not {actual}")
        if vector.shape[1] != sum(sizes):
            raise ValueError(
                f"a {type(self).__name__} with max_crop {self.max_crop} packs into {sum(sizes)} numbers per stream, "
                f"not {vector.shape[1]}; unpack with the core and the max_crop that it was made with"
            )
        parts = torch.split(vector, sizes, 1)
        return self._with_tensors(leaf.unpack(part) for leaf, part in zip(leaves, parts))._trim_growing()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as a safetensors file with a hash of its contents, atomically."""
        metadata = {"format": FORMAT, "spec": json.dumps(self.spec())}
        write_output(path, STATE, lambda temporary: write_hashed(temporary, dict(self.tensors()), metadata))

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> State:
        """Read a state written by `save`. The module of its core must have been imported. Damaged files raise an
        error."""
        where = os.fspath(path)
        tensors, metadata = read_hashed(path, FORMAT)
        try:
            spec = json.loads(metadata.get("spec", ""))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: the metadata contain no state type: {error}") from error
        return State.from_tensors(tensors, spec, where).to(device)

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, Tensor], spec: dict[str, Any] | None = None, where: str = "the state"
    ) -> Self:
        """Invert `tensors()` and `spec()`; without a spec, return a state of this class with default sizes.

        The tensors are not trusted: dtypes, batch sizes, counts, NaN and infinity are checked here; shapes are checked
        by the core that reads the state (`Core.check_state`)."""
        remaining = dict(tensors)
        state = assemble(spec or {"type": cls.__name__}, remaining, where)
        if remaining:
            raise UserError(f"{where}: '{min(remaining)}' is not part of a {type(state).__name__}")
        if not isinstance(state, cls):
            raise UserError(f"{where} is a {type(state).__name__}, not a {cls.__name__}")
        for leaf in state.leaves():
            leaf.check(where)
        batches = {name: tensor.shape[0] for name, tensor in tensors.items()}
        if len(set(batches.values())) > 1:
            raise UserError(f"{where}: the batch sizes of its tensors differ: {batches}")
        state.check_counts(where)
        return state

    def _fields(self) -> Iterator[tuple[str, FieldType, Any]]:
        return ((name, field_type, getattr(self, name)) for name, field_type in typed_fields(type(self)))

    def _with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """Return the same state with other tensors, in the order of `leaves`."""
        remaining = iter(tensors)
        fields: dict[str, Any] = {}
        for name, field_type, value in self._fields():
            if field_type is FieldType.NESTED:
                fields[name] = value._with_tensors(remaining)
            elif isinstance(value, tuple):
                fields[name] = tuple(next(remaining) for _ in value)
            else:
                fields[name] = value if field_type is FieldType.SIZE else next(remaining)
        return type(self)(**fields)

    def _trim_growing(self) -> Self:
        """Remove growing slots that no remaining stream uses."""
        if all(leaf.field_type is not FieldType.GROWING for leaf in self.leaves()):
            return self
        longest = int(self.count.max()) if self.batch else 0
        return self._with_tensors(
            leaf.tensor[:, leaf.length - longest :].clone() if leaf.field_type is FieldType.GROWING else leaf.tensor
            for leaf in self.leaves()
        )

    def _check_crop(self, tokens: int | Tensor | Sequence[int]) -> Tensor:
        """Return the number of tokens to remove per stream, (B,); raise an error if that is impossible."""
        expected = f"crop expects an integer number of tokens, or one for each of the {self.batch} streams"
        numbers = _integers(tokens, expected, self.count.device)
        if numbers.dtype == torch.bool:
            raise TypeError(f"{expected}, not bools")
        if numbers.shape not in ((), (self.batch,)):
            raise ValueError(f"{expected}, not shape {tuple(numbers.shape)}")
        numbers = numbers.expand(self.batch)
        if (numbers < 0).any():
            raise ValueError(f"crop expects 0 or more tokens, not {int(numbers.min())}")
        too_many = (numbers > self.croppable).nonzero().flatten().tolist()
        if too_many:
            b = too_many[0]
            raise ValueError(
                f"cannot crop {int(numbers[b])} tokens of stream {b}: croppable is {int(self.croppable[b])} "
                f"({int(self.count[b])} tokens since its start); make the state with init_state(batch, max_crop=...) "
                "of at least the number of tokens to crop"
            )
        return numbers


class HasMemoryShapes(Protocol):
    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]: ...


def with_max_crop(core: HasMemoryShapes, state: State, max_crop: int) -> State:
    """Return a core's state with another `max_crop`: the oldest slots are removed, or empty ones added."""
    shapes = core.memory_shapes(max_crop)  # raises if the core does not support crop
    tensors = dict(state.tensors())
    for leaf in state.leaves():
        if leaf.field_type is FieldType.SLOTS:
            more = shapes[leaf.path][0] - leaf.length
            empty = leaf.tensor.new_zeros(leaf.tensor.shape[0], max(more, 0), *leaf.tensor.shape[2:])
            tensors[leaf.path] = torch.cat([empty, leaf.tensor[:, max(-more, 0) :]], 1)
    tensors["croppable"] = state.croppable.clamp(max=max_crop)
    return assemble({**state.spec(), "max_crop": max_crop}, tensors)


def batch_indices(indices: BatchIndices, batch: int, device: torch.device | None = None) -> Tensor:
    """Return indices or a bool mask of batch elements as indices (n,) in 0..batch-1."""
    index = _integers(indices, "batch indices are integers, or one bool per batch element", device)
    if index.dtype == torch.bool:
        if index.shape != (batch,):
            raise ValueError(f"a mask of batch elements must have shape ({batch},), not {tuple(index.shape)}")
        return index.nonzero().flatten()
    if index.dim() != 1:
        raise ValueError(f"batch indices must be a list of integers, not of shape {tuple(index.shape)}")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
        raise IndexError(f"batch indices must be in 0..{batch - 1}, got {index.tolist()}")
    return index


def _integers(values: Any, expected: str, device: torch.device | None) -> Tensor:
    """Return the values as an int64 or bool tensor; `expected` begins the error message for anything else."""
    try:
        numbers = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{expected}, not {values!r}") from error
    if not numbers.numel():  # torch makes a float tensor of an empty list
        return numbers.to(torch.int64)
    if numbers.is_floating_point() or numbers.is_complex():
        raise TypeError(f"{expected}, not {numbers.tolist()}")
    return numbers if numbers.dtype == torch.bool else numbers.to(torch.int64)


def check_digits(digits: Tensor, path: str) -> None:
    # Reading values would synchronize with an accelerator and cannot be compiled.
    if on_accelerator(digits) or torch.compiler.is_compiling():
        return
    if not ((digits >= 0) & (digits < BASE) & (digits == digits.round())).all():
        raise ValueError(f"the vector's '{path}' is not an integer: packed states must not be rounded, mixed or scaled")


def shift(memory: Tensor, tokens: Tensor) -> Tensor:
    """Remove the newest tokens[b] slots of each stream; add zeros at the oldest end. memory (B, slots, ...)"""
    if not memory.shape[1]:
        return memory
    slot = torch.arange(memory.shape[1], device=memory.device) - tokens[:, None]
    b = torch.arange(memory.shape[0], device=memory.device)[:, None]
    shifted = memory[b, slot.clamp(min=0)]
    return shifted.masked_fill((slot < 0).view(*slot.shape, *[1] * (memory.dim() - 2)), 0)


_typed_fields: dict[type[State], list[tuple[str, FieldType]]] = {}  # torch.compile cannot call dataclasses.fields


def typed_fields(state_type: type[State]) -> list[tuple[str, FieldType]]:
    """Return the names and field types of a state class."""
    if state_type in _typed_fields:
        return _typed_fields[state_type]
    typed = []
    for field in dataclasses.fields(state_type):  # type: ignore[arg-type]
        if "field_type" not in field.metadata:
            raise TypeError(
                f"{state_type.__name__}.{field.name} has no field type; write "
                f"`{field.name}: Tensor = field(metadata=SLOTS)`, or CARRY, STATIC, COUNT, NESTED, SIZE"
            )
        typed.append((field.name, field.metadata["field_type"]))
    return _typed_fields.setdefault(state_type, typed)


def assemble(spec: Any, tensors: dict[str, Tensor], where: str = "the state", prefix: str = "") -> State:
    """Return the state with the given spec; removes its tensors from `tensors`."""
    state_type = State.classes.get(str(spec.get("type"))) if isinstance(spec, dict) else None
    if state_type is None:
        raise UserError(f"{where}: {spec} is not a known type of state; import the module of its core first")
    fields: dict[str, Any] = {}
    for name, field_type in typed_fields(state_type):
        path = prefix + name
        if field_type is FieldType.NESTED:
            fields[name] = assemble(spec.get(name), tensors, where, f"{path}.")
        elif field_type is FieldType.SIZE:
            if name in spec:
                may_be_none = getattr(state_type, name) is None  # the default: unlimited
                fields[name] = _check_size(spec[name], path, where, may_be_none)
        elif path in tensors:
            fields[name] = tensors.pop(path)
        elif f"{path}.0" in tensors:
            parts = itertools.takewhile(tensors.__contains__, (f"{path}.{i}" for i in itertools.count()))
            fields[name] = tuple(tensors.pop(part) for part in list(parts))
        else:
            raise UserError(f"{where}: '{path}' is missing; a {state_type.__name__} requires it")
    return state_type(**fields)


def _check_size(value: Any, path: str, where: str, may_be_none: bool) -> int | None:
    if value is None and may_be_none:
        return None
    if type(value) is not int or value < 0:
        raise UserError(f"{where}: '{path}' must be an integer, 0 or more, not {value!r}")
    return value


def _register_pytree(state_type: type[State]) -> None:
    """Register a state class as a pytree node: tensors are its children, sizes its context."""

    def flatten_with_keys(state: State) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children: list[tuple[Any, Any]] = []
        sizes: list[Any] = []
        for name, field_type, value in state._fields():
            if field_type is FieldType.SIZE:
                sizes.append(value)
            else:
                children.append((pytree.GetAttrKey(name), value))
        return children, tuple(sizes)

    def flatten(state: State) -> tuple[list[Any], tuple[Any, ...]]:
        children, sizes = flatten_with_keys(state)
        return [value for _, value in children], sizes

    def unflatten(children: Iterable[Any], sizes: tuple[Any, ...]) -> State:
        tensors, integers = iter(children), iter(sizes)
        fields = {
            name: next(integers if field_type is FieldType.SIZE else tensors)
            for name, field_type in typed_fields(state_type)
        }
        return state_type(**fields)

    pytree.register_pytree_node(
        state_type,
        flatten,
        unflatten,
        serialized_type_name=f"{state_type.__module__}.{state_type.__qualname__}",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=flatten_with_keys,
    )
