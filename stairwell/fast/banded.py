"""Attention of a run of tokens to what lies shortly before them, computed only where somebody looks.

    score(t, j) = q_t . k_j + q_t . p_{t-j},     first <= t-j <= farthest        q already divided by sqrt(K)

Queries are taken in blocks of b, and each block is multiplied only with the slots that any of its queries sees,
J = W + b - 1 for W visible distances. Scores against positions come from one product q P^T with a column for each
distance. Column c of the table

    table[i, c] = q_i . p_{top-c}  where that distance is seen, -inf elsewhere              (b, J + b - 1)

belongs to slot j of query i where c = b - 1 - i + j, so a view with one column less a row turns distances into slots.
It brings the mask along: no gather, no mask, no score that is thrown away but b - 1 a query.
Letters: B rows, T queries of this call, O slots before the first of them, H heads, K head width, b queries of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stairwell.cores.time import Window, filled
from stairwell.devices import without_autocast
from stairwell.fast.first_order import FirstOrderFunction, once
from stairwell.layers import Layer, LayerMasks, Slots

BLOCK = 32  # queries; more of them waste more scores, fewer make smaller products
FUSED = 256  # tokens in a call from which on joining weights costs less than it saves


def fresh(like: Tensor, *shape: int) -> Tensor:
    """Memory that nobody has written yet, and that nobody reads before."""
    return like.new_empty(shape)


@dataclass(frozen=True)
class Band:
    """Who sees whom: each token its window, as far back as its row goes."""

    heads: int
    window: Window
    age: Tensor | None = None  # (B, T) tokens of its own before each query; none: every slot in the band is filled
    kept: Tensor | None = None  # (B, H, T, distances) bool, what dropout keeps; whoever uses the result scales it


@dataclass(frozen=True)
class Block:
    """Queries begin .. end-1, the slots low .. high-1 that any of them sees, and the distances near .. far between."""

    begin: int
    end: int
    low: int
    high: int
    near: int
    far: int
    top: int  # distance from the last query to the first slot

    @property
    def b(self) -> int:
        return self.end - self.begin

    @property
    def J(self) -> int:
        return self.high - self.low

    @property
    def columns(self) -> slice:
        """The columns of the table whose distance somebody sees."""
        return slice(self.top - self.far, self.top - self.near + 1)

    @property
    def vectors(self) -> slice:
        """The position vectors of these distances, nearest first."""
        return slice(0, self.far - self.near + 1)

    def askew(self, table: Tensor) -> Tensor:
        """A table by distance (BH, b, J + b - 1) as a view by slot (BH, b, J)."""
        BH, b, columns = table.shape
        return table.as_strided((BH, b, self.J), (b * columns, columns - 1, 1), table.storage_offset() + b - 1)


def blocks(T: int, O: int, band: Band) -> Iterator[Block]:
    for begin in range(0, T, BLOCK):
        end = min(begin + BLOCK, T)
        low = max(O + begin - band.window.last, 0)
        top = O + end - 1 - low
        yield Block(begin, end, low, O + end - band.window.first, band.window.first, min(band.window.last, top), top)


class BandedAttention(FirstOrderFunction):
    """new (B, T, 3HK): queries, keys and values of the tokens; olds (B, o, 2HK): keys and values of what lies before
    them, in parts; vectors (distances, K) and ramp (H, distances) from the nearest distance on -> what is read
    (B, T, HK). What backward needs is kept only if there will be one."""

    @staticmethod
    def forward(
        ctx: Any, band: Band, keep: bool, new: Tensor, vectors: Tensor, ramp: Tensor | None, *olds: Tensor
    ) -> Tensor:
        B, T, _ = new.shape
        keys, values = by_heads(band, new, olds)
        O = keys.shape[1] - T
        read = fresh(new, B, T, band.heads, vectors.shape[1])
        kept_for_backward: list[Tensor] = []
        for block in blocks(T, O, band):
            q = block_heads(new.view(B, T, 3, band.heads, -1)[:, :, 0], block)
            table = distance_scores(band, block, q, vectors, ramp)
            near_keys, near_values = keys[:, block.low : block.high], values[:, block.low : block.high]
            scores = torch.baddbmm(block.askew(table), q, near_keys.transpose(1, 2))
            weights = torch.softmax(scores, -1)
            if band.age is not None and band.window.first > 0:  # a token with nothing to look at reads nothing
                nothing = band.window.sees_nothing(band.age[:, None, block.begin : block.end, None])
                weights.view(B, band.heads, block.b, -1).masked_fill_(nothing, 0)
            kept = kept_slots(band, block)
            z = torch.bmm(weights if kept is None else weights * kept, near_values)  # (BH, b, K)
            read[:, block.begin : block.end] = z.view(B, band.heads, block.b, -1).transpose(1, 2)
            if keep:
                kept_for_backward += [q, weights]
        ctx.band, ctx.parts = band, [old.shape[1] for old in olds]
        if keep:
            ctx.save_for_backward(keys, values, vectors, ramp, *kept_for_backward)
        return read.view(B, T, -1)

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        band: Band = ctx.band
        keys, values, vectors, ramp, *saved = ctx.saved_tensors
        B, T, HK = grad.shape
        O = sum(ctx.parts)
        grad = grad.reshape(B, T, band.heads, -1)
        new = fresh(grad, B, T, 3, band.heads, grad.shape[-1])
        both = torch.zeros(2, *keys.shape, dtype=grad.dtype, device=grad.device)  # of keys, of values
        positions = torch.zeros_like(vectors)
        fading = None if ramp is None else torch.zeros_like(ramp)
        for block, q, weights in zip(blocks(T, O, band), saved[::2], saved[1::2], strict=True):
            dz = block_heads(grad, block)
            window = slice(block.low, block.high)
            kept = kept_slots(band, block)
            both[1][:, window] += torch.bmm((weights if kept is None else weights * kept).transpose(1, 2), dz)
            dweights = torch.bmm(dz, values[:, window].transpose(1, 2))
            if kept is not None:
                dweights *= kept
            dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)
            both[0][:, window] += torch.bmm(dscores.transpose(1, 2), q)
            dq = torch.bmm(dscores, keys[:, window])
            table = by_distance(block, dscores)  # (BH b, W)
            here = block.vectors
            dq.view(-1, dq.shape[-1]).addmm_(table, vectors[here].flip(0))
            positions[here] += torch.mm(table.T, q.view(-1, q.shape[-1])).flip(0)
            if ramp is not None and fading is not None:
                summed = table.view(B, band.heads, block.b, -1).sum((0, 2)).flip(-1)
                fading[:, here] += torch.where(ramp[:, here] > 0, summed / ramp[:, here], 0)
            new[:, block.begin : block.end, 0] = dq.view(B, band.heads, block.b, -1).transpose(1, 2)
        both = both.view(2, B, band.heads, O + T, -1).permute(1, 3, 0, 2, 4)  # (B, O + T, 2, H, K)
        new[:, :, 1:] = both[:, O:]
        olds = [part.reshape(B, -1, 2 * HK) for part in both[:, :O].split(ctx.parts, 1)] if ctx.parts else []
        return None, None, new.view(B, T, 3 * HK), positions, fading, *olds


def by_heads(band: Band, new: Tensor, olds: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Keys and values along time, (BH, O + T, K) each: a block's slots are a view of them."""
    B, T, width = new.shape
    H, K = band.heads, width // 3 // band.heads
    total = sum(old.shape[1] for old in olds) + T
    both = fresh(new, 2, B, H, total, K)
    time = both.permute(1, 3, 0, 2, 4)  # (B, O + T, 2, H, K)
    begin = 0
    for old in olds:
        end = begin + old.shape[1]
        time[:, begin:end] = old.view(B, -1, 2, H, K)
        begin = end
    time[:, begin:] = new.view(B, T, 3, H, K)[:, :, 1:]
    keys, values = both.view(2, B * H, total, K)
    return keys, values


