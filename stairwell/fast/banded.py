"""Banded attention: attention of a segment to a window of recent slots, computed only inside the band.

    score(t, j) = q_t . k_j + q_t . p_{t-j},     first <= t-j <= farthest        q already divided by sqrt(K)

Queries are processed in blocks of b. Each block is multiplied only with the J = W + b - 1 slots that are visible to any
of its queries, for W visible distances. Position scores come from one product q P^T with one column per distance.
Column c of the table

    table[i, c] = q_i . p_{top-c}  if that distance is visible, else -inf              (b, J + b - 1)

is the score of slot j for query i with c = b - 1 - i + j. So a view whose rows are one column shorter converts
distances to slots, without an index, and it includes the mask. Only b - 1 scores per query are wasted.
Letters: B batch, T queries of this call, O slots before the first query, H heads, K head width, b queries of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stairwell.cores.sliding_window import Window, filled
from stairwell.devices import without_autocast
from stairwell.fast.first_order import FirstOrderFunction, first_order_only
from stairwell.layers import Layer, LayerMasks, Slots

BLOCK_QUERIES = 32  # more queries waste more scores, fewer make smaller products
FUSE_MIN_TOKENS = 256  # tokens per call above which fusing the projections pays


def empty(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialized tensor; tests fill it with NaN."""
    return like.new_empty(shape)


@dataclass(frozen=True)
class Band:
    """Which slots are visible: those within the window and within the token's own stream."""

    heads: int
    window: Window
    since_start: Tensor | None = None  # (B, T); None: every slot in the band is filled
    dropout_mask: Tensor | None = None  # (B, H, T, distances) bool; the result is not scaled


@dataclass(frozen=True)
class Block:
    """Queries start .. end-1, the slots low .. high-1 visible to any of them, and their distances near .. far."""

    start: int
    end: int
    low: int
    high: int
    near: int
    far: int
    top: int  # distance from the last query to the first slot

    @property
    def b(self) -> int:
        return self.end - self.start

    @property
    def J(self) -> int:
        return self.high - self.low

    @property
    def columns(self) -> slice:
        """Columns of the table with visible distances."""
        return slice(self.top - self.far, self.top - self.near + 1)

    @property
    def distances(self) -> slice:
        """Visible distances as a slice of the position embeddings, nearest first."""
        return slice(0, self.far - self.near + 1)

    def by_slot(self, table: Tensor) -> Tensor:
        """Return a table by distance (BH, b, J + b - 1) as a view by slot (BH, b, J)."""
        BH, b, columns = table.shape
        return table.as_strided((BH, b, self.J), (b * columns, columns - 1, 1), table.storage_offset() + b - 1)


def blocks(T: int, O: int, band: Band) -> Iterator[Block]:
    for start in range(0, T, BLOCK_QUERIES):
        end = min(start + BLOCK_QUERIES, T)
        low = max(O + start - band.window.last, 0)
        top = O + end - 1 - low
        yield Block(start, end, low, O + end - band.window.first, band.window.first, min(band.window.last, top), top)


