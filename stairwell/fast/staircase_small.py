"""Staircases with short diagonals: a call made ready for `staircase_segment`, and the state after it.

    q = W_q (g * std(x) + b) / sqrt(K)  =  W_q' std(x) + b_q'        the norm's affine half and the scale, folded

Folding and the projection of what came before the call are left to autograd. Letters as in `staircase_segment`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stairwell.fast.banded import ramp
from stairwell.fast.staircase_diagonals import Diagonals
from stairwell.fast.staircase_segment import Diagonal, LayerWeights, Leaving, Parts, Plan, Segment
from stairwell.layers import Layer


class SmallSteps(Diagonals):
    """One call."""

    def climb(self) -> tuple[Tensor, Any]:
        vectors = self.learned_distances()
        layers = [fold(self.core.layers[l], vectors.shape[0]) for l in self.alive]
        olds = [self.old_inputs(s) for s in range(self.E)]
        cache = self.old_cache()
        parts = Parts(
            x=self.x.transpose(0, 1).contiguous(),
            position=vectors.flip(0),
            old=self.project([part for parts in olds for part in parts], layers),
            cache=torch.stack([self.keys_values(cache, weights) for weights in layers]),
            layers=layers,
        )
        plan = self.plan([sum(part.shape[1] for part in parts) for parts in olds], cache.shape[1], parts)
        y, *remembered = Segment.apply(plan, *parts.flat())
        return y, self.state_after(remembered, [y if self.core.config.M > 0 else self.x])

    def project(self, olds: list[Tensor], layers: list[LayerWeights]) -> Tensor:
        """Layer inputs (B, o, L, D) in parts -> keys and values of those that a layer sees (A, 2, slots, B, HK)"""
        memory = torch.cat(olds, 1) if olds else self.state.passes[0][:, :0]
        return torch.stack(
            [self.keys_values(memory[:, :, l], weights) for l, weights in zip(self.alive, layers, strict=True)]
        )

    def keys_values(self, memory: Tensor, weights: LayerWeights) -> Tensor:
        """(B, slots, D) -> (2, slots, B, HK)"""
        memory = memory.transpose(0, 1)
        if not memory.shape[0]:
            return memory.new_zeros(2, 0, memory.shape[1], weights.qkv.shape[1])
        if weights.qkv_bias is None:
            return memory @ weights.qkv[1:].transpose(1, 2)[:, None]
        norm = self.core.layers[0].attention_norm
        memory = torch.nn.functional.layer_norm(memory, memory.shape[-1:], eps=norm.eps)
        return memory @ weights.qkv[1:].transpose(1, 2)[:, None] + weights.qkv_bias[1:, None, None]

    def plan(self, olds: list[int], cached_before: int, parts: Parts) -> Plan:
        core, config, masks = self.core, self.core.config, self.masks
        B, T, D = self.x.shape
        remembered = tuple(min(old.shape[1], T) for old in self.state.passes)
        layer = core.layers[0]
        return Plan(
            diagonals=tuple(self.diagonals(olds, cached_before, remembered)),
            **{"B": B, "T": T, "D": D, "H": config.heads, "K": config.K, "F": config.F, "A": len(self.alive)},
            pre=layer.pre,
            eps=layer.attention_norm.eps,
            keep=torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts.flat()),
            level_of=tuple(sum(k < l for k in self.alive) for l in range(self.L)),
            remembered=remembered,
            cached_before=cached_before,
            cached_now=self.chunks[-1][0] if self.sees_cache else 0,
            caches_input=config.M == 0,
            attention_factor=1 / (1 - layer.attention.rate) if masks else 1.0,
            relu_factor=1 / (1 - layer.feed_forward.rate) if masks else 1.0,
        )

    def diagonals(self, olds: list[int], cached_before: int, remembered: tuple[int, ...]) -> list[Diagonal]:
        diagonals, place, old = [], 0, 0
        for s in range(self.steps):
            on = self.on(s)
            begin, end = self.chunks[on[0]][0], self.chunks[on[-1]][1]
            low, high = (cached_before + slot for slot in self.cached(s))
            known = old + (olds[s] if s < self.E else 0)
            kept = [self.kept(s, l) for l in self.alive]
            diagonals.append(
                Diagonal(
                    place=place,
                    t=end - begin,
                    begin=begin,
                    on=self.size(s) if s < len(self.chunks) else 0,
                    off=self.size(s - self.E + 1) if s >= self.E - 1 else 0,
                    cached=(low, high),
                    old=(old, known),
                    hidden=self.hidden(begin, end, high - low + known - old),
                    leaving=tuple(self.leaving(s, begin, remembered)),
                    attention_kept=tuple(m.attention for m in kept if m.attention is not None),
                    relu_kept=tuple(m.relu.transpose(0, 1) for m in kept if m.relu is not None),
                )
            )
            place, old = place + end - begin, known
        return diagonals

    def size(self, c: int) -> int:
        return self.chunks[c][1] - self.chunks[c][0]

    def hidden(self, begin: int, end: int, before: int) -> Tensor | None:
        """Which of the slots, those `before` the call's tokens included, lie before a row's start; the farthest first."""
        if self.full(begin, before):
            return None
        distance = torch.arange(before + end - begin - 1, -1, -1, device=self.x.device)
        return distance > self.age[:, begin:end].T[:, :, None, None]

    def leaving(self, s: int, begin: int, remembered: tuple[int, ...]) -> list[Leaving]:
        """What the state will hold of diagonal s: of each pass the newest tokens."""
        found = []
        for c in self.on(s):
            n = s - c
            oldest = self.x.shape[1] - remembered[n]
            first, last = max(self.chunks[c][0], oldest), self.chunks[c][1]
            if first < last:
                found.append(Leaving(n, first - begin, last - begin, first - oldest))
        return found


def fold(layer: Layer, distances: int) -> LayerWeights:
    """A layer's parameters as the segment wants them."""
    attention, feed = layer.attention, layer.feed_forward
    scale = 1 / math.sqrt(attention.K)
    qkv = torch.stack([attention.query.weight * scale, attention.key.weight, attention.value.weight])
    fading = ramp(layer, 0, distances)
    inner, inner_bias = feed.inner.weight, feed.inner.bias
    qkv_bias = None
    if layer.pre:
        qkv, qkv_bias = qkv * layer.attention_norm.weight, qkv @ layer.attention_norm.bias
        inner, inner_bias = inner * layer.feed_forward_norm.weight, inner @ layer.feed_forward_norm.bias + inner_bias
    return LayerWeights(
        qkv=qkv,
        qkv_bias=qkv_bias,
        out=attention.out.weight,
        inner=inner,
        inner_bias=inner_bias,
        outer=feed.out.weight,
        outer_bias=feed.out.bias,
        ramp=fading.flip(-1) if fading is not None else None,
        attention_scale=None if layer.pre else layer.attention_norm.weight,
        attention_shift=None if layer.pre else layer.attention_norm.bias,
        feed_scale=None if layer.pre else layer.feed_forward_norm.weight,
        feed_shift=None if layer.pre else layer.feed_forward_norm.bias,
    )
