"""A call of a Staircase as one autograd function around native loops over its diagonals (`csrc/climb.h`).

    forward    for s = 0..S-1      a diagonal's tokens go through the layers
    backward   for s = S-1..0      gradients of each token's inputs and outputs, at each pass and layer
    weights    dW = dY' X          here, once a block of diagonals: one large product over all its tokens and rows

A token of a diagonal is a step of Feedback's `segment` that sees itself, so folded weights, traces and gradients are
those of `segment`; its tokens are here those of all diagonals, one after another. Each layer has its own
keys and values: what is cached, by slot, and after it what else a diagonal sees. Distances are ordered the farthest
first, so that what a token sees is a suffix.
Letters as in `segment`; T tokens of the call, R of all diagonals together, W distances, L layers, A left by LayerDrop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stairwell.fast import segment
from stairwell.fast import trace as traces
from stairwell.fast.first_order import FirstOrderFunction, once
from stairwell.fast.native import staircase_backward, staircase_forward
from stairwell.fast.trace import Gradients, Inputs, Plan, Trace, fresh, layer_gradients, leaves, make_totals, rebuilt

ROWS = 4096  # tokens times rows of a block: fewer make smaller products and more calls


@dataclass(frozen=True)
class Diagonal:
    """The order of the first nine is that of csrc/plan.h."""

    place: int  # of its first token among those of all diagonals
    t: int  # its tokens
    begin: int  # its first token's place in the call
    on: int  # tokens that step on: its last ones
    off: int  # tokens that step off afterwards: its first ones
    low: int  # cached slots in sight, low .. high-1 of [ cache before the call | the call's tokens ]
    high: int
    old_first: int  # slots before the call at their passes, of all such slots
    old_last: int
    passes: tuple[int, ...]  # of each token, from 0

    @property
    def J(self) -> int:
        """Slots that its last token sees."""
        return self.high - self.low + self.old_last - self.old_first + self.t


@dataclass(frozen=True)
class Leaving:
    """Tokens of all diagonals whose inputs to all layers are remembered at places of pass n."""

    n: int
    tokens: slice
    places: slice


@dataclass(frozen=True)
class Stairs:
    """What no gradient flows to, besides a plan whose T are the tokens of all diagonals."""

    plan: Plan
    T: int
    diagonals: tuple[Diagonal, ...]
    old: int  # slots before the call, of all passes
    cached_before: int  # slots of the cache before the call
    cached_now: int  # tokens of the call that later chunks of it see in the cache
    caches_input: bool  # the cache holds embeddings (M = 0)
    level_of: tuple[int, ...]  # for each layer of the core, which level is its input
    leaving: tuple[Leaving, ...]
    remembered: tuple[int, ...]  # tokens to be remembered of each pass
    attention_kept: tuple[Tensor, ...]  # a pass and layer each: (B, H, T, distances) bool; empty without dropout
    relu_kept: tuple[Tensor, ...]  # (B, T, F) bool

    @property
    def slots(self) -> int:
        return max(d.low + d.J for d in self.diagonals)

    @property
    def steps(self) -> int:
        """Tokens whose traces are kept: all for a gradient, else those of one diagonal."""
        return self.plan.T if self.plan.needs_gradient else max(d.t for d in self.diagonals)

    def numbers(self) -> list[int]:
        passes = max(n for d in self.diagonals for n in d.passes) + 1
        width = self.attention_kept[0].shape[-1] if self.attention_kept else 0
        sizes = [self.T, len(self.diagonals), self.old, self.cached_before, self.cached_now, self.slots, width, passes]
        places = [number for d in self.diagonals for number in dataclasses.astuple(d)[:9]]
        return [*sizes, int(self.caches_input), *places, *(n for d in self.diagonals for n in d.passes)]

    def masks(self) -> list[Tensor | None]:
        depth = (max(n for d in self.diagonals for n in d.passes) + 1) * self.plan.A
        none: list[Tensor | None] = [None] * depth
        return [*(self.attention_kept[:depth] or none), *(self.relu_kept[:depth] or none)]

    def blocks(self) -> list[tuple[int, int, int, int]]:
        """Tokens begin .. end-1 of diagonals first .. last-1, for which weight gradients are taken; the last first."""
        found, first = [], 0
        for s, d in enumerate(self.diagonals):
            begin, end = self.diagonals[first].place, d.place + d.t
            if (end - begin) * self.plan.B >= ROWS or s + 1 == len(self.diagonals):
                found.append((begin, end, first, s + 1))
                first = s + 1
        return found[::-1]


def make_trace(stairs: Stairs, inputs: Inputs) -> Trace:
    plan, x = stairs.plan, inputs.x
    B, D, A = plan.B, plan.D, plan.A
    layers = traces.make_trace(dataclasses.replace(plan, T=stairs.steps, needs_gradient=True), inputs).layers
    croppable = [fresh(x, B, plan.H, stairs.slots, plan.K) for _ in range(2 * A)]
    return Trace(
        y=fresh(x, stairs.T, B, D),
        memory=x.new_empty(0),
        levels=[fresh(x, plan.T, B, D) for _ in range(A + 1)],
        memory_input=fresh(x, stairs.cached_now, B, D),
        memory_rstd=fresh(x, stairs.cached_now, B),
        keys=croppable[:A],
        values=croppable[A:],
        layers=layers,
    )


class Climb(FirstOrderFunction):
    """-> y (B, T, D), and for each pass what is remembered of it (B, tokens, L, D)"""

    @staticmethod
    def forward(ctx: Any, stairs: Stairs, form: list[Any], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """The tensors are the leaves of keys and values of what came before the call (B, slots, 2HK), a layer each, and
        of inputs, which have the same form."""
        old, inputs = rebuilt(form, iter(tensors))
        trace = make_trace(stairs, inputs)
        staircase_forward(stairs.plan, inputs, trace, stairs, old)
        ctx.set_materialize_grads(False)
        if stairs.plan.needs_gradient:
            ctx.stairs = stairs
            segment.save_tree(ctx, [old, inputs, trace])
        return (trace.y.transpose(0, 1).contiguous(), *remember(stairs, trace.levels))

    @staticmethod
    @once
    def backward(ctx: Any, y: Tensor | None, *remembered: Tensor | None) -> tuple[Any, ...]:
        stairs, plan = ctx.stairs, ctx.stairs.plan
        old, inputs, trace = segment.saved_tree(ctx)
        # On its way back a diagonal's own keys and values cover what is cached later: not in what may be read again.
        trace.keys, trace.values = ([part.clone() for part in croppable] for croppable in (trace.keys, trace.values))
        y = torch.zeros_like(trace.y) if y is None else y.transpose(0, 1).contiguous()
        blocks = stairs.blocks()
        gradients = make_gradients(stairs, inputs, trace, max(end - begin for begin, end, *_ in blocks))
        old_gradients = [torch.zeros_like(part) for part in old]
        croppable = [torch.zeros_like(part) for part in (*trace.keys, *trace.values)]
        later = fresh(trace.y, max(d.t for d in stairs.diagonals), plan.B, plan.D)
        owed = owed_by_state(stairs, trace, remembered)
        totals = make_totals(inputs, gradients)
        for begin, end, *diagonals in blocks:
            staircase_backward(
                *(plan, inputs, trace, stairs, old, y, gradients, [*old_gradients, *croppable, *owed, later]),
                *(begin, end, *diagonals),
            )
            for a, (layer, gradient) in enumerate(zip(trace.layers, gradients.layers, strict=True)):
                kept, given = segment.slice_steps(layer, begin, end), segment.slice_steps(gradient, 0, end - begin)
                segment.add_layer_gradients(plan, kept, given, totals.layers[a], totals.sets[a])
                segment.add_score_gradients(plan, inputs, a, kept, given, totals)
        for project, new in zip(totals.sets, gradients.new, strict=True):
            segment.add_product(project.weight, project.bias, new, trace.memory_input)
        return None, None, *leaves([old_gradients, totals])


def remember(stairs: Stairs, levels: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of all layers at the newest tokens of each pass. (B, tokens, L, D)"""
    B, D = stairs.plan.B, stairs.plan.D
    remembered = [fresh(levels[0], B, tokens, len(stairs.level_of), D) for tokens in stairs.remembered]
    for part in stairs.leaving:
        for l, level in enumerate(stairs.level_of):
            remembered[part.n][:, part.places, l] = levels[level][part.tokens].transpose(0, 1)
    return remembered


def owed_by_state(stairs: Stairs, trace: Trace, remembered: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradient of each level through what is remembered of it; none where nobody asks."""
    if all(part is None for part in remembered):
        return [None for _ in trace.levels]
    owed = [torch.zeros_like(level) for level in trace.levels]
    for part in stairs.leaving:
        if (given := remembered[part.n]) is not None:
            for l, level in enumerate(stairs.level_of):
                owed[level][part.tokens] += given[:, part.places, l].transpose(0, 1)
    return list(owed)


def make_gradients(stairs: Stairs, inputs: Inputs, trace: Trace, tokens: int) -> Gradients:
    """Those of layers for the tokens of a block only."""
    plan, width = stairs.plan, 2 * stairs.plan.H * stairs.plan.K
    return Gradients(
        x=torch.zeros_like(inputs.x),
        memory=trace.memory,
        old=[torch.zeros_like(part.old) for part in inputs.sets],
        new=[fresh(trace.y, stairs.cached_now, plan.B, width) for _ in inputs.sets],
        # The loops need no more of what was read than a token's.
        layers=[layer_gradients(layer, tokens, scores=tokens, read=0) for layer in trace.layers],
    )
