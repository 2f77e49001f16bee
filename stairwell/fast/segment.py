"""A Feedback segment as one autograd function.

    forward      for t = 1..T        a backend's loop (`feedback_torch`, `native`) fills the activations
    backward     for t = T..1        the same backend fills the gradients of the activations
    parameters   dW = dY' X          here, once per block of tokens: one large product over all tokens of the block. So
                                     dY is stored for one block at a time, not for the whole segment

Everything that is linear in the parameters is folded before the segment, by ordinary autograd (see `feedback.fold`):
the affine part of a pre-norm, the 1 / sqrt(K) of the scores, the softmax of the mix, the projection of the memory in
the state. The structures and letters are those of `segment_data`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from typing import Any, Protocol

import torch
from torch import Tensor

from stairwell.fast.first_order import FirstOrderFunction, first_order_only
from stairwell.fast.segment_data import (
    Activations,
    Gradients,
    Inputs,
    KVProjection,
    LayerActivations,
    LayerGradients,
    LayerWeights,
    Plan,
    SublayerActivations,
    leaves,
    make_activations,
    make_gradients,
    make_totals,
    tree_map,
    unflatten,
)


class Backend(Protocol):
    """The two loops over time. `forward` fills all activations. `backward` fills the gradients of a block of tokens,
    from its last token to its first; it is called for the last block first."""

    def forward(self, plan: Plan, inputs: Inputs, saved: Activations) -> None: ...

    def backward(
        self,
        plan: Plan,
        inputs: Inputs,
        saved: Activations,
        d_y: Tensor,
        d_memory: Tensor,
        gradients: Gradients,
        tokens: range,
    ) -> None: ...


class FeedbackSegment(FirstOrderFunction):
    """Leaves of the inputs -> y (B, T, D), new memory (B, T, G, D)."""

    @staticmethod
    def forward(
        ctx: Any, backend: Backend, plan: Plan, structure: Inputs, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        inputs: Inputs = unflatten(structure, iter(tensors))
        saved = make_activations(plan, inputs)
        backend.forward(plan, inputs, saved)
        if plan.needs_gradient:
            ctx.backend, ctx.plan = backend, plan
            # The saved keys and values include those of the state.
            groups = [replace(group, state_kv=group.state_kv.new_empty(0)) for group in inputs.kv_groups]
            inputs = replace(inputs, kv_groups=groups)
            save_tree(ctx, [inputs, saved])
        # Copies: saved tensors must not include the function's outputs.
        return saved.y.transpose(0, 1).contiguous(), saved.memory.permute(2, 1, 0, 3).contiguous()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, d_y: Tensor, d_memory: Tensor) -> tuple[Any, ...]:
        plan, (inputs, saved) = ctx.plan, saved_tree(ctx)
        gradients = make_gradients(plan, inputs, saved)
        d_y, d_memory = d_y.transpose(0, 1).contiguous(), d_memory.permute(2, 1, 0, 3).contiguous()
        totals = make_totals(inputs, gradients)
        for start in reversed(range(0, plan.T, plan.block)):
            end = min(start + plan.block, plan.T)
            ctx.backend.backward(plan, inputs, saved, d_y, d_memory, gradients, range(start, end))
            for a, (layer, gradient) in enumerate(zip(saved.layers, gradients.layers, strict=True)):
                layer, gradient = slice_tokens(layer, start, end), slice_tokens(gradient, 0, end - start)
                add_layer_gradients(plan, layer, gradient, totals.layers[a], totals.kv_groups[plan.kv_group[a]])
        add_segment_gradients(plan, inputs, saved, gradients, totals)
        return None, None, None, *leaves(totals)


def save_tree(ctx: Any, tree: Any) -> None:
    """Save a tree of tensors for backward, so that autograd frees them as soon as possible."""
    ctx.structure = unflatten(tree, repeat(None))
    ctx.save_for_backward(*leaves(tree))


def saved_tree(ctx: Any) -> Any:
    return unflatten(ctx.structure, iter(ctx.saved_tensors))


def slice_tokens(tree: Any, start: int, end: int) -> Any:
    """Return tokens start .. end-1 of a tree of time-first tensors."""
    return tree_map(lambda tensor: tensor[start:end], tree)


def flatten_tokens(tensor: Tensor) -> Tensor:
    """(T, B, n) -> (T * B, n)"""
    return tensor.reshape(-1, tensor.shape[-1])


def add_product(weight: Tensor | None, bias: Tensor | None, outputs: Tensor | None, inputs: Tensor) -> None:
    """Add dY' X to the gradient of a weight, and the sum of dY to that of its bias, if any."""
    assert weight is not None and outputs is not None
    weight.addmm_(flatten_tokens(outputs).T, flatten_tokens(inputs))
    if bias is not None:
        bias += flatten_tokens(outputs).sum(0)


