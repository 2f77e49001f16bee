"""The fast engine of Feedback: a call as one segment with hand-written forward and backward.

    q_t^l = W_q (g * std(x) + b) / sqrt(K)  =  W_q' std(x) + b_q'        affine part of the norm and scale are folded
    k, v  = W_kv (g * std(m) + b)           =  W_kv' std(m) + b_kv'      likewise; std(x) = (x - mean) / sigma

A pre-norm then has no parameters inside the segment; autograd computes their gradients outside of it. Layers that
LayerDrop skips are not part of the segment; their weights in the memory mix go to the layer below.
Letters as in `segment_data`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stairwell.cores.core import Source
from stairwell.cores.feedback import Feedback, FeedbackState
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.devices import on_accelerator
from stairwell.fast import native
from stairwell.fast.engine import FastEngine
from stairwell.fast.feedback_torch import TorchBackend
from stairwell.fast.segment import Backend, FeedbackSegment
from stairwell.fast.segment_data import Inputs, KVProjection, LayerWeights, Plan, leaves
from stairwell.layers import Layer, Masks

MIN_TOKENS = 4  # for shorter calls, folding and packing the parameters costs more than it saves


class FeedbackEngine(FastEngine):
    """Run Feedback with the given backend, or with the best one for the device and dtype of the input.

    Calls of fewer than `min_tokens` tokens use the reference forward.
    """

    def __init__(self, backend: Backend | None = None, min_tokens: int = MIN_TOKENS) -> None:
        self.backend, self.min_tokens = backend, min_tokens

    def in_native(self, core: Feedback, like: Tensor) -> bool:
        return not isinstance(self.backend, TorchBackend) and native.supports(like)

    def __call__(
        self,
        core: Feedback,
        x: Tensor,
        state: FeedbackState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, FeedbackState]:
        if x.shape[1] < self.min_tokens:
            return core.reference(x, state, start, source, masks)
        L = len(core.layers)
        since_start = tokens_since_start(state.count, start, x.shape[1])
        active_layers = [l for l in range(L) if masks is None or not masks.dropped[l]]
        mix = core.mix(x) if len(active_layers) == L else core.mix(x) @ merge_skipped_layers(active_layers, L).to(x)
        if active_layers:
            inputs, plan = prepare(core, x, state, since_start, active_layers, mix, source, masks)
            backend = self.backend or (native.NativeBackend() if self.in_native(core, x) else TorchBackend())
            y, memory = FeedbackSegment.apply(backend, plan, inputs, *leaves(inputs))
        else:
            y, memory = x.clone(), x[:, :, None] * mix.view(1, 1, -1, 1)
        return y, state.advance(memory, since_start, start)


def merge_skipped_layers(active_layers: Sequence[int], layers: int) -> Tensor:
    """Return a one-hot matrix (L + 1, A + 1) from layer outputs of the core to layer outputs of the segment."""
    below = torch.tensor([sum(l < output for l in active_layers) for output in range(layers + 1)])
    return nn.functional.one_hot(below, len(active_layers) + 1)


def prepare(
    core: Feedback,
    x: Tensor,
    state: FeedbackState,
    since_start: Tensor,
    active_layers: Sequence[int],
    mix: Tensor,
    source: Source | None,
    masks: Masks | None,
) -> tuple[Inputs, Plan]:
    """Return the folded inputs and the plan of a segment of the active layers."""
    config = core.config
    # Leave out slots that no stream has filled. On an accelerator, reading the counts would wait for the device.
    filled = config.memory if on_accelerator(x) else min(config.memory, max(1, int(since_start.max())))
    spans = tuple(core.attention_span(core.layers[l], filled) for l in active_layers)
    R = max(spans)
    group_of_layer = [core.key_source(l) for l in active_layers]
    groups = sorted(set(group_of_layer))
    memory = state.memory[:, -R:].flip(1)  # nearest slot first
    kv_groups = [project(core.layers[projecting], memory[:, :, g]) for projecting, g in groups]
    widths = [span + config.attend_to_current for span in spans]
    layers = [fold(core.layers[l], width, source) for l, width in zip(active_layers, widths, strict=True)]
    positions = core.position.table(max(widths), masks.position_index if masks is not None else None)
    inputs = Inputs(x.transpose(0, 1).contiguous(), mix, positions, kv_groups, layers)

    def select(layer_masks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(layer_masks[l] for l in active_layers) if layer_masks else ()

    B, T, D = x.shape
    plan = Plan(
        *(B, T, D, config.heads, config.K, config.F, R, config.memories),
        pre_norm=config.norm == "pre",
        attend_to_current=config.attend_to_current,
        eps=core.layers[0].attention_norm.eps,
        spans=spans,
        kv_group=tuple(groups.index(group) for group in group_of_layer),
        group_memory=tuple(g for _, g in groups),
        since_start=since_start,
        full=not on_accelerator(x) and bool((since_start >= R).all()),
        needs_gradient=inputs.need_gradient,
        rounds_kv=core.kv_precision == "bf16",
        attention_masks=select(masks.attention) if masks else (),
        relu_masks=select(masks.relu) if masks else (),
        cross_masks=select(masks.cross) if masks else (),
        residual_masks=select(masks.residual) if masks else (),
        attention_rate=config.attention_dropout,
        relu_rate=config.relu_dropout,
        residual_rate=config.residual_dropout,
        source_mask=source.mask if source is not None else None,
    )
    return inputs, plan


def fold_norm(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the affine map weight @ norm(x) + bias of the standardized x."""
    norm_bias = weight @ norm.bias
    return weight * norm.weight, norm_bias if bias is None else norm_bias + bias


