"""A segment of Feedback as one autograd function: its inputs, what forward keeps for backward, weight gradients.

    forward    for t = 1..T        a back end's loop (`feedback_torch`, `native`) fills a `Trace`
    backward   for t = T..1        the same back end fills `Gradients` of what each step computed
    weights    dW = dY' X          here, once a block of steps: one large product over all its rows, never inside the
                                   loops; so only a block's dY are kept at a time, not the segment's

What is linear in the parameters is folded before the segment begins, by ordinary autograd (see `feedback.fold`): the
affine half of a pre-norm, the 1 / sqrt(K) of the scores, the softmax of the mix, the projection of old memory. What is
left inside is small: standardise, multiply, attend, rectify.

Slots are ordered by distance, nearest first, everywhere: so what a row can see is a prefix, and positions, spans and
dropout masks need no index. Keys lie newest first in P = T + R places: token t's is at T-1-t, and the slots that
token t sees begin at T-t. With `sees_itself` the token's own key (distance 0) comes before them and lies elsewhere.
Letters: B rows, T tokens, R slots in reach, W = R, or R + 1 with the token itself, D width, H heads, K head width,
F inner width, A layers (those that LayerDrop leaves), G memories, J source tokens. Steps are time first: (T, B, ...).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from stairwell.fast.memory import recycled
from stairwell.fast.once import Once, once

ROWS = 1024  # of a block of steps: enough for products to run at their full speed


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

    def tensors(self) -> list[Tensor | None]:
        return [self.x, self.mix, self.position, *_values(self.sets), *_values(self.layers)]

    @staticmethod
    def from_tensors(plan: Plan, tensors: Sequence[Any]) -> Inputs:
        rest = iter(tensors[3:])
        sets = [_take(Projection, rest) for _ in plan.memory_of]
        return Inputs(tensors[0], tensors[1], tensors[2], sets, [_take(LayerWeights, rest) for _ in plan.reach])


def zeros(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Something to add to, for each of them."""
    return [torch.zeros_like(tensor) if tensor is not None else None for tensor in tensors]


def _values(inputs: Sequence[Any]) -> Iterator[Tensor | None]:
    for part in inputs:
        yield from (getattr(part, field.name) for field in dataclasses.fields(part))


def _take(kind: Any, values: Iterator[Any]) -> Any:
    return kind(*(next(values) for _ in dataclasses.fields(kind)))


def fresh(like: Tensor, *shape: int) -> Tensor:
    """Memory whose contents nobody may rely on; tests fill it with NaN."""
    return recycled(like, *shape)


@dataclass
class SublayerTrace:
    """What goes into and comes out of attention, cross-attention or feed-forward."""

    input: Tensor  # (T, B, D): what it reads: standardised with pre-norm
    normed: Tensor | None  # (T, B, D): with post-norm its sum with x, standardised
    rstd: Tensor  # (T, B): 1 / standard deviation of what was standardised


@dataclass
class Attended:
    query: Tensor  # (T, B, HK)
    weights: Tensor  # (T, B, H, W)
    used: Tensor  # the same after dropout; the same tensor without
    read: Tensor  # (T, B, HK): weighted sum of values


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
        weights = fresh(x, steps, B, plan.H, width)
        used = fresh(x, steps, B, plan.H, width) if dropout else weights
        return Attended(fresh(x, steps, B, HK), weights, used, fresh(x, steps, B, HK))

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
    def whole(tensor: Tensor) -> Tensor:
        return fresh(tensor, *tensor.shape)

    def block(tensor: Tensor) -> Tensor:
        return fresh(tensor, plan.block, *tensor.shape[1:])

    def optional(tensor: Tensor | None) -> Tensor | None:
        return block(tensor) if tensor is not None else None

    def layer(trace: LayerTrace) -> LayerGradients:
        cross, at, far = trace.cross, trace.self_attended, trace.cross_attended
        return LayerGradients(
            attention_out=block(trace.attention.input),
            attention_normed=optional(trace.attention.normed),
            query=block(at.query),
            scores=whole(at.weights),
            read=whole(at.read),
            own=optional(trace.own),
            cross_out=optional(cross.input) if cross else None,
            cross_normed=optional(cross.normed) if cross else None,
            cross_query=optional(far.query) if far else None,
            cross_scores=optional(far.weights) if far else None,
            cross_read=optional(far.read) if far else None,
            feed_out=block(trace.feed.input),
            feed_normed=optional(trace.feed.normed),
            inner=block(trace.active),
        )

    HK2 = 2 * plan.H * plan.K
    return Gradients(
        whole(trace.y),
        whole(trace.memory),
        [fresh(trace.y, plan.B, plan.R, HK2) for _ in trace.keys],
        [fresh(trace.y, plan.T, plan.B, HK2) for _ in trace.keys],
        [layer(layer_trace) for layer_trace in trace.layers],
    )