def add_layer_gradients(
    plan: Plan, saved: LayerActivations, gradient: LayerGradients, totals: LayerWeights, project: KVProjection
) -> None:
    """Add a block's contribution to the gradients of a layer's parameters."""
    add_product(totals.query, totals.query_bias, gradient.query, saved.attention.input)
    add_product(totals.out, None, gradient.attention_out, saved.self_attention.z)
    add_product(totals.inner, totals.inner_bias, gradient.inner, saved.feed.input)
    add_product(totals.outer, totals.outer_bias, gradient.feed_out, saved.active)
    add_norm_gradients(totals.attention_scale, totals.attention_shift, gradient.attention_normed, saved.attention)
    add_norm_gradients(totals.feed_scale, totals.feed_shift, gradient.feed_normed, saved.feed)
    if plan.attend_to_current:
        add_product(project.weight, project.bias, gradient.current_kv, saved.attention.input)
    if saved.cross is not None:
        add_cross_gradients(plan, saved, gradient, totals)


def add_norm_gradients(
    scale: Tensor | None, shift: Tensor | None, d_out: Tensor | None, sublayer: SublayerActivations
) -> None:
    if d_out is None:
        return
    assert scale is not None and shift is not None and sublayer.normed is not None
    scale += (flatten_tokens(d_out) * flatten_tokens(sublayer.normed)).sum(0)
    shift += flatten_tokens(d_out).sum(0)


def add_cross_gradients(plan: Plan, saved: LayerActivations, gradient: LayerGradients, totals: LayerWeights) -> None:
    """Add a block's contribution to the gradients of cross-attention and of the source's keys and values."""
    sublayer, attention = saved.cross, saved.cross_attention
    assert sublayer is not None and attention is not None
    assert gradient.cross_scores is not None and gradient.cross_z is not None
    assert totals.cross_keys is not None and totals.cross_values is not None
    add_product(totals.cross_query, totals.cross_query_bias, gradient.cross_query, sublayer.input)
    add_product(totals.cross_out, None, gradient.cross_out, attention.z)
    add_norm_gradients(totals.cross_scale, totals.cross_shift, gradient.cross_normed, sublayer)

    def heads(tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (plan.H, plan.K))

    totals.cross_keys += torch.einsum("tbhj,tbhk->bhjk", gradient.cross_scores, heads(attention.query))
    totals.cross_values += torch.einsum("tbhj,tbhk->bhjk", attention.used_weights, heads(gradient.cross_z))


def add_segment_gradients(plan: Plan, inputs: Inputs, saved: Activations, gradients: Gradients, totals: Inputs) -> None:
    """Add the parameter gradients that are computed from all tokens at once."""
    for project, new_kv, g in zip(totals.kv_groups, gradients.new_kv, plan.group_memory, strict=True):
        add_product(project.weight, project.bias, new_kv, saved.memory_input[g])
    mix = [
        torch.dot(d_memory.view(-1), output.view(-1)) for d_memory in gradients.memory for output in saved.layer_outputs
    ]
    totals.mix += torch.stack(mix).view_as(totals.mix)
    for a, (layer, gradient) in enumerate(zip(saved.layers, gradients.layers, strict=True)):
        add_score_gradients(plan, inputs, a, layer, gradient, totals)


def add_score_gradients(
    plan: Plan, inputs: Inputs, a: int, saved: LayerActivations, gradient: LayerGradients, totals: Inputs
) -> None:
    """Add the gradients of layer a's position embeddings and adaptive span. weights = softmax(scores + log ramp), so
    the gradient of the ramp is that of the score divided by the ramp."""
    query = saved.self_attention.query.unflatten(-1, (plan.H, plan.K))
    add_product(totals.position[: gradient.scores.shape[-1]], None, gradient.scores, query)
    ramp, total = inputs.layers[a].ramp, totals.layers[a].ramp
    if ramp is not None and total is not None:
        total += torch.where(ramp > 0, gradient.scores.sum((0, 1)) / ramp, 0)
