"""A segment of Feedback as one autograd function: its inputs, what forward keeps for backward, weight gradients.

    forward    for t = 1..T        a back end's loop (`feedback_torch`, `native`) fills a `Trace`
    backward   for t = T..1        the same back end fills `Gradients` of what each step computed
    weights    dW = dY' X          here, once a block of steps: one large product over all its rows, never inside the
                                   loops; so only a block's dY are kept at a time, not the segment's

What is linear in the parameters is folded before the segment begins, by ordinary autograd (see `feedback.fold`): the
affine half of a pre-norm, the 1 / sqrt(K) of the scores, the softmax of the mix, the projection of old memory. What is
left inside is small: standardize, multiply, attend, rectify. `trace` says what all of it is made of, and its
letters.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, Protocol

import torch
from torch import Tensor

from stairwell.fast.first_order import FirstOrderFunction, once
from stairwell.fast.trace import (
    Gradients,
    Inputs,
    LayerGradients,
    LayerTrace,
    LayerWeights,
    Plan,
    Projection,
    SublayerTrace,
    Trace,
    leaves,
    make_gradients,
    make_totals,
    make_trace,
    mapped,
    rebuilt,
)


class Backend(Protocol):
    """The two loops over time. Each fills every tensor it is handed; backward does a block of steps from its end,
    of which the first is at 0, and is called for the last block first."""

    def forward(self, plan: Plan, inputs: Inputs, trace: Trace) -> None: ...

    def backward(
        self, plan: Plan, inputs: Inputs, trace: Trace, y: Tensor, memory: Tensor, gradients: Gradients, steps: range
    ) -> None: ...


class Segment(FirstOrderFunction):
    """(x, mix, positions, old keys and values, weights) -> y (B, T, D), new memory (B, T, G, D)"""

    @staticmethod
    def forward(ctx: Any, backend: Backend, plan: Plan, form: Inputs, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        """The tensors are the leaves of inputs of the same form."""
        inputs: Inputs = rebuilt(form, iter(tensors))
        trace = make_trace(plan, inputs)
        backend.forward(plan, inputs, trace)
        if plan.needs_gradient:
            ctx.backend, ctx.plan = backend, plan
            save_tree(ctx, [inputs, trace])
        # Copies, batch first: the trace must not hold on to its own outputs.
        return trace.y.transpose(0, 1).contiguous(), trace.memory.permute(2, 1, 0, 3).contiguous()

    @staticmethod
    @once
    def backward(ctx: Any, y: Tensor, memory: Tensor) -> tuple[Any, ...]:
        """From the gradients of both outputs to those of all inputs, `totals`."""
        plan, (inputs, trace) = ctx.plan, saved_tree(ctx)
        gradients = make_gradients(plan, trace)
        y, memory = y.transpose(0, 1).contiguous(), memory.permute(2, 1, 0, 3).contiguous()
        totals = make_totals(inputs, gradients)
        for begin in reversed(range(0, plan.T, plan.block)):
            end = min(begin + plan.block, plan.T)
            ctx.backend.backward(plan, inputs, trace, y, memory, gradients, range(begin, end))
            for a, (layer, gradient) in enumerate(zip(trace.layers, gradients.layers, strict=True)):
                kept, given = slice_steps(layer, begin, end), slice_steps(gradient, 0, end - begin)
                add_layer_gradients(plan, kept, given, totals.layers[a], totals.sets[plan.set_of[a]])
        add_segment_gradients(plan, inputs, trace, gradients, totals)
        return None, None, None, *leaves(totals)


def save_tree(ctx: Any, tree: Any) -> None:
    """Keep tensors for backward: saved, not as an attribute, so that they are freed as soon as it is done with them."""
    ctx.form = rebuilt(tree, repeat(None))
    ctx.save_for_backward(*leaves(tree))


def saved_tree(ctx: Any) -> Any:
    return rebuilt(ctx.form, iter(ctx.saved_tensors))


def slice_steps(tree: Any, begin: int, end: int) -> Any:
    """The steps begin .. end-1 of a tree whose tensors are all time first."""
    return mapped(lambda tensor: tensor[begin:end], tree)


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
    for a, (layer, gradient) in enumerate(zip(trace.layers, gradients.layers, strict=True)):
        add_score_gradients(plan, inputs, a, layer, gradient, totals)


def add_score_gradients(
    plan: Plan, inputs: Inputs, a: int, trace: LayerTrace, gradient: LayerGradients, totals: Inputs
) -> None:
    """What layer a's scores add to the gradients of positions and of its span. weights = softmax(scores + log ramp), so
    a ramp's gradient is its score's, divided by it."""
    query = trace.self_attended.query.unflatten(-1, (plan.H, plan.K))
    add_product(totals.position[: gradient.scores.shape[-1]], None, gradient.scores, query)
    ramp, total = inputs.layers[a].ramp, totals.layers[a].ramp
    if ramp is not None and total is not None:
        total += torch.where(ramp > 0, gradient.scores.sum((0, 1)) / ramp, 0)
