"""The loops of Feedback's and the Staircases' segments in C++ (`csrc/`), if the extension was built; otherwise why not.

The operators take a plan as plain lists; an empty tensor stands for an option that is off. Letters as in `segment`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import weakref
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stairwell.fast.trace import Gradients, Inputs, LayerTrace, Plan, Trace, leaves

INSTRUCTION_SETS = ("portable vectors", "AVX2", "AVX-512")
LAYOUT = 8  # of the lists below; the same number stands in csrc/interface.cpp
POISON = False  # fill the loops' own scratch memory with NaN; for tests


RATES = "float attention_rate, float relu_rate, float residual_rate"
PLAN = f"int[] sizes, float eps, {RATES}, Tensor[] inputs, Tensor[] masks"
END = "int instruction_set, bool poison"
# Operators that fill what they are given, by their arguments.
SCHEMAS = {
    "feedback_forward": f"{PLAN}, Tensor(a!)[] trace, {END}",
    "feedback_backward": f"{PLAN}, Tensor[] trace, Tensor y, Tensor memory, Tensor(a!)[] gradients, int begin, "
    f"int end, {END}",
    "staircase_forward": f"{PLAN}, Tensor(a!)[] trace, int[] stairs, Tensor(b!)[] levels, {END}",
    "staircase_backward": f"{PLAN}, Tensor(a!)[] trace, int[] stairs, Tensor[] levels, Tensor y, Tensor(b!)[] "
    f"gradients, Tensor(c!)[] stairs_gradients, int begin, int end, int first, int last, {END}",
    "log_sums": "Tensor scores, Tensor(a!) sums, int rows, int vocabulary, int instruction_set",
    "highest": "Tensor scores, Tensor(a!) values, Tensor(b!) tokens, int rows, int vocabulary, int k, "
    "int instruction_set",
    "delta_forward": f"Tensor q, Tensor[] given, int[] shape, Tensor(a!)[] made, {END}",
    "delta_backward": f"Tensor q, Tensor[] given, int[] shape, Tensor[] gradients, Tensor(a!)[] made, {END}",
}
TYPES = {torch.float32: 0, torch.float64: 1, torch.bool: 2, torch.int64: 3, torch.bfloat16: 4, torch.int8: 5}
OTHER = 6  # any other element type
_registry = torch.library.Library("stairwell", "DEF")


def _load() -> tuple[ctypes.CDLL | None, str]:
    """Load the library; return it, or why it cannot be used."""
    paths = sorted(Path(__file__).parent.glob("_native*.so"))
    if not paths:
        return None, "the native library was not built"
    try:
        library = ctypes.CDLL(str(paths[0]))
        library.stairwell_layout.restype = library.stairwell_best_instruction_set.restype = ctypes.c_int64
        same = library.stairwell_layout() == LAYOUT
    except (OSError, AttributeError) as error:
        return None, f"the native library does not load ({error})"
    if not same:
        return None, "the native library is of another version; install again to build it"
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in {
        "call": [ctypes.c_char_p, integer, pointer],
        "decoder_new": [pointer, integer, pointer],
        "decoder_set_rings": [pointer, pointer],
        "decoder_step": [pointer, integer, pointer],
    }.items():
        function = getattr(library, f"stairwell_{name}")
        function.argtypes, function.restype = arguments, ctypes.c_char_p
    library.stairwell_decoder_free.argtypes, library.stairwell_decoder_free.restype = [pointer], None
    library.stairwell_use_openmp.argtypes, library.stairwell_use_openmp.restype = [pointer] * 3, None
    library.stairwell_use_openmp(*_openmp())
    return library, ""


def _openmp() -> list[int | None]:
    """Return the addresses of three functions of torch's OpenMP runtime, whose threads run the kernels too."""
    names = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        with suppress(OSError, AttributeError):
            runtime = ctypes.CDLL(str(path))  # a look-up through a library searches its dependencies as well
            return [ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value for name in names]
    return [None] * len(names)


_library, MISSING = _load()
BEST: int = _library.stairwell_best_instruction_set() if _library else 0


