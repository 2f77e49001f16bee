"""Interface to the native library (`csrc/`): loading, operators and their arguments.

Operators take structures as flat lists; an empty tensor stands for None. Letters as in `segment_data`.
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
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stairwell.fast.segment_data import Activations, Gradients, Inputs, LayerActivations, Plan, leaves
from stairwell.fast.staircase_plan import StaircasePlan

INSTRUCTION_SETS = ("portable vectors", "AVX2", "AVX-512")
LAYOUT_VERSION = 15  # version of the operators' argument lists; must equal the one in csrc/interface.cpp
FILL_SCRATCH_WITH_NAN = False  # tests set this to detect reads of uninitialized scratch memory

SCHEDULES = {"auto": 0, "streams": 1, "columns": 2}  # must match csrc/call.h
PLAN = (
    "int[] sizes, float eps, float attention_rate, float relu_rate, float residual_rate, Tensor[] inputs, "
    "Tensor[] masks"
)
END = "int instruction_set, bool fill_nan"
# Arguments of the operators. They return nothing and write to the mutable ones.
SCHEMAS = {
    "feedback_forward": f"{PLAN}, Tensor(a!)[] activations, int schedule, {END}",
    "feedback_backward": f"{PLAN}, Tensor[] activations, Tensor y, Tensor memory, Tensor(a!)[] gradients, int begin, "
    f"int end, int schedule, {END}",
    "staircase_forward": f"{PLAN}, Tensor(a!)[] activations, int[] staircase, Tensor(b!)[] tensors, {END}",
    "staircase_backward": f"{PLAN}, Tensor(a!)[] activations, int[] staircase, Tensor[] tensors, Tensor y, "
    f"Tensor(b!)[] gradients, Tensor(c!)[] staircase_gradients, int begin, int end, int first, int last, {END}",
    "logsumexp": "Tensor scores, Tensor(a!) sums, int rows, int vocabulary, int instruction_set",
    "topk": "Tensor scores, Tensor(a!) values, Tensor(b!) tokens, int rows, int vocabulary, int k, int instruction_set",
    "delta_forward": f"Tensor q, Tensor[] inputs, int[] shape, Tensor(a!)[] outputs, {END}",
    "delta_backward": f"Tensor q, Tensor[] inputs, int[] shape, Tensor[] gradients, Tensor(a!)[] outputs, {END}",
}
ELEMENT_TYPES = {torch.float32: 0, torch.float64: 1, torch.bool: 2, torch.int64: 3, torch.bfloat16: 4, torch.int8: 5}
OTHER_TYPE = 6
_registry = torch.library.Library("stairwell", "DEF")


def _load() -> tuple[ctypes.CDLL | None, str]:
    """Load the library. Return it, or the reason why it cannot be used."""
    paths = sorted(Path(__file__).parent.glob("_native*.so"))
    if not paths:
        return None, "the native library was not built"
    try:
        library = ctypes.CDLL(str(paths[0]))
        library.stairwell_layout.restype = library.stairwell_best_instruction_set.restype = ctypes.c_int64
        version = library.stairwell_layout()
    except (OSError, AttributeError) as error:
        return None, f"the native library does not load ({error})"
    if version != LAYOUT_VERSION:
        return None, "the native library is of another version; reinstall stairwell to rebuild it"
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in {
        "call": [ctypes.c_char_p, integer, pointer],
        "decode_program_new": [pointer, integer, pointer],
        "decode_session_new": [pointer, pointer],
        "decode_session_set_buffers": [pointer, pointer],
        "decode_session_step": [pointer, integer, pointer],
    }.items():
        function = getattr(library, f"stairwell_{name}")
        function.argtypes, function.restype = arguments, ctypes.c_char_p
    for free in (library.stairwell_decode_program_free, library.stairwell_decode_session_free):
        free.argtypes, free.restype = [pointer], None
    library.stairwell_equal_elements.argtypes = [pointer, integer, integer, ctypes.c_char_p]
    library.stairwell_equal_elements.restype = integer
    library.stairwell_use_openmp.argtypes, library.stairwell_use_openmp.restype = [pointer] * 3, None
    library.stairwell_use_openmp(*_openmp())
    return library, ""


def _openmp() -> list[int | None]:
    """Return the addresses of three functions of torch's OpenMP runtime. Its threads also run the kernels."""
    names = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        with suppress(OSError, AttributeError):
            runtime = ctypes.CDLL(str(path))  # symbol lookup includes the library's dependencies
            return [ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value for name in names]
    return [None] * len(names)


