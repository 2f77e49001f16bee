"""The fast Feedback engine: the walk of `stairwell.cores.feedback` as one segment, forward and backward by hand.

    q_t^l = W_q (g * std(x) + b) / sqrt(K)  =  W_q' std(x) + b_q'        the norm's affine half and the scale, folded
    k, v  = W_kv (g * std(m) + b)           =  W_kv' std(m) + b_kv'      likewise; std(x) = (x - mean) / sigma

so that inside the segment a pre-norm has no parameters, and autograd takes gradients apart again outside of it.
A layer that LayerDrop skips is not in the segment at all: its level of the mix goes to the layer below.
Letters as in `segment`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stairwell.cores.core import Source
from stairwell.cores.feedback import Feedback, FeedbackState
from stairwell.cores.time import after, ages
from stairwell.devices import on_accelerator
from stairwell.fast import native
from stairwell.fast.engine import FastEngine
from stairwell.fast.feedback_torch import TorchBackend
from stairwell.fast.segment import Backend, Segment
from stairwell.fast.trace import Inputs, LayerWeights, Plan, Projection, leaves
from stairwell.layers import Layer, Masks

SHORTEST = 4  # tokens from which on folding and packing the weights pays


class FeedbackEngine(FastEngine):
    """Feedback's walk with a back end for its two loops: the given one, or the best for what is handed in.

    Calls of fewer than `shortest` tokens go to the reference.
    """

    def __init__(self, backend: Backend | None = None, shortest: int = SHORTEST) -> None:
        self.backend, self.shortest = backend, shortest

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
        if x.shape[1] < self.shortest:
            return core.walk(x, state, start, source, masks)
        L = len(core.layers)
        age = ages(state.count, start, x.shape[1])
        alive = [l for l in range(L) if masks is None or not masks.dropped[l]]
        mix = core.mix(x) if len(alive) == L else core.mix(x) @ levels_kept(alive, L).to(x)
        if alive:
            inputs, plan = prepare(core, x, state, age, alive, mix, source, masks)
            backend = self.backend or (native.NativeBackend() if self.in_native(core, x) else TorchBackend())
            y, memory = Segment.apply(backend, plan, inputs, *leaves(inputs))
        else:
            y, memory = x.clone(), x[:, :, None] * mix.view(1, 1, -1, 1)
        return y, after(state, memory, age, start)


def levels_kept(alive: Sequence[int], layers: int) -> Tensor:
    """Which level of the segment each level of the core is: (L + 1, A + 1), one 1 a row."""
    below = torch.tensor([sum(l < level for l in alive) for level in range(layers + 1)])
    return nn.functional.one_hot(below, len(alive) + 1)


def prepare(
    core: Feedback,
    x: Tensor,
    state: FeedbackState,
    age: Tensor,
    alive: Sequence[int],
    mix: Tensor,
    source: Source | None,
    masks: Masks | None,
) -> tuple[Inputs, Plan]:
    """A call as a segment of the layers that are left, folded."""
    config = core.config
    # Slots that no row has filled are left out where asking costs nothing.
    filled = config.memory if on_accelerator(x) else min(config.memory, max(1, int(age.max())))
    reach = tuple(core.reach(core.layers[l], filled) for l in alive)
    R = max(reach)
    groups = [core.key_source(l) for l in alive]
    names = sorted(set(groups))
    # Nearest slot first, and no more of them than anyone looks at.
    memory = state.memory[:, -R:].flip(1)
    sets = [project(core.layers[projecting], memory[:, :, g]) for projecting, g in names]
    layers = [fold(core.layers[l], R_l + config.attend_to_current, source) for l, R_l in zip(alive, reach, strict=True)]
    positions = core.position.table(R + config.attend_to_current, masks.vectors if masks is not None else None)
    inputs = Inputs(x.transpose(0, 1).contiguous(), mix, positions, sets, layers)

    def chosen(drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(drawn[l] for l in alive) if drawn else ()

    B, T, D = x.shape
    plan = Plan(
        *(B, T, D, config.heads, config.K, config.F, R, config.memories),
        pre=config.norm == "pre",
        itself=config.attend_to_current,
        eps=core.layers[0].attention_norm.eps,
        reach=reach,
        set_of=tuple(names.index(group) for group in groups),
        memory_of=tuple(g for _, g in names),
        age=age,
        full=not on_accelerator(x) and bool((age >= R).all()),
        needs_gradient=inputs.need_gradient,
        attention_kept=chosen(masks.attention) if masks else (),
        relu_kept=chosen(masks.relu) if masks else (),
        cross_kept=chosen(masks.cross) if masks else (),
        residual_kept=chosen(masks.residual) if masks else (),
        attention_rate=core.layers[0].attention.rate,
        relu_rate=core.layers[0].feed_forward.rate,
        residual_rate=core.layers[0].residual_rate,
        source_mask=source.mask if source is not None else None,
    )
    return inputs, plan


def fold_norm(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """weight @ norm(x) + bias as one affine map of the standardized x."""
    added = weight @ norm.bias
    return weight * norm.weight, added if bias is None else added + bias


def project(layer: Layer, memory: Tensor) -> Projection:
    """memory (B, R, D), nearest slot first, through the norm and projections of a layer."""
    weight = torch.cat([layer.attention.key.weight, layer.attention.value.weight])
    if not layer.pre:
        return Projection(nn.functional.linear(memory, weight), weight, None)
    weight, bias = fold_norm(layer.attention_norm, weight)
    normed = nn.functional.layer_norm(memory, memory.shape[-1:], eps=layer.attention_norm.eps)
    return Projection(nn.functional.linear(normed, weight, bias), weight, bias)


def fold(layer: Layer, distances: int, source: Source | None) -> LayerWeights:
    """A layer's parameters as the segment wants them, for so many distances."""
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