class Arguments:
    """Arguments of a native function as one array per type, as csrc/interface.h reads them. A list is preceded by its
    length; None stands for an empty tensor."""

    def __init__(self, *arguments: Any) -> None:
        self.integers, self.floats, self.tensors = array("q"), array("d"), array("q")
        self.add(*arguments)

    def add(self, *arguments: Any) -> None:
        for argument in arguments:
            if isinstance(argument, Tensor):
                self._add_tensor(argument)
            elif isinstance(argument, float):
                self.floats.append(argument)
            elif not isinstance(argument, list | tuple):
                self.integers.append(argument)
            elif argument and isinstance(argument[0], int):
                self.integers.append(len(argument))
                self.integers.extend(argument)
            else:
                self.integers.append(len(argument))
                for tensor in argument:
                    self._add_tensor(tensor)

    def _add_tensor(self, tensor: Tensor | None) -> None:
        if tensor is None:
            self.tensors.extend((0, 0, 0, 1))
            return
        dense = tensor.is_contiguous() and tensor.is_cpu
        self.tensors.extend((tensor.data_ptr(), tensor.numel(), TYPES.get(tensor.dtype, OTHER), dense))

    def packed(self) -> array[int]:
        """Addresses and lengths of the three arrays: the struct CallArguments."""
        address, size = self.tensors.buffer_info()
        return array("q", (*self.integers.buffer_info(), *self.floats.buffer_info(), address, size // 4))


def _operator(name: str) -> Callable[..., None]:
    """Return the operator as a Python function."""
    encoded = name.encode()

    def call(*arguments: Any) -> None:
        assert _library is not None
        given = Arguments(*arguments)
        packed = given.packed()
        check(_library.stairwell_call(encoded, torch.get_num_threads(), packed.buffer_info()[0]))

    return call


def check(error: bytes | None) -> None:
    if error is not None:
        raise RuntimeError(error.decode())


class Decoder:
    """A step description that the native library keeps, and its one call per token. See csrc/step.h."""

    def __init__(self, description: Arguments, dtype: torch.dtype, parameters: list[Tensor | None]) -> None:
        """`parameters` are those that the description points to: they live as long as the decoder."""
        assert _library is not None
        self.parameters = parameters
        handle, packed = ctypes.c_void_p(), description.packed()
        is_double = dtype == torch.float64
        check(_library.stairwell_decoder_new(ctypes.addressof(handle), is_double, packed.buffer_info()[0]))
        self.handle = handle.value
        weakref.finalize(self, _library.stairwell_decoder_free, self.handle)

    def set_rings(self, rings: Arguments) -> None:
        assert _library is not None
        packed = rings.packed()
        check(_library.stairwell_decoder_set_rings(self.handle, packed.buffer_info()[0]))

    def step(self, buffers: Arguments) -> None:
        assert _library is not None
        packed = buffers.packed()
        check(_library.stairwell_decoder_step(self.handle, torch.get_num_threads(), packed.buffer_info()[0]))


if not MISSING:
    for _name, _arguments in SCHEMAS.items():
        _registry.define(f"{_name}({_arguments}) -> ()")
        _registry.impl(_name, _operator(_name), "CPU")
        # Operators return nothing and only fill what they are given: there is nothing to say about shapes.
        torch.library.register_fake(f"stairwell::{_name}", lambda *_: None, lib=_registry)


def why_not(x: Tensor) -> str:
    """Why the loops cannot run where and in what x is; nothing if they can."""
    if x.device.type != "cpu":
        return f"native code runs on the CPU, not on {x.device.type}"
    if x.dtype not in (torch.float32, torch.float64):
        return f"native code takes float32 and float64, not {x.dtype}"
    return MISSING


def supports(x: Tensor) -> bool:
    return not why_not(x)


@dataclasses.dataclass(frozen=True)
class NativeBackend:
    """The back end for one instruction set."""

    instruction_set: int = BEST

    def forward(self, plan: Plan, inputs: Inputs, trace: Trace) -> None:
        torch.ops.stairwell.feedback_forward(*described(plan, inputs, trace), self.instruction_set, POISON)

    def backward(
        self, plan: Plan, inputs: Inputs, trace: Trace, y: Tensor, memory: Tensor, gradients: Gradients, steps: range
    ) -> None:
        torch.ops.stairwell.feedback_backward(
            *described(plan, inputs, trace),
            *(y, memory, filled(leaves(gradients)), steps.start, steps.stop, self.instruction_set, POISON),
        )


def staircase_forward(plan: Plan, inputs: Inputs, trace: Trace, stairs: Any, old: list[Tensor]) -> None:
    """stairs: a `staircase_segment.Stairs`. old (B, slots, 2HK), a layer each: what came before the call."""
    torch.ops.stairwell.staircase_forward(
        *described(plan, inputs, trace), stairs.numbers(), levels(stairs, trace, old), BEST, POISON
    )


def staircase_backward(
    plan: Plan,
    inputs: Inputs,
    trace: Trace,
    stairs: Any,
    old: list[Tensor],
    y: Tensor,
    gradients: Gradients,
    stairs_gradients: list[Tensor | None],
    *block: int,
) -> None:
    torch.ops.stairwell.staircase_backward(
        *(*described(plan, inputs, trace), stairs.numbers(), levels(stairs, trace, old)),
        *(y, filled(leaves(gradients)), filled(stairs_gradients), *block, BEST, POISON),
    )


def log_sums(scores: Tensor, instruction_set: int = BEST) -> Tensor:
    """log(sum of e^score) over the symbols. (..., V) -> (...)"""
    scores = scores.contiguous()
    sums = scores.new_empty(scores.shape[:-1])
    torch.ops.stairwell.log_sums(scores, sums, sums.numel(), scores.shape[-1], instruction_set)
    return sums


def highest(scores: Tensor, k: int, instruction_set: int = BEST) -> tuple[Tensor, Tensor]:
    """The k <= V highest of scores (..., V), the highest first, and their symbols, the lower one first where scores are
    equal: (..., k) each. A row with NaN gives any k symbols."""
    scores = scores.contiguous()
    values = scores.new_empty(*scores.shape[:-1], k)
    symbols = torch.empty_like(values, dtype=torch.int64)
    rows, V = math.prod(scores.shape[:-1]), scores.shape[-1]
    torch.ops.stairwell.highest(scores, values, symbols, rows, V, k, instruction_set)
    return values, symbols


def levels(stairs: Any, trace: Trace, old: list[Tensor]) -> list[Tensor]:
    return [*trace.levels, *dense([*old, *stairs.masks()])]


def described(plan: Plan, inputs: Inputs, trace: Trace) -> tuple[Any, ...]:
    """What every operator is told first."""
    return *numbers(plan), dense(leaves(inputs)), masks(plan), filled(flat_trace(trace))


def numbers(plan: Plan) -> tuple[Any, ...]:
    J = plan.source_mask.shape[1] if plan.source_mask is not None else 0
    kept_width = plan.attention_kept[0].shape[-1] if plan.attention_kept else 0
    sizes = [plan.B, plan.T, plan.D, plan.H, plan.K, plan.F, plan.R, plan.G, plan.A, J, len(plan.memory_of)]
    sizes += [plan.steps, kept_width, plan.pre, plan.itself, plan.needs_gradient]
    rates = (plan.attention_rate, plan.relu_rate, plan.residual_rate)
    return [*sizes, *plan.reach, *plan.set_of, *plan.memory_of], plan.eps, *rates


def masks(plan: Plan) -> list[Tensor]:
    kinds = (plan.attention_kept, plan.relu_kept, plan.cross_kept, plan.residual_kept)
    return dense([plan.age, plan.source_mask, *(kind[a] if kind else None for a in range(plan.A) for kind in kinds)])


def filled(tensors: list[Tensor | None]) -> list[Tensor]:
    """With an empty tensor for none; the tensors themselves, because the loops write into them."""
    none = torch.empty(0)
    return [none if tensor is None else tensor for tensor in tensors]


def dense(tensors: list[Tensor | None]) -> list[Tensor]:
    """The same for what the loops only read, without gaps."""
    return [tensor.contiguous() for tensor in filled(tensors)]


def flat_trace(trace: Trace) -> list[Tensor | None]:
    tensors: list[Tensor | None] = [trace.y, trace.memory, *trace.levels[1:-1], trace.memory_input, trace.memory_rstd]
    return [*tensors, *trace.keys, *trace.values, *(tensor for layer in trace.layers for tensor in flat_layer(layer))]


def flat_layer(layer: LayerTrace) -> list[Tensor | None]:
    cross = [*leaves(layer.cross), *leaves(layer.cross_attended)] if layer.cross is not None else [None] * 7
    own = (*leaves(layer.attention), *leaves(layer.self_attended), layer.own)
    return [*own, *cross, *leaves(layer.feed), layer.active]