_library, UNAVAILABLE_REASON = _load()
BEST_INSTRUCTION_SET: int = _library.stairwell_best_instruction_set() if _library else 0


class Arguments:
    """Arguments of a native function as one array per type, in the format of csrc/interface.h. A list is preceded by
    its length; None is passed as an empty tensor."""

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
        self.tensors.extend((tensor.data_ptr(), tensor.numel(), ELEMENT_TYPES.get(tensor.dtype, OTHER_TYPE), dense))

    def packed(self) -> array[int]:
        """Return addresses and lengths of the three arrays: the struct CallArguments."""
        address, size = self.tensors.buffer_info()
        return array("q", (*self.integers.buffer_info(), *self.floats.buffer_info(), address, size // 4))


def _operator(name: str) -> Callable[..., None]:
    """Return the operator as a Python function."""
    encoded = name.encode()

    def call(*arguments: Any) -> None:
        assert _library is not None
        flat = Arguments(*arguments)
        packed = flat.packed()
        check(_library.stairwell_call(encoded, torch.get_num_threads(), packed.buffer_info()[0]))

    return call


def check(error: bytes | None) -> None:
    """Raise the error message of a native function, if any."""
    if error is not None:
        raise RuntimeError(error.decode())


class DecodeProgram:
    """A model's step in the native library, shared by its sessions. See csrc/step.h."""

    def __init__(self, description: Arguments, dtype: torch.dtype, parameters: list[Tensor | None]) -> None:
        """The description holds addresses of `parameters`, so the program keeps them alive."""
        assert _library is not None
        self.parameters = parameters
        handle, packed = ctypes.c_void_p(), description.packed()
        is_double = dtype == torch.float64
        check(_library.stairwell_decode_program_new(ctypes.addressof(handle), is_double, packed.buffer_info()[0]))
        self.handle = handle.value
        weakref.finalize(self, _library.stairwell_decode_program_free, self.handle)


class DecodeSession:
    """The buffers of a session's streams in the native library, and one call per token for all layers."""

    def __init__(self, program: DecodeProgram) -> None:
        assert _library is not None
        self.program = program
        handle = ctypes.c_void_p()
        check(_library.stairwell_decode_session_new(ctypes.addressof(handle), program.handle))
        self.handle = handle.value
        weakref.finalize(self, _library.stairwell_decode_session_free, self.handle)

    def set_buffers(self, buffers: Arguments) -> None:
        assert _library is not None
        packed = buffers.packed()
        check(_library.stairwell_decode_session_set_buffers(self.handle, packed.buffer_info()[0]))

    def step(self, arguments: Arguments) -> None:
        assert _library is not None
        packed = arguments.packed()
        check(_library.stairwell_decode_session_step(self.handle, torch.get_num_threads(), packed.buffer_info()[0]))


class ElementSnapshot:
    """Detects changes of elements of CPU tensors, given as one-dimensional views, which it keeps alive."""

    def __init__(self, views: list[np.ndarray]) -> None:
        self.views, self.before = views, [view.tobytes() for view in views]
        sizes = sorted({view.itemsize for view in views})
        self.groups: list[tuple[array[int], int, bytes]] = []  # addresses, size of an element, expected elements
        for size in sizes if _library else ():
            group = [i for i, view in enumerate(views) if view.itemsize == size]
            addresses = array("q")
            for i in group:
                first, (stride,) = views[i].ctypes.data, views[i].strides
                addresses.extend(first + j * stride for j in range(len(views[i])))
            self.groups.append((addresses, size, b"".join(self.before[i] for i in group)))

    def changed(self) -> bool:
        if _library is None:
            return [view.tobytes() for view in self.views] != self.before
        return not all(
            _library.stairwell_equal_elements(*addresses.buffer_info(), size, expected)
            for addresses, size, expected in self.groups
        )


if not UNAVAILABLE_REASON:
    for _name, _arguments in SCHEMAS.items():
        _registry.define(f"{_name}({_arguments}) -> ()")
        _registry.impl(_name, _operator(_name), "CPU")
        # Operators return nothing, so a fake implementation has no shapes to compute.
        torch.library.register_fake(f"stairwell::{_name}", lambda *_: None, lib=_registry)


def unsupported_reason(x: Tensor) -> str:
    """Return why native code does not support the device or dtype of x, or an empty string."""
    if x.device.type != "cpu":
        return f"native code runs on the CPU, not on {x.device.type}"
    if x.dtype not in (torch.float32, torch.float64):
        return f"native code supports float32 and float64, not {x.dtype}"
    return UNAVAILABLE_REASON


def supports(x: Tensor) -> bool:
    return not unsupported_reason(x)


@dataclasses.dataclass(frozen=True)
class NativeBackend:
    """Backend of a Feedback segment for one instruction set.

    Threads share the streams, or the columns of each product; by default a cost model in csrc/call.h decides."""

    instruction_set: int = BEST_INSTRUCTION_SET
    schedule: Literal["auto", "streams", "columns"] = "auto"

    def forward(self, plan: Plan, inputs: Inputs, saved: Activations) -> None:
        torch.ops.stairwell.feedback_forward(
            *plan_arguments(plan, inputs, saved), SCHEDULES[self.schedule], self.instruction_set, FILL_SCRATCH_WITH_NAN
        )

    def backward(
        self,
        plan: Plan,
        inputs: Inputs,
        saved: Activations,
        d_y: Tensor,
        d_memory: Tensor,
        gradients: Gradients,
        tokens: range,
    ) -> None:
        torch.ops.stairwell.feedback_backward(
            *(*plan_arguments(plan, inputs, saved), d_y, d_memory, none_to_empty(leaves(gradients))),
            *(tokens.start, tokens.stop, SCHEDULES[self.schedule], self.instruction_set, FILL_SCRATCH_WITH_NAN),
        )


def staircase_forward(staircase: StaircasePlan, inputs: Inputs, saved: Activations, pass_kv: list[Tensor]) -> None:
    """Run a Staircase segment. pass_kv (B, slots, 2HK), per layer: keys and values from before the call."""
    torch.ops.stairwell.staircase_forward(
        *staircase_arguments(staircase, inputs, saved, pass_kv), BEST_INSTRUCTION_SET, FILL_SCRATCH_WITH_NAN
    )


def staircase_backward(
    staircase: StaircasePlan,
    inputs: Inputs,
    saved: Activations,
    pass_kv: list[Tensor],
    d_y: Tensor,
    gradients: Gradients,
    staircase_gradients: list[Tensor | None],
    *block: int,
) -> None:
    """Run backward for a block: first and last token, first and last step."""
    torch.ops.stairwell.staircase_backward(
        *(*staircase_arguments(staircase, inputs, saved, pass_kv), d_y, none_to_empty(leaves(gradients))),
        *(none_to_empty(staircase_gradients), *block, BEST_INSTRUCTION_SET, FILL_SCRATCH_WITH_NAN),
    )


def logsumexp(scores: Tensor, instruction_set: int = BEST_INSTRUCTION_SET) -> Tensor:
    """Return the log-sum-exp over the vocabulary. (..., V) -> (...)"""
    scores = scores.contiguous()
    sums = scores.new_empty(scores.shape[:-1])
    torch.ops.stairwell.logsumexp(scores, sums, sums.numel(), scores.shape[-1], instruction_set)
    return sums


def topk(scores: Tensor, k: int, instruction_set: int = BEST_INSTRUCTION_SET) -> tuple[Tensor, Tensor]:
    """Return the k <= V highest of scores (..., V) in descending order, and their token ids, the lower id first on
    ties: (..., k) each. Scores with NaN give any k tokens."""
    scores = scores.contiguous()
    values = scores.new_empty(*scores.shape[:-1], k)
    tokens = torch.empty_like(values, dtype=torch.int64)
    rows, V = math.prod(scores.shape[:-1]), scores.shape[-1]
    torch.ops.stairwell.topk(scores, values, tokens, rows, V, k, instruction_set)
    return values, tokens


def staircase_arguments(
    staircase: StaircasePlan, inputs: Inputs, saved: Activations, pass_kv: list[Tensor]
) -> tuple[Any, ...]:
    tensors = [*saved.layer_outputs, *contiguous([*pass_kv, *staircase.masks()])]
    return *plan_arguments(staircase.plan, inputs, saved), staircase.sizes(), tensors


def plan_arguments(plan: Plan, inputs: Inputs, saved: Activations) -> tuple[Any, ...]:
    """Return the first arguments of every operator on a plan."""
    return *plan_sizes(plan), contiguous(leaves(inputs)), plan_masks(plan), none_to_empty(flatten_activations(saved))


def plan_sizes(plan: Plan) -> tuple[Any, ...]:
    J = plan.source_mask.shape[1] if plan.source_mask is not None else 0
    mask_width = plan.attention_masks[0].shape[-1] if plan.attention_masks else 0
    sizes = [plan.B, plan.T, plan.D, plan.H, plan.K, plan.F, plan.R, plan.G, plan.A, J, len(plan.group_memory)]
    sizes += [plan.saved_tokens, mask_width, plan.pre_norm, plan.attend_to_current, plan.needs_gradient, plan.rounds_kv]
    rates = (plan.attention_rate, plan.relu_rate, plan.residual_rate)
    return [*sizes, *plan.spans, *plan.kv_group, *plan.group_memory], plan.eps, *rates


def plan_masks(plan: Plan) -> list[Tensor]:
    types = (plan.attention_masks, plan.relu_masks, plan.cross_masks, plan.residual_masks)
    by_layer = [masks[a] if masks else None for a in range(plan.A) for masks in types]
    return contiguous([plan.since_start, plan.source_mask, *by_layer])


def none_to_empty(tensors: list[Tensor | None]) -> list[Tensor]:
    """Replace None by an empty tensor. The other tensors are not copied, because operators write to them."""
    empty = torch.empty(0)
    return [empty if tensor is None else tensor for tensor in tensors]


def contiguous(tensors: list[Tensor | None]) -> list[Tensor]:
    """Return contiguous tensors, empty ones for None, for arguments that operators only read."""
    return [tensor.contiguous() for tensor in none_to_empty(tensors)]


def flatten_activations(saved: Activations) -> list[Tensor | None]:
    layers = [tensor for layer in saved.layers for tensor in flatten_layer(layer)]
    memory = [saved.memory_input, saved.memory_rstd]
    return [saved.y, saved.memory, *saved.layer_outputs[1:-1], *memory, *saved.keys, *saved.values, *layers]


def flatten_layer(layer: LayerActivations) -> list[Tensor | None]:
    cross = [*leaves(layer.cross), *leaves(layer.cross_attention)] if layer.cross is not None else [None] * 7
    attention = [*leaves(layer.attention), *leaves(layer.self_attention), layer.current_kv]
    return [*attention, *cross, *leaves(layer.feed), layer.active]