def block_heads(x: Tensor, block: Block) -> Tensor:
    """x (B, T, H, K) -> its block's part (BH, b, K)"""
    return x[:, block.begin : block.end].transpose(1, 2).contiguous().view(-1, block.b, x.shape[-1])


def distance_scores(band: Band, block: Block, q: Tensor, vectors: Tensor, ramp: Tensor | None) -> Tensor:
    """The table of the head of this page, with the span's ramp and empty slots in it. (BH, b, J + b - 1)"""
    BH, b, K = q.shape
    table = fresh(q, BH, b, block.J + b - 1)
    columns, here = block.columns, block.vectors
    table[..., : columns.start] = -torch.inf
    table[..., columns.stop :] = -torch.inf
    torch.mm(q.view(-1, K), vectors[here].flip(0).T, out=table.view(BH * b, -1)[:, columns])
    by_row = table.view(-1, band.heads, b, table.shape[-1])[..., columns]  # (B, H, b, W)
    if ramp is not None:
        by_row += ramp[:, here].log().flip(-1)[:, None]
    if band.age is not None:
        distance = torch.arange(block.far, block.near - 1, -1, device=q.device)
        empty = filled(distance, band.age[:, None, block.begin : block.end, None]).logical_not_()
        by_row.masked_fill_(empty, -torch.inf)
    return table