def project(layer: Layer, memory: Tensor) -> KVProjection:
    """Project a memory (B, R, D), nearest slot first, by the norm and the key and value projections of a layer."""
    weight = torch.cat([layer.attention.key.weight, layer.attention.value.weight])
    if not layer.pre:
        return KVProjection(nn.functional.linear(memory, weight), weight, None)
    weight, bias = fold_norm(layer.attention_norm, weight)
    normed = nn.functional.layer_norm(memory, memory.shape[-1:], eps=layer.attention_norm.eps)
    return KVProjection(nn.functional.linear(normed, weight, bias), weight, bias)


def fold(layer: Layer, distances: int, source: Source | None) -> LayerWeights:
    """Return the folded parameters of a layer for the given number of distances."""
    attention, feed = layer.attention, layer.feed_forward
    scale = 1 / math.sqrt(attention.K)
    folded = LayerWeights(
        query=attention.query.weight * scale,
        query_bias=None,
        out=attention.out.weight,
        inner=feed.inner.weight,
        inner_bias=feed.inner.bias,
        outer=feed.out.weight,
        outer_bias=feed.out.bias,
        ramp=layer.ramp(distances),
    )
    if source is not None:
        folded.cross_query, folded.cross_out = layer.cross.query.weight * scale, layer.cross.out.weight
        folded.cross_keys, folded.cross_values = layer.cross.keys_values(source.vectors)
    if layer.pre:
        folded.query, folded.query_bias = fold_norm(layer.attention_norm, folded.query)
        folded.inner, folded.inner_bias = fold_norm(layer.feed_forward_norm, folded.inner, folded.inner_bias)
        if folded.cross_query is not None:
            folded.cross_query, folded.cross_query_bias = fold_norm(layer.cross_norm, folded.cross_query)
        return folded
    folded.attention_scale, folded.attention_shift = layer.attention_norm.weight, layer.attention_norm.bias
    folded.feed_scale, folded.feed_shift = layer.feed_forward_norm.weight, layer.feed_forward_norm.bias
    if source is not None:
        folded.cross_scale, folded.cross_shift = layer.cross_norm.weight, layer.cross_norm.bias
    return folded