class BandedAttention(FirstOrderFunction):
    """Banded attention with a hand-written backward: -> z (B, T, HK).

    new (B, T, 3HK): queries, keys and values of the tokens. contexts (B, o, 2HK): consecutive parts of the keys and
    values before them. positions (distances, K) and ramp (H, distances), nearest distance first."""

    @staticmethod
    def forward(
        ctx: Any,
        band: Band,
        needs_gradient: bool,
        new: Tensor,
        positions: Tensor,
        ramp: Tensor | None,
        *contexts: Tensor,
    ) -> Tensor:
        B, T, _ = new.shape
        keys, values = concat_keys_values(band, new, contexts)
        O = keys.shape[1] - T
        z = empty(new, B, T, band.heads, positions.shape[1])
        saved: list[Tensor] = []
        for block in blocks(T, O, band):
            q = block_heads(new.view(B, T, 3, band.heads, -1)[:, :, 0], block)
            table = distance_scores(band, block, q, positions, ramp)
            block_keys, block_values = keys[:, block.low : block.high], values[:, block.low : block.high]
            scores = torch.baddbmm(block.by_slot(table), q, block_keys.transpose(1, 2))
            weights = torch.softmax(scores, -1)
            if band.since_start is not None and band.window.first > 0:  # a token may have nothing to attend to
                nothing = band.window.is_empty(band.since_start[:, None, block.start : block.end, None])
                weights.view(B, band.heads, block.b, -1).masked_fill_(nothing, 0)
            mask = dropout_mask_by_slot(band, block)
            block_z = torch.bmm(weights if mask is None else weights * mask, block_values)  # (BH, b, K)
            z[:, block.start : block.end] = block_z.view(B, band.heads, block.b, -1).transpose(1, 2)
            if needs_gradient:
                saved += [q, weights]
        ctx.band, ctx.context_sizes = band, [context.shape[1] for context in contexts]
        if needs_gradient:
            ctx.save_for_backward(keys, values, positions, ramp, *saved)
        return z.view(B, T, -1)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, d_z: Tensor) -> tuple[Tensor | None, ...]:
        band: Band = ctx.band
        keys, values, positions, ramp, *saved = ctx.saved_tensors
        B, T, HK = d_z.shape
        O = sum(ctx.context_sizes)
        d_z = d_z.reshape(B, T, band.heads, -1)
        d_new = empty(d_z, B, T, 3, band.heads, d_z.shape[-1])
        d_kv = torch.zeros(2, *keys.shape, dtype=d_z.dtype, device=d_z.device)
        d_positions = torch.zeros_like(positions)
        d_ramp = None if ramp is None else torch.zeros_like(ramp)
        for block, q, weights in zip(blocks(T, O, band), saved[::2], saved[1::2], strict=True):
            block_d_z = block_heads(d_z, block)
            slots = slice(block.low, block.high)
            mask = dropout_mask_by_slot(band, block)
            d_kv[1][:, slots] += torch.bmm((weights if mask is None else weights * mask).transpose(1, 2), block_d_z)
            d_weights = torch.bmm(block_d_z, values[:, slots].transpose(1, 2))
            if mask is not None:
                d_weights *= mask
            d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            d_kv[0][:, slots] += torch.bmm(d_scores.transpose(1, 2), q)
            d_q = torch.bmm(d_scores, keys[:, slots])
            d_table = by_distance(block, d_scores)  # (BH b, W)
            distances = block.distances
            d_q.view(-1, d_q.shape[-1]).addmm_(d_table, positions[distances].flip(0))
            d_positions[distances] += torch.mm(d_table.T, q.view(-1, q.shape[-1])).flip(0)
            if ramp is not None and d_ramp is not None:
                summed = d_table.view(B, band.heads, block.b, -1).sum((0, 2)).flip(-1)
                d_ramp[:, distances] += torch.where(ramp[:, distances] > 0, summed / ramp[:, distances], 0)
            d_new[:, block.start : block.end, 0] = d_q.view(B, band.heads, block.b, -1).transpose(1, 2)
        d_kv = d_kv.view(2, B, band.heads, O + T, -1).permute(1, 3, 0, 2, 4)  # (B, O + T, 2, H, K)
        d_new[:, :, 1:] = d_kv[:, O:]
        sizes = ctx.context_sizes
        d_contexts = [part.reshape(B, -1, 2 * HK) for part in d_kv[:, :O].split(sizes, 1)] if sizes else []
        return None, None, d_new.view(B, T, 3 * HK), d_positions, d_ramp, *d_contexts


