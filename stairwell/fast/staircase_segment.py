"""A call of a Staircase as one autograd function around native loops over its steps (`csrc/staircase.h`).

    forward      for s = 0..S-1      the tokens of step s go through the layers
    backward     for s = S-1..0      gradients of the activations of each token, at each pass and layer
    parameters   dW = dY' X          here, once per block of steps: one large product over all tokens of the block

A token of a step is computed like a token of a Feedback `segment` with `attend_to_current`, so the structures are those
of `segment_data`; the tokens of all steps are concatenated. Each layer has its own keys and values: first the cached
positions, then the others of the current step. Distances are ordered from the farthest to the nearest, so what a token
attends to is a suffix.
Letters as in `segment_data`; T tokens of the call, S steps, W distances, L layers, A layers that LayerDrop keeps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stairwell.fast import segment, segment_data
from stairwell.fast.buffer_pool import pooled_empty
from stairwell.fast.first_order import FirstOrderFunction, first_order_only
from stairwell.fast.native import staircase_backward, staircase_forward
from stairwell.fast.segment_data import (
    Activations,
    Gradients,
    Inputs,
    leaves,
    make_layer_gradients,
    make_totals,
    unflatten,
)
from stairwell.fast.staircase_plan import StaircasePlan


def make_activations(staircase: StaircasePlan, inputs: Inputs) -> Activations:
    """Return uninitialized activations."""
    plan, x = staircase.plan, inputs.x
    B, D, A = plan.B, plan.D, plan.A
    layer_plan = dataclasses.replace(plan, T=staircase.saved_tokens, needs_gradient=True)
    return Activations(
        y=pooled_empty(x, staircase.T, B, D),
        memory=x.new_empty(0),
        layer_outputs=[pooled_empty(x, plan.T, B, D) for _ in range(A + 1)],
        memory_input=pooled_empty(x, staircase.cached_now, B, D),
        memory_rstd=pooled_empty(x, staircase.cached_now, B),
        keys=[pooled_empty(x, B, plan.H, staircase.slots, plan.K) for _ in range(A)],
        values=[pooled_empty(x, B, plan.H, staircase.slots, plan.K) for _ in range(A)],
        layers=segment_data.make_activations(layer_plan, inputs).layers,
    )


class StaircaseSegment(FirstOrderFunction):
    """Leaves of pass_kv and inputs -> y (B, T, D), and per pass the new layer inputs of the state (B, tokens, L, D).

    pass_kv (B, slots, 2HK), per layer: keys and values of tokens from before the call, at their passes.
    """

    @staticmethod
    def forward(
        ctx: Any, staircase: StaircasePlan, structure: list[Any], *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        pass_kv, inputs = unflatten(structure, iter(tensors))
        saved = make_activations(staircase, inputs)
        staircase_forward(staircase, inputs, saved, pass_kv)
        ctx.set_materialize_grads(False)
        if staircase.plan.needs_gradient:
            ctx.staircase = staircase
            segment.save_tree(ctx, [pass_kv, inputs, saved])
        return (saved.y.transpose(0, 1).contiguous(), *new_state_inputs(staircase, saved.layer_outputs))

    @staticmethod
    @first_order_only
    def backward(ctx: Any, d_y: Tensor | None, *d_state: Tensor | None) -> tuple[Any, ...]:
        staircase, plan = ctx.staircase, ctx.staircase.plan
        pass_kv, inputs, saved = segment.saved_tree(ctx)
        # Backward overwrites cached keys and values with those of earlier steps. Saved tensors must stay unmodified.
        saved.keys, saved.values = ([part.clone() for part in parts] for parts in (saved.keys, saved.values))
        d_y = torch.zeros_like(saved.y) if d_y is None else d_y.transpose(0, 1).contiguous()
        blocks = staircase.blocks()
        gradients = make_gradients(staircase, inputs, saved, max(end - start for start, end, *_ in blocks))
        d_pass_kv = [torch.zeros_like(part) for part in pass_kv]
        d_keys_values = [torch.zeros_like(part) for part in (*saved.keys, *saved.values)]
        d_next = pooled_empty(saved.y, max(step.tokens for step in staircase.steps), plan.B, plan.D)
        staircase_gradients = [*d_pass_kv, *d_keys_values, *grad_from_state(staircase, saved, d_state), d_next]
        totals = make_totals(inputs, gradients)
        for block in blocks:
            staircase_backward(staircase, inputs, saved, pass_kv, d_y, gradients, staircase_gradients, *block)
            start, end, *_ = block
            for a, (layer, gradient) in enumerate(zip(saved.layers, gradients.layers, strict=True)):
                layer = segment.slice_tokens(layer, start, end)
                gradient = segment.slice_tokens(gradient, 0, end - start)
                segment.add_layer_gradients(plan, layer, gradient, totals.layers[a], totals.kv_groups[a])
                segment.add_score_gradients(plan, inputs, a, layer, gradient, totals)
        for project, new_kv in zip(totals.kv_groups, gradients.new_kv, strict=True):
            segment.add_product(project.weight, project.bias, new_kv, saved.memory_input)
        return None, None, *leaves([d_pass_kv, totals])


def new_state_inputs(staircase: StaircasePlan, layer_outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs of all layers at the newest tokens of each pass. (B, tokens, L, D)"""
    B, D, L = staircase.plan.B, staircase.plan.D, len(staircase.input_index)
    inputs = [pooled_empty(layer_outputs[0], B, tokens, L, D) for tokens in staircase.state_tokens]
    for copy in staircase.state_copies:
        for l, index in enumerate(staircase.input_index):
            inputs[copy.n][:, copy.positions, l] = layer_outputs[index][copy.tokens].transpose(0, 1)
    return inputs


def grad_from_state(
    staircase: StaircasePlan, saved: Activations, d_state: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradient of each layer output through the state, or None if the state has no gradient."""
    if all(part is None for part in d_state):
        return [None for _ in saved.layer_outputs]
    gradients = [torch.zeros_like(output) for output in saved.layer_outputs]
    for copy in staircase.state_copies:
        if (d_inputs := d_state[copy.n]) is not None:
            for l, index in enumerate(staircase.input_index):
                gradients[index][copy.tokens] += d_inputs[:, copy.positions, l].transpose(0, 1)
    return list(gradients)


def make_gradients(staircase: StaircasePlan, inputs: Inputs, saved: Activations, tokens: int) -> Gradients:
    """Return the gradients of a call; those of layers are uninitialized and for the tokens of a block."""
    plan, width = staircase.plan, 2 * staircase.plan.H * staircase.plan.K
    return Gradients(
        x=torch.zeros_like(inputs.x),
        memory=saved.memory,
        state_kv=[torch.zeros_like(group.state_kv) for group in inputs.kv_groups],
        new_kv=[pooled_empty(saved.y, staircase.cached_now, plan.B, width) for _ in inputs.kv_groups],
        # The native loops only need the gradient of z for the current token.
        layers=[make_layer_gradients(layer, tokens, scores=tokens, z=0) for layer in saved.layers],
    )
