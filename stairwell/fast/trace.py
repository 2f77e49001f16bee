"""What a segment of Feedback is made of, as plain data: its shape, its inputs, what forward keeps, what backward gives.

Slots are ordered by distance, nearest first, everywhere: so what a row can see is a prefix, and positions, spans and
dropout masks need no index. Keys lie newest first in P = T + R places: token t's is at T-1-t, and the slots that
token t sees begin at T-t. With `attend_to_current` the token's own key (distance 0) comes before them and lies elsewhere.
Letters: B rows, T tokens, R slots in reach, W = R, or R + 1 with the token itself, D width, H heads, K head width,
F inner width, A layers (those that LayerDrop leaves), G memories, J source tokens. Steps are time first: (T, B, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stairwell.fast.memory import recycled

ROWS = 1024  # of a block of steps: enough for products to run at their full speed


def leaves(tree: Any) -> list[Tensor | None]:
    """The tensors of a dataclass or list of them, in the order of its fields; an option that is off is none."""
    if tree is None or isinstance(tree, Tensor):
        return [tree]
    parts = tree if isinstance(tree, list) else vars(tree).values()
    return [leaf for part in parts for leaf in leaves(part)]


def rebuilt(tree: Any, leaves: Iterator[Tensor | None]) -> Any:
    """The same with other tensors."""
    if tree is None or isinstance(tree, Tensor):
        return next(leaves)
    if isinstance(tree, list):
        return [rebuilt(part, leaves) for part in tree]
    return type(tree)(*(rebuilt(part, leaves) for part in vars(tree).values()))


def mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same with each tensor changed."""
    return rebuilt(tree, (None if leaf is None else change(leaf) for leaf in leaves(tree)))


