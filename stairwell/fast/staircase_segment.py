"""A call of a Staircase as one autograd function, for diagonals so small that PyTorch's calls cost more than their work.

    forward    for s = 0..S-1      each diagonal goes through the layers: few calls, into memory that is made once
    backward   for s = S-1..0      gradients of each diagonal's inputs and outputs, by hand
    weights    dW = dY' X          at the end, one large product over all diagonals

On a diagonal token i sees every slot before it and itself, so with J slots, the t tokens at their end, scores are

    score(i, j) = q_i . k_j + q_i . p_{J-t+i-j},     j <= J-t+i

Scores against positions come from one product q P^T with a column for each distance, the farthest first; a view with
one column less a row turns its distances into slots (see `banded`). Time comes first everywhere, (t, B, ...), so that
slots of a head lie one stride apart and nothing is copied to be multiplied.
What is linear in the parameters is folded before (see `staircase_small`): a pre-norm only standardises here.
Letters: B rows, T tokens of the call, D width, H heads, K head width, F inner width, L layers, A of them left by
LayerDrop, t tokens and J slots of a diagonal, R = tokens of all diagonals together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SLOW_SOFTMAX = 16  # slots: below, PyTorch's softmax along the last dimension takes many times as long as its parts


def fresh(like: Tensor, *shape: int) -> Tensor:
    """Memory that nobody has written yet, and that nobody reads before."""
    return like.new_empty(shape)


@dataclass(frozen=True)
class Leaving:
    """Tokens of a diagonal, first .. last-1, whose inputs to all layers are remembered at a place of a pass."""

    n: int  # the pass, from 0
    first: int
    last: int
    place: int


@dataclass(frozen=True)
class Diagonal:
    place: int  # of its first token among those of all diagonals
    t: int
    begin: int  # its first token's place in the call
    on: int  # tokens that step on: its last ones
    off: int  # tokens that step off afterwards: its first ones
    cached: tuple[int, int]  # cached slots in sight, of [ cache before the call | the call's tokens ]
    old: tuple[int, int]  # slots before the call at their passes, of all such slots
    hidden: Tensor | None  # (t, B, 1, J) bool: what lies before a row's start, the farthest slot first; none: nothing
    leaving: tuple[Leaving, ...]
    attention_kept: tuple[Tensor, ...]  # a layer each: (B, H, t, distances) bool, what dropout keeps; or empty
    relu_kept: tuple[Tensor, ...]  # (t, B, F) bool

    @property
    def J(self) -> int:
        return self.cached[1] - self.cached[0] + self.old[1] - self.old[0] + self.t

    @property
    def sees_others(self) -> bool:
        return self.t < self.J


@dataclass(frozen=True)
class Plan:
    """The shape of a call and everything that no gradient flows to."""

    diagonals: tuple[Diagonal, ...]
    B: int
    T: int
    D: int
    H: int
    K: int
    F: int
    A: int
    pre: bool
    eps: float
    keep: bool  # a gradient will be asked for
    level_of: tuple[int, ...]  # for each layer of the core, which level of the segment is its input
    remembered: tuple[int, ...]  # tokens to be remembered of each pass
    cached_before: int  # slots of the cache before the call
    cached_now: int  # tokens of the call that later chunks of it see in the cache
    caches_input: bool  # the cache holds embeddings (M = 0)
    attention_factor: float  # 1 / (1 - rate)
    relu_factor: float

    @property
    def R(self) -> int:
        return sum(d.t for d in self.diagonals)

    @property
    def tokens(self) -> int:
        """Tokens whose traces are kept: all for a gradient, else those of one diagonal."""
        return self.R if self.keep else max(d.t for d in self.diagonals)

    def at(self, d: Diagonal) -> slice:
        return slice(d.place, d.place + d.t) if self.keep else slice(0, d.t)


@dataclass
class LayerWeights:
    """One layer, folded: with pre-norm the biases hold what the norms add; with post-norm the norms stand apart."""

    qkv: Tensor  # (3, HK, D): queries (divided by sqrt(K)), keys, values
    qkv_bias: Tensor | None  # (3, HK)
    out: Tensor  # (D, HK)
    inner: Tensor  # (F, D)
    inner_bias: Tensor
    outer: Tensor  # (D, F)
    outer_bias: Tensor
    ramp: Tensor | None  # (H, distances), the farthest first
    attention_scale: Tensor | None  # (D)
    attention_shift: Tensor | None
    feed_scale: Tensor | None
    feed_shift: Tensor | None


@dataclass
class Parts:
    """Everything a gradient can flow to."""

    x: Tensor  # (T, B, D)
    position: Tensor  # (distances, K), the farthest first
    old: Tensor  # (A, 2, slots, B, HK): keys and values of what came before the call, by diagonal
    cache: Tensor  # (A, 2, slots, B, HK): of the cache before the call
    layers: list[LayerWeights]

    def flat(self) -> list[Tensor | None]:
        names = [field.name for field in dataclasses.fields(LayerWeights)]
        return [self.x, self.position, self.old, self.cache, *(getattr(w, name) for w in self.layers for name in names)]

    @staticmethod
    def unflat(tensors: Sequence[Any]) -> Parts:
        many = len(dataclasses.fields(LayerWeights))
        layers = [LayerWeights(*tensors[i : i + many]) for i in range(4, len(tensors), many)]
        return Parts(*tensors[:4], layers)


@dataclass
class Trace:
    """What a forward leaves behind. Tokens are those of all diagonals."""

    levels: Tensor  # (A + 1, R, B, D): the input of each layer, and the output
    middle: Tensor  # (A, R, B, D): after attention
    sums: Tensor  # (A, 2, R, B, D): post-norm: what the norms standardise
    read: Tensor  # (A, R, B, HK)
    active: Tensor  # (A, R, B, F)
    y: Tensor  # (T, B, D)
    room: Tensor  # (A, 2, slots, B, HK): cached keys and values, and after them what a diagonal sees besides
    qkv: list[Tensor]  # a diagonal and layer each: (3, t * B, HK)
    weights: list[Tensor]  # (BH, t, J)

    def flat(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)[:7]] + self.qkv + self.weights

    @staticmethod
    def unflat(tensors: Sequence[Any]) -> Trace:
        half = (len(tensors) - 7) // 2
        return Trace(*tensors[:7], list(tensors[7 : 7 + half]), list(tensors[7 + half :]))


def make_trace(plan: Plan, x: Tensor) -> Trace:
    A, R, B, D, HK = plan.A, plan.tokens, plan.B, plan.D, plan.H * plan.K
    slots = max((d.cached[1] + d.J - (d.cached[1] - d.cached[0]) for d in plan.diagonals if d.sees_others), default=0)
    return Trace(
        fresh(x, A + 1, R, B, D),
        fresh(x, A, R, B, D),
        fresh(x, A, 2, 0 if plan.pre else R, B, D),
        fresh(x, A, R, B, HK),
        fresh(x, A, R, B, plan.F),
        fresh(x, plan.T, B, D),
        fresh(x, A, 2, slots, B, HK),
        [],
        [],
    )


class Segment(torch.autograd.Function):
    """-> y (B, T, D), and for each pass what is remembered of it (B, tokens, L, D)"""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        parts = Parts.unflat(tensors)
        trace = make_trace(plan, parts.x)
        remembered = Forward(plan, parts, trace).run()
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.inputs = plan, len(tensors)
        if plan.keep:
            ctx.save_for_backward(*tensors, *trace.flat())
        return (trace.y.transpose(0, 1).contiguous(), *remembered)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, y: Tensor | None, *remembered: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        parts, trace = Parts.unflat(saved[: ctx.inputs]), Trace.unflat(saved[ctx.inputs :])
        return None, *Backward(ctx.plan, parts, trace, y, remembered).run().flat()


class Walk:
    """What both directions share."""

    def __init__(self, plan: Plan, parts: Parts, trace: Trace) -> None:
        self.plan, self.parts, self.trace = plan, parts, trace
        self.tables: dict[tuple[int, int], Tensor] = {}

    def table(self, d: Diagonal, filled: float) -> tuple[Tensor, Tensor]:
        """Scores by distance, (t * BH, J), and the same as a view by slot, (BH, t, J). Distances that nobody sees hold
        `filled`; the same memory serves all diagonals of a shape."""
        t, J, BH = d.t, d.J, self.plan.B * self.plan.H
        if (t, J) not in self.tables:
            self.tables[t, J] = self.trace.y.new_full((t * BH, J + t - 1), filled)
        table = self.tables[t, J]
        columns = J + t - 1
        return table[:, :J], table.as_strided((BH, t, J), (columns, BH * columns - 1, 1), t - 1)

    def window(self, d: Diagonal, a: int, own: Tensor) -> Tensor:
        """Keys and values in sight, (2, J, BH, K). own (2, t * B, HK), those of the diagonal itself, is put after what
        is cached; so is what came before the call. Both lie where nothing is cached yet."""
        plan = self.plan
        if not d.sees_others:
            return own.view(2, d.t, plan.B * plan.H, plan.K)
        # Backward puts back what forward had written there: nothing that autograd has to know of.
        room = self.trace.room.data[a]
        low, high = d.cached
        known = high + d.old[1] - d.old[0]
        if high < known:
            room[:, high:known] = self.parts.old[a, :, d.old[0] : d.old[1]]
        room[:, known : known + d.t] = own.view(2, d.t, plan.B, -1)
        return room[:, low : known + d.t].view(2, -1, plan.B * plan.H, plan.K)

    def kept(self, d: Diagonal, a: int) -> Tensor | None:
        """What attention's dropout keeps, by slot, and its factor. (BH, t, J)"""
        if not d.attention_kept:
            return None
        by_distance = d.attention_kept[a][..., : d.J].flip(-1)
        columns = d.J + d.t - 1
        padded = torch.nn.functional.pad(by_distance, (0, d.t - 1)).view(-1, d.t, columns)
        kept = padded.as_strided((padded.shape[0], d.t, d.J), (d.t * columns, columns - 1, 1), d.t - 1)
        return kept.to(self.trace.y.dtype).mul_(self.plan.attention_factor)

    def heads(self, tensor: Tensor, t: int) -> Tensor:
        """(t, B, HK) -> (BH, t, K), a view"""
        return tensor.view(t, self.plan.B * self.plan.H, self.plan.K).transpose(0, 1)

    def standardised(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(x - mean) / deviation, mean, 1 / deviation"""
        return torch.native_layer_norm(x, [self.plan.D], None, None, self.plan.eps)

    def final(self) -> Tensor:
        """What is cached of the call's tokens. (T, B, D)"""
        return self.parts.x if self.plan.caches_input else self.trace.y


class Forward(Walk):
    def run(self) -> list[Tensor]:
        plan, trace, x = self.plan, self.trace, self.parts.x
        remembered = [fresh(x, plan.B, tokens, len(plan.level_of), plan.D) for tokens in plan.remembered]
        whole = plan.level_of == tuple(range(plan.A))
        h, cached, done = x[:0], 0, 0
        for d in plan.diagonals:
            levels = trace.levels[:, plan.at(d)]
            climbing, arriving = d.t - d.on, d.begin + d.t - d.on
            if climbing:
                levels[0, :climbing] = h[h.shape[0] - climbing :]
            if d.on:
                levels[0, climbing:] = x[arriving : arriving + d.on]
            cached = self.from_cache(d, cached)
            for a in range(plan.A):
                self.layer(d, a, levels[a], levels[a + 1])
            for leaving in d.leaving:
                inputs = levels[: plan.A] if whole else levels[list(plan.level_of)]
                places = slice(leaving.place, leaving.place + leaving.last - leaving.first)
                remembered[leaving.n][:, places] = inputs[:, leaving.first : leaving.last].permute(2, 1, 0, 3)
            h = levels[-1]
            if d.off:
                trace.y[done : done + d.off] = h[: d.off]
                self.into_cache(done, d.off)
                done += d.off
        return remembered

    def from_cache(self, d: Diagonal, cached: int) -> int:
        """Put what was cached before the call where this diagonal sees it. Returns how far that is done."""
        high = min(d.cached[1], self.plan.cached_before)
        if cached < high:
            self.trace.room[:, :, cached:high] = self.parts.cache[:, :, cached:high]
        return max(cached, high)

    def into_cache(self, first: int, tokens: int) -> None:
        """Keys and values of tokens that stepped off, for all layers."""
        plan = self.plan
        if first + tokens > plan.cached_now:
            return
        entered = self.final()[first : first + tokens].reshape(-1, plan.D)
        if plan.pre:
            entered = self.standardised(entered)[0]
        place = plan.cached_before + first
        for a, weights in enumerate(self.parts.layers):
            for i in (1, 2):
                into = self.trace.room[a, i - 1, place : place + tokens].view(-1, plan.H * plan.K)
                if weights.qkv_bias is None:
                    torch.mm(entered, weights.qkv[i].T, out=into)
                else:
                    torch.addmm(weights.qkv_bias[i], entered, weights.qkv[i].T, out=into)

    def layer(self, d: Diagonal, a: int, x: Tensor, to: Tensor) -> None:
        plan, trace, weights, at = self.plan, self.trace, self.parts.layers[a], self.plan.at(d)
        x, to = x.view(-1, plan.D), to.view(-1, plan.D)
        middle, active = trace.middle[a, at].view(-1, plan.D), trace.active[a, at].view(-1, plan.F)
        read = self.attend(d, a, self.standardised(x)[0] if plan.pre else x).view(-1, plan.H * plan.K)
        if plan.pre:
            torch.addmm(x, read, weights.out.T, out=middle)
            entered = self.standardised(middle)[0]
        else:
            total = torch.addmm(x, read, weights.out.T, out=trace.sums[a, 0, at].view(-1, plan.D))
            self.norm(total, weights.attention_scale, weights.attention_shift, middle)
            entered = middle
        torch.addmm(weights.inner_bias, entered, weights.inner.T, out=active)
        active.relu_()
        if d.relu_kept:
            active.view(d.t, plan.B, -1).mul_(d.relu_kept[a]).mul_(plan.relu_factor)
        total = to if plan.pre else trace.sums[a, 1, at].view(-1, plan.D)
        torch.addmm(weights.outer_bias, active, weights.outer.T, out=total)
        total += middle
        if not plan.pre:
            self.norm(total, weights.feed_scale, weights.feed_shift, to)

    def norm(self, x: Tensor, scale: Tensor | None, shift: Tensor | None, to: Tensor) -> None:
        to.copy_(torch.native_layer_norm(x, [self.plan.D], scale, shift, self.plan.eps)[0])

    def attend(self, d: Diagonal, a: int, entered: Tensor) -> Tensor:
        """entered (t * B, D) -> what is read (t, B, HK)"""
        plan, trace, weights = self.plan, self.trace, self.parts.layers[a]
        columns = weights.qkv.transpose(1, 2)
        if weights.qkv_bias is None:
            qkv = torch.bmm(entered.expand(3, -1, -1), columns)
        else:
            qkv = torch.baddbmm(weights.qkv_bias[:, None], entered.expand(3, -1, -1), columns)
        keys, values = self.window(d, a, qkv[1:])
        table, by_slot = self.table(d, -torch.inf)
        torch.mm(qkv[0].view(-1, plan.K), self.parts.position[-d.J :].T, out=table)
        by_row = table.view(d.t, plan.B, plan.H, d.J)
        if weights.ramp is not None:
            by_row += weights.ramp[:, -d.J :].log()
        if d.hidden is not None:
            by_row.masked_fill_(d.hidden, -torch.inf)
        scores = torch.baddbmm(by_slot, self.heads(qkv[0], d.t), keys.permute(1, 2, 0))
        seen = softmax(scores)
        kept = self.kept(d, a)
        z = torch.bmm(seen if kept is None else seen * kept, values.transpose(0, 1))  # (BH, t, K)
        read = trace.read[a, plan.at(d)]
        self.heads(read, d.t).copy_(z)
        if plan.keep:
            trace.qkv.append(qkv)
            trace.weights.append(seen)
        return read


def softmax(scores: Tensor) -> Tensor:
    """Along the last dimension. Scores may be overwritten."""
    if scores.shape[-1] >= SLOW_SOFTMAX or not scores.device.type == "cpu":
        return torch.softmax(scores, -1)
    powers = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    return powers.div_(powers.sum(-1, keepdim=True))


def softmax_back(grad: Tensor, weights: Tensor) -> Tensor:
    """grad may be overwritten."""
    if weights.shape[-1] >= SLOW_SOFTMAX or not weights.device.type == "cpu":
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype)
    return grad.sub_((grad * weights).sum(-1, keepdim=True)).mul_(weights)