def concat_keys_values(band: Band, new: Tensor, contexts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return keys and values along time, (BH, O + T, K) each, so that a block's slots are a view of them."""
    B, T, width = new.shape
    H, K = band.heads, width // 3 // band.heads
    total = sum(context.shape[1] for context in contexts) + T
    keys_values = empty(new, 2, B, H, total, K)
    by_time = keys_values.permute(1, 3, 0, 2, 4)  # (B, O + T, 2, H, K)
    start = 0
    for context in contexts:
        end = start + context.shape[1]
        by_time[:, start:end] = context.view(B, -1, 2, H, K)
        start = end
    by_time[:, start:] = new.view(B, T, 3, H, K)[:, :, 1:]
    keys, values = keys_values.view(2, B * H, total, K)
    return keys, values


def block_heads(x: Tensor, block: Block) -> Tensor:
    """Return a block's part (BH, b, K) of x (B, T, H, K)."""
    return x[:, block.start : block.end].transpose(1, 2).contiguous().view(-1, block.b, x.shape[-1])


def distance_scores(band: Band, block: Block, q: Tensor, positions: Tensor, ramp: Tensor | None) -> Tensor:
    """Return the table of the module docstring, with the adaptive span and empty slots. (BH, b, J + b - 1)"""
    BH, b, K = q.shape
    table = empty(q, BH, b, block.J + b - 1)
    columns, distances = block.columns, block.distances
    table[..., : columns.start] = -torch.inf
    table[..., columns.stop :] = -torch.inf
    torch.mm(q.view(-1, K), positions[distances].flip(0).T, out=table.view(BH * b, -1)[:, columns])
    visible = table.view(-1, band.heads, b, table.shape[-1])[..., columns]  # (B, H, b, W)
    if ramp is not None:
        visible += ramp[:, distances].log().flip(-1)[:, None]
    if band.since_start is not None:
        distance = torch.arange(block.far, block.near - 1, -1, device=q.device)
        empty_slots = filled(distance, band.since_start[:, None, block.start : block.end, None]).logical_not_()
        visible.masked_fill_(empty_slots, -torch.inf)
    return table


def by_distance(block: Block, d_scores: Tensor) -> Tensor:
    """Return visible distances of scores by slot: the inverse of `Block.by_slot`. (BH, b, J) -> (BH b, W)"""
    BH, b, J = d_scores.shape
    table = d_scores.new_zeros(BH, b, J + b - 1)
    block.by_slot(table).copy_(d_scores)
    return table.view(BH * b, -1)[:, block.columns]


def dropout_mask_by_slot(band: Band, block: Block) -> Tensor | None:
    """Return a block's dropout mask by slot instead of by distance. (BH, b, J)"""
    mask = band.dropout_mask
    if mask is None:
        return None
    B, H, _, _ = mask.shape
    table = torch.zeros(B, H, block.b, block.J + block.b - 1, dtype=torch.bool, device=mask.device)
    table[..., block.columns] = mask[:, :, block.start : block.end, block.distances].flip(-1)
    return block.by_slot(table.view(B * H, block.b, -1))


class BandedLayer:
    """A layer with banded attention. For long calls the projections of queries, keys and values are fused.

    Create one per call, so that the weights are fused once even if the layer is applied several times.
    """

    def __init__(self, layer: Layer, source: Slots | None, tokens: int) -> None:
        attention = layer.attention
        self.layer, self.source = layer, source
        self.scale = 1 / math.sqrt(attention.K)
        self.weight: Tensor | None = None  # (3HK, D)
        if tokens >= FUSE_MIN_TOKENS:
            weights = [attention.query.weight * self.scale, attention.key.weight, attention.value.weight]
            self.weight = torch.cat(weights)

    def queries_keys_values(self, normed: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, 3HK), queries divided by sqrt(K)"""
        attention = self.layer.attention
        if self.weight is None:
            queries = attention.query(normed) * self.scale
            return torch.cat([queries, attention.key(normed), attention.value(normed)], -1)
        return F.linear(normed, self.weight)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Return keys and values (B, o, 2HK) of raw memory (B, o, D)."""
        normed, attention = self.layer.normed(memory), self.layer.attention
        if self.weight is None:
            return torch.cat([attention.key(normed), attention.value(normed)], -1)
        return F.linear(normed, self.weight[self.weight.shape[0] // 3 :])

    def __call__(
        self,
        x: Tensor,
        contexts: Sequence[Tensor],
        positions: Tensor,
        ramp: Tensor | None,
        band: Band,
        masks: LayerMasks,
    ) -> Tensor:
        """Apply the layer to x (B, T, D), given the keys and values before it, in parts."""
        layer = self.layer

        def attend(normed: Tensor) -> Tensor:
            new, dtype = self.queries_keys_values(normed), positions.dtype
            # Autocast makes projections narrower; attention itself runs in the parameters' dtype.
            with without_autocast(x):
                z = BandedAttention.apply(
                    *(band, torch.is_grad_enabled(), new.to(dtype), positions, ramp),
                    *(context.to(dtype) for context in contexts),
                )
            return F.linear(
                z, scale_weight(layer.attention.out.weight, band.dropout_mask, layer.config.attention_dropout)
            )

        def feed_forward(normed: Tensor) -> Tensor:
            mask, feed = masks.relu, layer.feed_forward
            active = F.relu(feed.inner(normed))
            weight = scale_weight(feed.out.weight, mask, feed.config.relu_dropout)
            return F.linear(active if mask is None else active * mask, weight, feed.out.bias)

        return layer(x, attend, layer.attend_source(self.source, masks.cross), feed_forward, masks)


def scale_weight(weight: Tensor, mask: Tensor | None, rate: float) -> Tensor:
    """Apply dropout's 1 / (1 - rate) to the next weight, which is smaller than the activations."""
    return weight if mask is None else weight / (1 - rate)