class Backend(Protocol):
    """The two loops over time. Each fills every tensor it is handed; backward does the steps end-1 .. begin, of whose
    block the first is at 0, and is called for the last block first."""

    def forward(self, plan: Plan, inputs: Inputs, trace: Trace) -> None: ...

    def backward(
        self,
        plan: Plan,
        inputs: Inputs,
        trace: Trace,
        y: Tensor,
        memory: Tensor,
        gradients: Gradients,
        begin: int,
        end: int,
    ) -> None: ...


class Segment(Once):
    """(x, mix, positions, old keys and values, weights) -> y (B, T, D), new memory (B, T, G, D)"""

    @staticmethod
    def forward(ctx: Any, backend: Backend, plan: Plan, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = Inputs.from_tensors(plan, tensors)
        trace = make_trace(plan, inputs)
        backend.forward(plan, inputs, trace)
        if plan.needs_gradient:
            # Saved as tensors, not as an attribute: then they are freed as soon as backward is done with them.
            saved: list[Tensor | None] = [*tensors]
            places = {id(tensor): i for i, tensor in enumerate(tensors)}
            ctx.backend, ctx.plan, ctx.trace = backend, plan, tensors_to_places(trace, saved, places)
            ctx.save_for_backward(*saved)
        # Copies, batch first: the trace must not hold on to its own outputs.
        return trace.y.transpose(0, 1).contiguous(), trace.memory.permute(2, 1, 0, 3).contiguous()

    @staticmethod
    @once
    def backward(ctx: Any, y: Tensor, memory: Tensor) -> tuple[Any, ...]:
        """From the gradients of both outputs to those of all inputs, `totals`."""
        plan, saved = ctx.plan, ctx.saved_tensors
        inputs, trace = Inputs.from_tensors(plan, saved), places_to_tensors(ctx.trace, saved)
        gradients = make_gradients(plan, trace)
        y, memory = y.transpose(0, 1).contiguous(), memory.permute(2, 1, 0, 3).contiguous()
        sets = [
            Projection(old, *zeros([part.weight, part.bias]))
            for old, part in zip(gradients.old, inputs.sets, strict=True)
        ]
        layers = [LayerWeights(*zeros(_values([part]))) for part in inputs.layers]
        totals = Inputs(gradients.x, torch.zeros_like(inputs.mix), torch.zeros_like(inputs.position), sets, layers)
        for begin in reversed(range(0, plan.T, plan.block)):
            end = min(begin + plan.block, plan.T)
            ctx.backend.backward(plan, inputs, trace, y, memory, gradients, begin, end)
            for a, (layer, gradient) in enumerate(zip(trace.layers, gradients.layers, strict=True)):
                kept, given = slice_steps(layer, begin, end), slice_steps(gradient, 0, end - begin)
                add_layer_gradients(plan, kept, given, totals.layers[a], totals.sets[plan.set_of[a]])
        add_segment_gradients(plan, inputs, trace, gradients, totals)
        return None, None, *totals.tensors()


def tensors_to_places(tree: Any, tensors: list[Tensor | None], places: dict[int, int]) -> Any:
    """The tree with each tensor's place in the list instead of the tensor; those not yet there are put at its end."""
    if not isinstance(tree, Tensor):
        return _rebuild(tree, lambda part: tensors_to_places(part, tensors, places))
    if id(tree) not in places:
        places[id(tree)] = len(tensors)
        tensors.append(tree)
    return places[id(tree)]


def places_to_tensors(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """The tree with its tensors."""
    return tensors[tree] if isinstance(tree, int) else _rebuild(tree, lambda part: places_to_tensors(part, tensors))


def _rebuild(tree: Any, change: Callable[[Any], Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, list):
        return [change(part) for part in tree]
    return type(tree)(*(change(getattr(tree, field.name)) for field in dataclasses.fields(tree)))


def slice_steps(tree: Any, begin: int, end: int) -> Any:
    """The steps begin .. end-1 of a tree whose tensors are all time first."""
    return tree[begin:end] if isinstance(tree, Tensor) else _rebuild(tree, lambda part: slice_steps(part, begin, end))


def rows(tensor: Tensor) -> Tensor:
    """All steps and rows as one: (T, B, n) -> (T * B, n)"""
    return tensor.reshape(-1, tensor.shape[-1])


def add_product(weight: Tensor | None, bias: Tensor | None, outputs: Tensor | None, inputs: Tensor) -> None:
    """dW += dY' X over all rows, and the bias's gradient if there is one."""
    assert weight is not None and outputs is not None
    weight.addmm_(rows(outputs).T, rows(inputs))
    if bias is not None:
        bias += rows(outputs).sum(0)


def add_layer_gradients(
    plan: Plan, trace: LayerTrace, gradient: LayerGradients, totals: LayerWeights, project: Projection
) -> None:
    """What a block of steps adds to the gradients of a layer's weights."""
    add_product(totals.query, totals.query_bias, gradient.query, trace.attention.input)
    add_product(totals.out, None, gradient.attention_out, trace.self_attended.read)
    add_product(totals.inner, totals.inner_bias, gradient.inner, trace.feed.input)
    add_product(totals.outer, totals.outer_bias, gradient.feed_out, trace.active)
    add_norm_gradients(totals.attention_scale, totals.attention_shift, gradient.attention_normed, trace.attention)
    add_norm_gradients(totals.feed_scale, totals.feed_shift, gradient.feed_normed, trace.feed)
    if plan.itself:
        add_product(project.weight, project.bias, gradient.own, trace.attention.input)
    if trace.cross is not None:
        add_cross_gradients(plan, trace, gradient, totals)


def add_norm_gradients(
    scale: Tensor | None, shift: Tensor | None, given: Tensor | None, sublayer: SublayerTrace
) -> None:
    if given is None:
        return
    assert scale is not None and shift is not None and sublayer.normed is not None
    scale += (rows(given) * rows(sublayer.normed)).sum(0)
    shift += rows(given).sum(0)


def add_cross_gradients(plan: Plan, trace: LayerTrace, gradient: LayerGradients, totals: LayerWeights) -> None:
    """The source's keys and values are read at every step: their gradients are one product too."""
    sublayer, attended = trace.cross, trace.cross_attended
    assert sublayer is not None and attended is not None
    assert gradient.cross_scores is not None and gradient.cross_read is not None
    assert totals.cross_keys is not None and totals.cross_values is not None
    add_product(totals.cross_query, totals.cross_query_bias, gradient.cross_query, sublayer.input)
    add_product(totals.cross_out, None, gradient.cross_out, attended.read)
    add_norm_gradients(totals.cross_scale, totals.cross_shift, gradient.cross_normed, sublayer)

    def heads(tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (plan.H, plan.K))

    totals.cross_keys += torch.einsum("tbhj,tbhk->bhjk", gradient.cross_scores, heads(attended.query))
    totals.cross_values += torch.einsum("tbhj,tbhk->bhjk", attended.used, heads(gradient.cross_read))


def add_segment_gradients(plan: Plan, inputs: Inputs, trace: Trace, gradients: Gradients, totals: Inputs) -> None:
    """What is added from all steps at once, since their gradients are kept anyway."""
    for project, new, g in zip(totals.sets, gradients.new, plan.memory_of, strict=True):
        add_product(project.weight, project.bias, new, trace.memory_input[g])
    mix = [torch.dot(given.view(-1), level.view(-1)) for given in gradients.memory for level in trace.levels]
    totals.mix += torch.stack(mix).view_as(totals.mix)
    for part, layer, gradient, given in zip(inputs.layers, trace.layers, gradients.layers, totals.layers, strict=True):
        query = layer.self_attended.query.unflatten(-1, (plan.H, plan.K))
        add_product(totals.position[: gradient.scores.shape[-1]], None, gradient.scores, query)
        if part.ramp is not None:
            given.ramp = ramp_gradient(part.ramp, gradient.scores)


def ramp_gradient(ramp: Tensor, scores: Tensor) -> Tensor:
    """weights = softmax(scores + log ramp), so a ramp's gradient is its score's, divided by it. (H, W)"""
    total = scores.sum((0, 1))
    return torch.where(ramp > 0, total / ramp, 0)