class Backward(Walk):
    """Names of slopes as in Trace: `self.qkv` are gradients of queries, keys and values."""

    def __init__(
        self, plan: Plan, parts: Parts, trace: Trace, y: Tensor | None, remembered: Sequence[Tensor | None]
    ) -> None:
        super().__init__(plan, parts, trace)
        A, R, B, D, HK = plan.A, plan.R, plan.B, plan.D, plan.H * plan.K
        x = parts.x
        self.y = torch.zeros_like(trace.y) if y is None else y.transpose(0, 1).contiguous()
        self.remembered = remembered
        self.fed = fresh(x, A, R, B, D)  # of the feed-forward's output
        self.attended = fresh(x, A, R, B, D)  # of attention's output
        self.inner = fresh(x, A, R, B, plan.F)
        self.qkv = fresh(x, A, 3, R, B, HK)
        self.room = torch.zeros_like(trace.room[:, :, : plan.cached_before + plan.cached_now])
        self.found = Parts(
            fresh(x, *x.shape),
            torch.zeros_like(parts.position),
            torch.zeros_like(parts.old),
            torch.zeros_like(parts.cache),
            [
                LayerWeights(*(None if w is None else torch.zeros_like(w) for w in values(layer)))
                for layer in parts.layers
            ],
        )
        # What each norm standardised, of all diagonals at once: what came of it, mean, 1 / deviation.
        before = trace.levels if plan.pre else trace.sums[:, 0]
        after = trace.middle if plan.pre else trace.sums[:, 1]
        self.norms = [[self.standardised(before[a]), self.standardised(after[a])] for a in range(A)]

    def run(self) -> Parts:
        plan, found = self.plan, self.found
        self.final_norm = self.standardised(self.final()[: plan.cached_now]) if plan.cached_now else None
        later, done = self.parts.x[:0], plan.T
        for i in reversed(range(len(plan.diagonals))):
            d = plan.diagonals[i]
            grad = fresh(later, d.t, plan.B, plan.D)
            grad[d.off :] = later[: d.t - d.off]
            if d.off:
                done -= d.off
                grad[: d.off] = self.y[done : done + d.off]
                if not plan.caches_input:
                    self.out_of_cache(done, d.off, grad[: d.off])
            extra = self.from_remembered(d)
            for a in reversed(range(plan.A)):
                if extra is not None:
                    grad += extra[a + 1]
                grad = self.layer(d, i * plan.A + a, a, grad)
            later = grad if extra is None else grad.add_(extra[0])
            if d.on:
                arriving = d.begin + d.t - d.on
                found.x[arriving : arriving + d.on] = later[d.t - d.on :]
        if plan.caches_input and plan.cached_now:
            self.out_of_cache(0, plan.cached_now, found.x[: plan.cached_now])
        self.weights()
        before = plan.cached_before
        found.cache[:, :, : self.room[:, :, :before].shape[2]] = self.room[:, :, :before]
        return found

    def from_remembered(self, d: Diagonal) -> Tensor | None:
        """What the state owes to each level of a diagonal. (A + 1, t, B, D)"""
        plan = self.plan
        leaving = [leaving for leaving in d.leaving if self.remembered[leaving.n] is not None]
        if not leaving:
            return None
        extra = self.y.new_zeros(plan.A + 1, d.t, plan.B, plan.D)
        level_of = torch.tensor(plan.level_of, device=extra.device)
        for part in leaving:
            of_pass = self.remembered[part.n]
            assert of_pass is not None
            given = of_pass[:, part.place : part.place + part.last - part.first].permute(2, 1, 0, 3)
            extra[:, part.first : part.last].index_add_(0, level_of, given)
        return extra

    def out_of_cache(self, first: int, tokens: int, to: Tensor) -> None:
        """Add what those who saw tokens in the cache owe to them. to (tokens, B, D)"""
        plan = self.plan
        if first + tokens > plan.cached_now:
            return
        place = plan.cached_before + first
        total = torch.zeros_like(to).view(-1, plan.D)
        for a, weights in enumerate(self.parts.layers):
            for i in (1, 2):
                owed = self.room[a, i - 1, place : place + tokens]
                total.addmm_(owed.view(-1, plan.H * plan.K), weights.qkv[i])
        if plan.pre:
            assert self.final_norm is not None
            _, mean, deviation = (part[first : first + tokens] for part in self.final_norm)
            x = self.final()[first : first + tokens]
            total = self.standardise_back(total.view_as(to), x, mean, deviation)
        to += total.view_as(to)

    def layer(self, d: Diagonal, index: int, a: int, grad: Tensor) -> Tensor:
        """grad (t, B, D) of the layer's output -> of its input"""
        plan, trace, weights, found = self.plan, self.trace, self.parts.layers[a], self.found.layers[a]
        at = plan.at(d)
        fed, attended, inner = self.fed[a, at], self.attended[a, at], self.inner[a, at]
        _, mean, deviation = (part[at] for part in self.norms[a][1])
        if plan.pre:
            fed.copy_(grad)
        else:
            fed.copy_(
                self.norm_back(
                    *(grad, trace.sums[a, 1, at], mean, deviation),
                    *(weights.feed_scale, weights.feed_shift, found.feed_scale, found.feed_shift),
                )
            )
        torch.mm(fed.view(-1, plan.D), weights.outer, out=inner.view(-1, plan.F))
        torch.ops.aten.threshold_backward.grad_input(inner, trace.active[a, at], 0, grad_input=inner)
        if d.relu_kept:
            inner *= plan.relu_factor
        entered = torch.mm(inner.view(-1, plan.F), weights.inner).view_as(fed)
        if plan.pre:
            torch.add(fed, self.standardise_back(entered, trace.middle[a, at], mean, deviation), out=attended)
        else:
            _, mean, deviation = (part[at] for part in self.norms[a][0])
            attended.copy_(
                self.norm_back(
                    *(entered.add_(fed), trace.sums[a, 0, at], mean, deviation),
                    *(weights.attention_scale, weights.attention_shift, found.attention_scale, found.attention_shift),
                )
            )
        self.attend(d, index, a, torch.mm(attended.view(-1, plan.D), weights.out))
        qkv = self.qkv[a, :, at].view(3, -1, plan.H * plan.K)
        entered = torch.mm(qkv[0], weights.qkv[0]).addmm_(qkv[1], weights.qkv[1]).addmm_(qkv[2], weights.qkv[2])
        entered = entered.view_as(fed)
        if plan.pre:
            _, mean, deviation = (part[at] for part in self.norms[a][0])
            entered = self.standardise_back(entered, trace.levels[a, at], mean, deviation)
        return entered.add_(attended)

    def standardise_back(self, grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        return torch.ops.aten.native_layer_norm_backward(
            grad, x, [self.plan.D], mean, deviation, None, None, [True, False, False]
        )[0]

    def norm_back(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        deviation: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        found_scale: Tensor | None,
        found_shift: Tensor | None,
    ) -> Tensor:
        """The same for a norm with an affine half, whose gradients are added to what was found."""
        assert found_scale is not None and found_shift is not None
        inputs, scales, shifts = torch.ops.aten.native_layer_norm_backward(
            grad, x, [self.plan.D], mean, deviation, scale, shift, [True, True, True]
        )
        found_scale += scales
        found_shift += shifts
        return inputs

    def attend(self, d: Diagonal, index: int, a: int, read: Tensor) -> None:
        """read (t * B, HK), the gradient of what was read -> those of queries, and of all keys and values in sight"""
        plan, weights, found, t, J = self.plan, self.parts.layers[a], self.found, d.t, d.J
        qkv, seen = self.trace.qkv[index], self.trace.weights[index]
        keys, values = self.window(d, a, qkv[1:])
        q, z, kept = self.heads(qkv[0], t), self.heads(read, t), self.kept(d, a)
        both = fresh(read, 2, seen.shape[0], J, plan.K)
        torch.bmm((seen if kept is None else seen * kept).transpose(1, 2), z, out=both[1])
        slopes = torch.bmm(z, values.permute(1, 2, 0))
        if kept is not None:
            slopes *= kept
        slopes = softmax_back(slopes, seen)
        torch.bmm(slopes.transpose(1, 2), q, out=both[0])
        table, by_slot = self.table(d, 0)
        by_slot.copy_(slopes)
        own = self.qkv[a, :, plan.at(d)].view(3, t, -1, plan.K)
        torch.mm(table, self.parts.position[-J:], out=own[0].view(-1, plan.K))
        own[0] += torch.bmm(slopes, keys.transpose(0, 1)).transpose(0, 1)
        found.position[-J:].addmm_(table.T, qkv[0].view(-1, plan.K))
        given = found.layers[a].ramp
        if weights.ramp is not None and given is not None:
            summed = table.view(t, plan.B, plan.H, J).sum((0, 1))
            near = weights.ramp[:, -J:]
            given[:, -J:] += torch.where(near > 0, summed / near, 0)
        by_time = both.transpose(1, 2)  # (2, J, BH, K)
        own[1:] = by_time[:, J - t :]
        cached, olds = d.cached[1] - d.cached[0], d.old[1] - d.old[0]
        if cached:
            self.room[a, :, d.cached[0] : d.cached[1]].view(2, cached, -1, plan.K).add_(by_time[:, :cached])
        if olds:
            to = found.old[a, :, d.old[0] : d.old[1]].view(2, olds, -1, plan.K)
            to.copy_(by_time[:, cached : cached + olds])

    def weights(self) -> None:
        """Gradients of weights and biases, from all diagonals at once."""
        plan, trace = self.plan, self.trace
        for a, found in enumerate(self.found.layers):
            before = rows(self.norms[a][0][0] if plan.pre else trace.levels[a])
            after = rows(self.norms[a][1][0] if plan.pre else trace.middle[a])
            torch.mm(rows(self.attended[a]).T, rows(trace.read[a]), out=found.out)
            add_affine(found.inner, found.inner_bias, rows(self.inner[a]), after)
            add_affine(found.outer, found.outer_bias, rows(self.fed[a]), rows(trace.active[a]))
            for i in range(3):
                bias = found.qkv_bias[i] if found.qkv_bias is not None else None
                add_affine(found.qkv[i], bias, rows(self.qkv[a, i]), before)
                if i and plan.cached_now:
                    assert self.final_norm is not None
                    cached = self.final_norm[0] if plan.pre else self.final()[: plan.cached_now]
                    add_affine(found.qkv[i], bias, rows(self.room[a, i - 1, plan.cached_before :]), rows(cached))


def values(weights: LayerWeights) -> Iterator[Tensor | None]:
    return (getattr(weights, field.name) for field in dataclasses.fields(weights))


def rows(tensor: Tensor) -> Tensor:
    """All tokens and rows as one: (t, B, n) -> (t * B, n)"""
    return tensor.reshape(-1, tensor.shape[-1])


def add_affine(weight: Tensor, bias: Tensor | None, outputs: Tensor, inputs: Tensor) -> None:
    """dW += dY' X, db += the sum of dY"""
    weight.addmm_(outputs.T, inputs)
    if bias is not None:
        bias += outputs.sum(0)