def by_distance(block: Block, dscores: Tensor) -> Tensor:
    """The inverse of `Block.askew`, only the distances that somebody sees. (BH, b, J) -> (BH b, W)"""
    BH, b, J = dscores.shape
    table = dscores.new_zeros(BH, b, J + b - 1)
    block.askew(table).copy_(dscores)
    return table.view(BH * b, -1)[:, block.columns]


def kept_slots(band: Band, block: Block) -> Tensor | None:
    """What dropout keeps of a block, by slot instead of by distance. (BH, b, J)"""
    if band.kept is None:
        return None
    B, H, _, _ = band.kept.shape
    table = torch.zeros(B, H, block.b, block.J + block.b - 1, dtype=torch.bool, device=band.kept.device)
    here = block.vectors
    table[..., block.columns] = band.kept[:, :, block.begin : block.end, here].flip(-1)
    return block.askew(table.view(B * H, block.b, -1))


class BandedLayer:
    """A layer that attends by bands, with its projections fused where that pays: they all read the same normed input.

    Made once a call, so that weights are put together once however often a layer is applied.
    """

    def __init__(self, layer: Layer, source: Slots | None, tokens: int) -> None:
        attention = layer.attention
        self.layer, self.source = layer, source
        self.scale = 1 / math.sqrt(attention.K)
        self.weight: Tensor | None = None  # (3HK, D)
        if tokens >= FUSED:
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
        """Raw memory (B, o, D) -> its keys and values (B, o, 2HK)"""
        normed, attention = self.layer.normed(memory), self.layer.attention
        if self.weight is None:
            return torch.cat([attention.key(normed), attention.value(normed)], -1)
        return F.linear(normed, self.weight[self.weight.shape[0] // 3 :])

    def __call__(
        self, x: Tensor, olds: Sequence[Tensor], vectors: Tensor, ramp: Tensor | None, band: Band, masks: LayerMasks
    ) -> Tensor:
        """x (B, T, D) after `olds`, the keys and values of what lies before it -> the layer's output (B, T, D)"""
        layer = self.layer

        def attend(normed: Tensor) -> Tensor:
            new, keep = self.queries_keys_values(normed), torch.is_grad_enabled()
            own = vectors.dtype  # what autocast made narrower is widened: attention is computed in one type
            with without_autocast(x):
                read = BandedAttention.apply(band, keep, new.to(own), vectors, ramp, *(old.to(own) for old in olds))
            return F.linear(read, scaled(layer.attention.out.weight, band.kept, layer.attention.rate))

        def feed_forward(normed: Tensor) -> Tensor:
            kept, feed = masks.relu, layer.feed_forward
            active = F.relu(feed.inner(normed))
            weight = scaled(feed.out.weight, kept, feed.rate)
            return F.linear(active if kept is None else active * kept, weight, feed.out.bias)

        return layer(x, attend, layer.attend_source(self.source, masks.cross), feed_forward, masks)


def scaled(weight: Tensor, kept: Tensor | None, rate: float) -> Tensor:
    """Dropout's 1 / (1 - rate), on the weight that comes next: there are far fewer weights than what they multiply."""
    return weight if kept is None else weight / (1 - rate)
