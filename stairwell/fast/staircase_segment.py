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
from dataclasses import dataclass
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
    Plan,
    leaves,
    make_layer_gradients,
    make_totals,
    unflatten,
)

BLOCK_ROWS = 4096  # tokens times batch of a block: fewer mean smaller products and more calls


@dataclass(frozen=True)
class Step:
    """One step. The order of the first nine fields is that of StaircaseStep in csrc/plan.h."""

    offset: int  # of its first token among the tokens of all steps
    tokens: int
    start: int  # index of its first token in the call
    entering: int  # tokens at their first pass: the last ones
    leaving: int  # tokens at their last pass: the first ones
    cache_first: int  # visible cache positions cache_first .. cache_last-1 of [cache in the state | tokens of the call]
    cache_last: int
    pass_kv_first: int  # range of the keys and values from before the call, at their passes
    pass_kv_last: int
    passes: tuple[int, ...]  # of each token, from 0

    @property
    def visible(self) -> int:
        """Number of slots that the last token attends to."""
        return self.cache_last - self.cache_first + self.pass_kv_last - self.pass_kv_first + self.tokens


@dataclass(frozen=True)
class StateCopy:
    """Tokens, among those of all steps, whose layer inputs are copied to positions of pass n in the state."""

    n: int
    tokens: slice
    positions: slice


@dataclass(frozen=True)
class StaircasePlan:
    """All inputs without gradients. The T of `plan` is the number of tokens of all steps."""

    plan: Plan
    T: int
    steps: tuple[Step, ...]
    pass_slots: int  # slots from before the call, of all passes
    cached_before: int  # cache slots from the state
    cached_now: int  # tokens of the call that later chunks of the call attend to in the cache
    caches_input: bool  # the cache contains embeddings (M = 0)
    input_index: tuple[int, ...]  # per layer of the core: index of its input among the layer outputs
    state_copies: tuple[StateCopy, ...]
    state_tokens: tuple[int, ...]  # per pass: tokens of the call that enter the state
    attention_masks: tuple[Tensor, ...]  # per pass and layer: (B, H, T, distances) bool; empty without dropout
    relu_masks: tuple[Tensor, ...]  # (B, T, F) bool

    @property
    def slots(self) -> int:
        return max(step.cache_first + step.visible for step in self.steps)

    @property
    def passes(self) -> int:
        return max(n for step in self.steps for n in step.passes) + 1

    @property
    def saved_tokens(self) -> int:
        """Tokens whose activations are saved: all if gradients are needed, else those of one step."""
        return self.plan.T if self.plan.needs_gradient else max(step.tokens for step in self.steps)

    def sizes(self) -> list[int]:
        """Return all integers in the order of csrc/staircase.cpp."""
        mask_width = self.attention_masks[0].shape[-1] if self.attention_masks else 0
        sizes = [self.T, len(self.steps), self.pass_slots, self.cached_before, self.cached_now, self.slots, mask_width]
        steps = [number for step in self.steps for number in dataclasses.astuple(step)[:9]]
        passes = [n for step in self.steps for n in step.passes]
        return [*sizes, self.passes, int(self.caches_input), *steps, *passes]

    def masks(self) -> list[Tensor | None]:
        depth = self.passes * self.plan.A
        none: list[Tensor | None] = [None] * depth
        return [*(self.attention_masks[:depth] or none), *(self.relu_masks[:depth] or none)]

    def blocks(self) -> list[tuple[int, int, int, int]]:
        """Return the blocks of backward, the last one first: tokens start .. end-1 of steps first .. last-1."""
        blocks, first = [], 0
        for s, step in enumerate(self.steps):
            start, end = self.steps[first].offset, step.offset + step.tokens
            if (end - start) * self.plan.B >= BLOCK_ROWS or s + 1 == len(self.steps):
                blocks.append((start, end, first, s + 1))
                first = s + 1
        return blocks[::-1]


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