@dataclass(frozen=True)
class Plan:
    """The shape of a segment and everything that no gradient flows to."""

    B: int
    T: int
    D: int
    H: int
    K: int
    F: int
    R: int
    G: int
    pre: bool
    itself: bool
    eps: float
    reach: tuple[int, ...]  # slots that each layer looks at, of R
    set_of: tuple[int, ...]  # the set of keys and values that each layer reads
    memory_of: tuple[int, ...]  # the memory that each set is made from
    age: Tensor  # (B, T) int64: how many slots a row has filled before each token
    full: bool  # known to have every slot in reach filled at every token
    needs_gradient: bool  # a gradient will be asked for
    attention_kept: tuple[Tensor, ...] = ()  # a layer each: (B, H, T, distances) bool; empty without dropout
    relu_kept: tuple[Tensor, ...] = ()  # (B, T, F) bool
    cross_kept: tuple[Tensor, ...] = ()  # (B, H, T, J) bool
    residual_kept: tuple[Tensor, ...] = ()  # (sublayers, B, T, D) bool
    attention_rate: float = 0.0
    relu_rate: float = 0.0
    residual_rate: float = 0.0
    source_mask: Tensor | None = None  # (B, J) bool

    @property
    def A(self) -> int:
        return len(self.reach)

    @property
    def P(self) -> int:
        return self.T + self.R

    @property
    def steps(self) -> int:
        """Steps that are kept: all for a gradient, else the last one only."""
        return self.T if self.needs_gradient else 1

    @property
    def block(self) -> int:
        """Steps between which weight gradients are taken."""
        return min(self.T, -(-ROWS // self.B))

    def width(self, a: int) -> int:
        """Slots of layer a's attention, itself included (W)."""
        return self.reach[a] + self.itself

    def readers(self, s: int) -> list[int]:
        """The layers that read a set of keys and values."""
        return [a for a in range(self.A) if self.set_of[a] == s]


@dataclass
class Projection:
    """How a memory becomes keys and values, and the old ones that are already there."""

    old: Tensor  # (B, R, 2HK): keys, then values, nearest slot first
    weight: Tensor  # (2HK, D)
    bias: Tensor | None  # (2HK)


@dataclass
class LayerWeights:
    """One layer, folded: with pre-norm the biases hold what the norms add; with post-norm the norms stand apart."""

    query: Tensor  # (HK, D), divided by sqrt(K)
    query_bias: Tensor | None
    out: Tensor  # (D, HK)
    inner: Tensor  # (F, D)
    inner_bias: Tensor
    outer: Tensor  # (D, F)
    outer_bias: Tensor
    ramp: Tensor | None = None  # (H, W): adaptive span
    cross_query: Tensor | None = None
    cross_query_bias: Tensor | None = None
    cross_out: Tensor | None = None
    cross_keys: Tensor | None = None  # (B, H, J, K)
    cross_values: Tensor | None = None
    attention_scale: Tensor | None = None  # (D): norms after the sublayers, post-norm only
    attention_shift: Tensor | None = None
    cross_scale: Tensor | None = None
    cross_shift: Tensor | None = None
    feed_scale: Tensor | None = None
    feed_shift: Tensor | None = None


@dataclass
class Inputs:
    """Everything a gradient can flow to."""

    x: Tensor  # (T, B, D)
    mix: Tensor  # (G, A + 1)
    position: Tensor  # (W, K)
    sets: list[Projection]
    layers: list[LayerWeights]

    @property
    def need_gradient(self) -> bool:
        """Whether a gradient will be asked for."""
        return torch.is_grad_enabled() and any(leaf is not None and leaf.requires_grad for leaf in leaves(self))


def fresh(like: Tensor, *shape: int) -> Tensor:
    """Memory whose contents nobody may rely on; tests fill it with NaN."""
    return recycled(like, *shape)


@dataclass
class SublayerTrace:
    """What goes into and comes out of attention, cross-attention or feed-forward."""

    input: Tensor  # (T, B, D): what it reads: standardized with pre-norm
    normed: Tensor | None  # (T, B, D): with post-norm its sum with x, standardized
    rstd: Tensor  # (T, B): 1 / standard deviation of what was standardized


@dataclass
class Attended:
    query: Tensor  # (T, B, HK)
    weights: Tensor  # (T, B, H, W)
    dropped: Tensor | None  # the same after dropout; none without
    read: Tensor  # (T, B, HK): weighted sum of values

    @property
    def used(self) -> Tensor:
        return self.weights if self.dropped is None else self.dropped


@dataclass
class LayerTrace:
    attention: SublayerTrace
    self_attended: Attended
    own: Tensor | None  # (T, B, 2HK): the token's own key and value
    cross: SublayerTrace | None
    cross_attended: Attended | None
    feed: SublayerTrace
    active: Tensor  # (T, B, F): after ReLU and its dropout


@dataclass
class Trace:
    """What a forward leaves behind."""

    y: Tensor  # (T, B, D)
    memory: Tensor  # (G, T, B, D): what is remembered of each token
    levels: list[Tensor]  # x^0 .. x^A, each (T, B, D); the last is y
    memory_input: Tensor  # (G, T, B, D): the memory as its projections read it
    memory_rstd: Tensor  # (G, T, B)
    keys: list[Tensor]  # a set each: (B, H, P, K)
    values: list[Tensor]
    layers: list[LayerTrace]


def make_trace(plan: Plan, inputs: Inputs) -> Trace:
    B, T, D, HK, steps = plan.B, plan.T, plan.D, plan.H * plan.K, plan.steps
    x = inputs.x

    def sublayer() -> SublayerTrace:
        normed = None if plan.pre else fresh(x, steps, B, D)
        return SublayerTrace(fresh(x, steps, B, D), normed, fresh(x, steps, B))

    def attended(width: int, dropout: bool) -> Attended:
        dropped = fresh(x, steps, B, plan.H, width) if dropout else None
        return Attended(fresh(x, steps, B, HK), fresh(x, steps, B, plan.H, width), dropped, fresh(x, steps, B, HK))

    def layer(a: int) -> LayerTrace:
        keys = inputs.layers[a].cross_keys
        return LayerTrace(
            sublayer(),
            attended(plan.width(a), bool(plan.attention_kept)),
            fresh(x, steps, B, 2 * HK) if plan.itself else None,
            sublayer() if keys is not None else None,
            attended(keys.shape[2], bool(plan.cross_kept)) if keys is not None else None,
            sublayer(),
            fresh(x, steps, B, plan.F),
        )

    y = fresh(x, T, B, D)
    memory = fresh(x, plan.G, T, B, D)
    return Trace(
        y,
        memory,
        [x, *(fresh(x, steps, B, D) for _ in range(plan.A - 1)), y],
        fresh(x, plan.G, steps, B, D),
        fresh(x, plan.G, steps, B),
        [fresh(x, B, plan.H, plan.P, plan.K) for _ in inputs.sets],
        [fresh(x, B, plan.H, plan.P, plan.K) for _ in inputs.sets],
        [layer(a) for a in range(plan.A)],
    )


@dataclass
class LayerGradients:
    """Gradients of what one layer computes, step by step; names as in LayerTrace. Those that earlier steps will ask for
    are kept for all steps, the others for the N steps of a block."""

    attention_out: Tensor  # (N, B, D): of the sublayer's output
    attention_normed: Tensor | None  # (N, B, D): of what its post-norm gave
    query: Tensor  # (N, B, HK)
    scores: Tensor  # (T, B, H, W)
    read: Tensor  # (T, B, HK)
    own: Tensor | None  # (N, B, 2HK)
    cross_out: Tensor | None  # (N, B, D)
    cross_normed: Tensor | None  # (N, B, D)
    cross_query: Tensor | None  # (N, B, HK)
    cross_scores: Tensor | None  # (N, B, H, J)
    cross_read: Tensor | None  # (N, B, HK)
    feed_out: Tensor  # (N, B, D)
    feed_normed: Tensor | None  # (N, B, D)
    inner: Tensor  # (N, B, F): before ReLU


@dataclass
class Gradients:
    """What a backward leaves behind."""

    x: Tensor  # (T, B, D)
    memory: Tensor  # (G, T, B, D): of the memory, through everything that read it
    old: list[Tensor]  # a set each: (B, R, 2HK)
    new: list[Tensor]  # a set each: (T, B, 2HK)
    layers: list[LayerGradients]


def make_gradients(plan: Plan, trace: Trace) -> Gradients:
    HK2 = 2 * plan.H * plan.K
    return Gradients(
        fresh(trace.y, *trace.y.shape),
        fresh(trace.memory, *trace.memory.shape),
        [fresh(trace.y, plan.B, plan.R, HK2) for _ in trace.keys],
        [fresh(trace.y, plan.T, plan.B, HK2) for _ in trace.keys],
        [layer_gradients(layer, plan.block, scores=plan.T, read=plan.T) for layer in trace.layers],
    )


def layer_gradients(trace: LayerTrace, block: int, scores: int, read: int) -> LayerGradients:
    """For the steps of a block; those of scores and of what was read for so many."""

    def of(tensor: Tensor | None, steps: int = block) -> Any:
        return None if tensor is None else fresh(tensor, steps, *tensor.shape[1:])

    at, cross, far = trace.self_attended, trace.cross, trace.cross_attended
    return LayerGradients(
        attention_out=of(trace.attention.input),
        attention_normed=of(trace.attention.normed),
        query=of(at.query),
        scores=of(at.weights, scores),
        read=of(at.read, read),
        own=of(trace.own),
        cross_out=of(cross.input) if cross else None,
        cross_normed=of(cross.normed) if cross else None,
        cross_query=of(far.query) if far else None,
        cross_scores=of(far.weights) if far else None,
        cross_read=of(far.read) if far else None,
        feed_out=of(trace.feed.input),
        feed_normed=of(trace.feed.normed),
        inner=of(trace.active),
    )


def make_totals(inputs: Inputs, gradients: Gradients) -> Inputs:
    """The gradients of all inputs: those that a backward fills, and for the others zeros to add to."""
    zeros = partial(mapped, torch.zeros_like)
    sets = [
        Projection(old, zeros(part.weight), zeros(part.bias))
        for old, part in zip(gradients.old, inputs.sets, strict=True)
    ]
    return Inputs(gradients.x, zeros(inputs.mix), zeros(inputs.position), sets, zeros(inputs.layers))
