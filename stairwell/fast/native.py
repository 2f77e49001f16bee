"""The loops of Feedback's and the Staircases' segments in C++ (`csrc/`), if the extension was built; otherwise why not.

The operators take a plan as plain lists; an empty tensor stands for an option that is off. Letters as in `segment`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stairwell.fast.trace import Gradients, Inputs, LayerTrace, Plan, Trace, leaves

INSTRUCTION_SETS = ("portable vectors", "AVX2", "AVX-512")
LAYOUT = 7  # of the lists below; the same number stands in csrc/feedback.cpp
POISON = False  # fill the loops' own scratch memory with NaN; for tests


def _load() -> str:
    """Load the extension; returns why it cannot be used, or nothing."""
    found = sorted(Path(__file__).parent.glob("_native*.so"))
    if not found:
        return "the native extension was not built"
    try:
        torch.ops.load_library(str(found[0]))
        same = torch.ops.stairwell.layout() == LAYOUT
    except (OSError, RuntimeError, AttributeError) as error:
        return f"the native extension does not load ({error})"
    return "" if same else "the native extension is of another version; install again to build it"


MISSING = _load()
BEST: int = 0 if MISSING else torch.ops.stairwell.best_instruction_set()
if not MISSING:
    # They give nothing back and only fill what they are handed: there is nothing to say about shapes.
    for _name in (
        "feedback_forward",
        "feedback_backward",
        "staircase_forward",
        "staircase_backward",
        "log_sums",
        "highest",
        "delta_forward",
        "delta_backward",
    ):
        torch.library.register_fake(f"stairwell::{_name}", lambda *_: None)


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
    torch.ops.stairwell.log_sums(scores.flatten(0, -2), sums.flatten(), instruction_set)
    return sums


def highest(scores: Tensor, k: int, instruction_set: int = BEST) -> tuple[Tensor, Tensor]:
    """The k <= V highest of scores (..., V), the highest first, and their symbols, the lower one first where scores are
    equal: (..., k) each. A row with NaN gives any k symbols."""
    scores = scores.contiguous()
    values = scores.new_empty(*scores.shape[:-1], k)
    symbols = torch.empty_like(values, dtype=torch.int64)
    rows = (tensor.flatten(0, -2) for tensor in (scores, values, symbols))
    torch.ops.stairwell.highest(*rows, instruction_set)
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
