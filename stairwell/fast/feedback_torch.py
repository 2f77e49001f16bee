"""The two loops of a Feedback segment in plain PyTorch: for any device, without waiting for one.

Nothing in the loops depends on data: no shape, no branch, no value read back, so a CUDA graph can capture them.
The gradient of a key or value is *pulled* when its step is reached: token u's value was read by token t > u with
weight used[t, .., t-u-1], so those weights lie on a diagonal, which is a view, and one product with the gradients of
what was read gives

    dv_u = sum_{t > u} used[t, t-u-1] dread_t            dk_u = sum_{t > u} dscores[t, t-u-1] q_t

instead of adding into the whole window at every step. Old slots get theirs at the end, all in one product a layer.
Letters as in `segment`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stairwell.fast import trace as traces
from stairwell.fast.trace import Attended, Gradients, Inputs, LayerGradients, Plan, SublayerTrace, Trace


def standardize(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x - mean) / sigma over the width, and 1 / sigma. (B, D) -> (B, D), (B)"""
    normed, _, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
    return normed, rstd.squeeze(-1)


def standardize_back(grad: Tensor, normed: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of what was standardized."""
    along = (grad * normed).mean(-1, keepdim=True)
    return torch.addcmul(grad - grad.mean(-1, keepdim=True), normed, along, value=-1).mul_(rstd.unsqueeze(-1))


class Visible:
    """What hides slots from a query, as something to add to its scores: -inf if not yet filled, the log of a ramp."""

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        self.ramps = [params.ramp.log() if params.ramp is not None else None for params in inputs.layers]
        self.hidden: Tensor | None = None
        self.nothing: Tensor | None = None
        if not plan.full:
            distance = torch.arange(1, plan.R + 1, device=plan.age.device)
            hidden = torch.zeros(plan.T, plan.B, 1, plan.R + plan.itself, dtype=inputs.x.dtype, device=plan.age.device)
            hidden[..., plan.itself :].masked_fill_(distance > plan.age.T[:, :, None, None], -torch.inf)
            self.hidden = hidden
            if not plan.itself:
                self.nothing = (plan.age.T == 0)[:, :, None, None]

    def weigh(self, a: int, t: int, scores: Tensor, out: Tensor) -> None:
        """softmax of scores (B, H, W) over what can be attended; zero where that is nothing."""
        ramp = self.ramps[a]
        if ramp is not None:
            scores += ramp
        if self.hidden is not None:
            scores += self.hidden[t, ..., : scores.shape[-1]]
        torch.softmax(scores, -1, out=out)
        if self.nothing is not None:
            out.masked_fill_(self.nothing[t], 0)


class Kept:
    """Dropout masks of some steps as factors, time first."""

    def __init__(self, plan: Plan, dtype: torch.dtype, steps: range) -> None:
        def factors(masks: tuple[Tensor, ...], a: int, width: int) -> Tensor | None:
            if not masks:
                return None
            chosen = masks[a][:, :, steps.start : steps.stop, :width]
            return chosen.permute(2, 0, 1, 3).to(dtype) / (1 - plan.attention_rate)

        self.attention = [factors(plan.attention_kept, a, plan.width(a)) for a in range(plan.A)]
        width = plan.source_mask.shape[1] if plan.source_mask is not None else 0
        self.cross = [factors(plan.cross_kept, a, width) for a in range(plan.A)]
        self.plan, self.dtype = plan, dtype

    def residual(self, a: int, sublayer: int, t: int) -> Tensor | None:
        """That of what a sublayer of layer a adds: 0 attention, 1 cross-attention, -1 feed-forward. (B, D)"""
        if not self.plan.residual_kept:
            return None
        return self.plan.residual_kept[a][sublayer, :, t].to(self.dtype) / (1 - self.plan.residual_rate)


class Forward:
    """One walk over the tokens of a segment."""

    def __init__(self, plan: Plan, inputs: Inputs, trace: Trace) -> None:
        self.plan, self.inputs, self.trace = plan, inputs, trace
        self.visible, self.kept = Visible(plan, inputs), Kept(plan, inputs.x.dtype, range(plan.T))
        self.absent: Tensor | None = None
        if plan.source_mask is not None:
            self.absent = ~plan.source_mask[:, None, :]

    def run(self) -> None:
        plan, trace = self.plan, self.trace
        for s, params in enumerate(self.inputs.sets):
            old = params.old.view(plan.B, plan.R, 2, plan.H, plan.K).permute(2, 0, 3, 1, 4)
            trace.keys[s][:, :, plan.T :] = old[0]
            trace.values[s][:, :, plan.T :] = old[1]
        for t in range(plan.T):
            x = self.inputs.x[t]
            for a in range(plan.A):
                last = a + 1 == plan.A
                x = self.layer(a, t, x, trace.y[t] if last else trace.levels[a + 1][self.at(t)])
            self.remember(t)

    def at(self, t: int) -> int:
        return t if self.plan.needs_gradient else 0

    def layer(self, a: int, t: int, x: Tensor, out: Tensor) -> Tensor:
        params, layer, i = self.inputs.layers[a], self.trace.layers[a], self.at(t)
        read = self.attend(a, t, self.enter(layer.attention, i, x))
        found, norm = read @ params.out.T, (params.attention_scale, params.attention_shift)
        x = self.leave(layer.attention, i, x, found, *norm, self.kept.residual(a, 0, t))
        if layer.cross is not None:
            assert params.cross_out is not None
            read = self.attend_source(a, t, self.enter(layer.cross, i, x))
            found, norm = read @ params.cross_out.T, (params.cross_scale, params.cross_shift)
            x = self.leave(layer.cross, i, x, found, *norm, self.kept.residual(a, 1, t))
        normed = self.enter(layer.feed, i, x)
        active = torch.addmm(params.inner_bias, normed, params.inner.T, out=layer.active[i]).relu_()
        if self.plan.relu_kept:
            active.mul_(self.plan.relu_kept[a][:, t]).mul_(1 / (1 - self.plan.relu_rate))
        found, norm = torch.addmm(params.outer_bias, active, params.outer.T), (params.feed_scale, params.feed_shift)
        return self.leave(layer.feed, i, x, found, *norm, self.kept.residual(a, -1, t), out)

    def enter(self, sublayer: SublayerTrace, i: int, x: Tensor) -> Tensor:
        """What the sublayer reads."""
        if not self.plan.pre:
            return sublayer.input[i].copy_(x)
        normed, sublayer.rstd[i] = standardize(x, self.plan.eps)
        return sublayer.input[i].copy_(normed)

    def leave(
        self,
        sublayer: SublayerTrace,
        i: int,
        x: Tensor,
        found: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        kept: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """From what the sublayer found to its sum with x, through a norm with post-norm."""
        if kept is not None:
            found = found.mul_(kept)
        if self.plan.pre:
            return torch.add(x, found, out=out)
        assert sublayer.normed is not None and scale is not None and shift is not None
        normed, sublayer.rstd[i] = standardize(found.add_(x), self.plan.eps)
        sublayer.normed[i] = normed
        return torch.addcmul(shift, normed, scale, out=out)

    def attend(self, a: int, t: int, input: Tensor) -> Tensor:
        """What layer a reads from the memory for token t. (B, D) -> (B, HK)"""
        plan, params, trace, i = self.plan, self.inputs.layers[a], self.trace.layers[a], self.at(t)
        B, H, K, width = plan.B, plan.H, plan.K, plan.width(a)
        attended, itself = trace.self_attended, int(plan.itself)
        query = multiply(input, params.query, params.query_bias, attended.query[i])
        keys, values = window(plan, self.trace, a, t)
        scores = query.view(B * H, K) @ self.inputs.position[:width].T  # (BH, W)
        scores[:, itself:] += torch.bmm(keys, query.view(B * H, K, 1)).squeeze(-1)
        own = self.own(a, i, input)
        if own is not None:
            scores[:, 0] += (own[:, 0] * query.view(B, H, K)).sum(-1).view(-1)
        self.visible.weigh(a, t, scores.view(B, H, width), attended.weights[i])
        used = attended.weights[i]
        kept = self.kept.attention[a]
        if kept is not None:
            used = torch.mul(used, kept[t], out=attended.used[i])
        read = attended.read[i].view(B * H, 1, K)
        torch.bmm(used.view(B * H, 1, width)[..., itself:], values, out=read)
        if own is not None:
            read.view(B, H, K).addcmul_(used[..., :1], own[:, 1])
        return attended.read[i]

    def own(self, a: int, i: int, input: Tensor) -> Tensor | None:
        """The token's own key and value, which only it sees. (B, 2, H, K)"""
        plan, out = self.plan, self.trace.layers[a].own
        if out is None:
            return None
        project = self.inputs.sets[plan.set_of[a]]
        return multiply(input, project.weight, project.bias, out[i]).view(plan.B, 2, plan.H, plan.K)

    def attend_source(self, a: int, t: int, input: Tensor) -> Tensor:
        plan, params, attended, i = self.plan, self.inputs.layers[a], self.trace.layers[a].cross_attended, self.at(t)
        assert attended is not None and params.cross_query is not None and self.absent is not None
        assert params.cross_keys is not None and params.cross_values is not None
        query = multiply(input, params.cross_query, params.cross_query_bias, attended.query[i]).view(
            plan.B, plan.H, plan.K
        )
        scores = (params.cross_keys @ query.unsqueeze(-1)).squeeze(-1)  # (B, H, J)
        # All hidden: the softmax is even, and then everything in it is zeroed.
        scores.masked_fill_(self.absent, torch.finfo(scores.dtype).min)
        used = torch.softmax(scores, -1, out=attended.weights[i]).masked_fill_(self.absent, 0)
        kept = self.kept.cross[a]
        if kept is not None:
            used = torch.mul(used, kept[t], out=attended.used[i])
        torch.matmul(used.unsqueeze(-2), params.cross_values, out=attended.read[i].view(plan.B, plan.H, 1, plan.K))
        return attended.read[i]

    def remember(self, t: int) -> None:
        """Mix the layers into this token's memory, and project its keys and values."""
        plan, inputs, trace, i = self.plan, self.inputs, self.trace, self.at(t)
        levels = [inputs.x[t], *(level[i] for level in trace.levels[1:-1]), trace.y[t]]
        memory = trace.memory[:, t]
        memory.copy_(torch.tensordot(inputs.mix, torch.stack(levels), 1))
        for g in range(plan.G):
            if plan.pre:
                trace.memory_input[g, i], trace.memory_rstd[g, i] = standardize(memory[g], plan.eps)
            else:
                trace.memory_input[g, i] = memory[g]
        for s, project in enumerate(inputs.sets):
            new = multiply(trace.memory_input[plan.memory_of[s], i], project.weight, project.bias)
            new = new.view(plan.B, 2, plan.H, plan.K)
            trace.keys[s][:, :, plan.T - 1 - t] = new[:, 0]
            trace.values[s][:, :, plan.T - 1 - t] = new[:, 1]


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


def window(plan: Plan, trace: Trace, a: int, t: int) -> tuple[Tensor, Tensor]:
    """The keys and values that layer a sees at token t: views (BH, reach, K)."""
    s, first = plan.set_of[a], plan.T - t
    last = first + plan.reach[a]
    return trace.keys[s].flatten(0, 1)[:, first:last], trace.values[s].flatten(0, 1)[:, first:last]


class Backward:
    """The same walk in reverse, over a block of steps; i is a step's place among them."""

    def __init__(
        self, plan: Plan, inputs: Inputs, trace: Trace, y: Tensor, memory: Tensor, gradients: Gradients, steps: range
    ) -> None:
        self.plan, self.inputs, self.trace = plan, inputs, trace
        self.y, self.memory, self.gradients = y, memory, gradients
        self.steps, self.begin = steps, steps.start
        self.kept = Kept(plan, inputs.x.dtype, steps)

    def run(self) -> None:
        plan, mix = self.plan, self.inputs.mix
        for t in reversed(self.steps):
            self.recall(t)
            dx = self.y[t].clone()
            for a in reversed(range(plan.A)):
                dx += self.from_memory(mix[:, a + 1], t)
                dx = self.layer(a, t, dx)
            torch.add(dx, self.from_memory(mix[:, 0], t), out=self.gradients.x[t])
        if self.begin == 0:
            for s in range(len(self.inputs.sets)):
                self.pull_old(s)

    def from_memory(self, weights: Tensor, t: int) -> Tensor:
        """What a level owes to the memories it went into. weights (G,) -> (B, D)"""
        return torch.tensordot(weights, self.gradients.memory[:, t], 1)

    def recall(self, t: int) -> None:
        """The gradient of this token's memory, from all later tokens that read its keys and values."""
        plan, inputs, trace, gradients = self.plan, self.inputs, self.trace, self.gradients
        gradients.memory[:, t] = self.memory[:, t]
        for s, project in enumerate(inputs.sets):
            g = plan.memory_of[s]
            gradients.new[s][t] = self.pull(s, t)
            grad = gradients.new[s][t] @ project.weight
            if plan.pre:
                grad = standardize_back(grad, trace.memory_input[g, t], trace.memory_rstd[g, t])
            gradients.memory[g, t] += grad

    def pull(self, s: int, u: int) -> Tensor:
        """The gradients of token u's key and value. (B, 2HK)"""
        plan = self.plan
        B, H, K, T = plan.B, plan.H, plan.K, plan.T
        total = self.y.new_zeros(2, B * H, 1, K)
        for a in plan.readers(s):
            n = min(plan.reach[a], T - 1 - u)
            if n == 0:
                continue
            attended, gradient = self.trace.layers[a].self_attended, self.gradients.layers[a]
            for kind, (weights, vectors) in enumerate(
                ((gradient.scores, attended.query), (attended.used, gradient.read))
            ):
                later = vectors[u + 1 : u + 1 + n].view(n, B * H, K).transpose(0, 1)
                total[kind].baddbmm_(diagonal(weights, u + 1, n, int(plan.itself)), later)
        return total.view(2, B, H * K).transpose(0, 1).reshape(B, 2 * H * K)

    def pull_old(self, s: int) -> None:
        """The gradients of the slots that were there before: weights[t, .., p + t] is a view of padded rows."""
        plan = self.plan
        B, H, K, T, itself = plan.B, plan.H, plan.K, plan.T, int(plan.itself)
        total = self.y.new_zeros(2, B * H, plan.R, K)
        for a in plan.readers(s):
            attended, gradient, reach = self.trace.layers[a].self_attended, self.gradients.layers[a], plan.reach[a]
            for kind, (weights, vectors) in enumerate(
                ((gradient.scores, attended.query), (attended.used, gradient.read))
            ):
                padded = F.pad(weights[..., itself:], (0, T)).view(T, B * H, reach + T)
                shifted = padded.as_strided((B * H, reach, T), (reach + T, 1, B * H * (reach + T) + 1))
                total[kind, :, :reach].baddbmm_(shifted, vectors.view(T, B * H, K).transpose(0, 1))
        self.gradients.old[s].view(B, plan.R, 2, H, K).copy_(total.view(2, B, H, plan.R, K).permute(1, 3, 0, 2, 4))

    def layer(self, a: int, t: int, dx: Tensor) -> Tensor:
        params, trace, gradient = self.inputs.layers[a], self.trace.layers[a], self.gradients.layers[a]
        kept = [self.kept.residual(a, which, t) for which in (0, 1, -1)]
        dx, out = self.leave(trace.feed, t, dx, params.feed_scale, gradient.feed_normed, gradient.feed_out, kept[2])
        inner = torch.mm(out, params.outer, out=gradient.inner[t - self.begin]).mul_(trace.active[t] != 0)
        if self.plan.relu_kept:
            inner.mul_(1 / (1 - self.plan.relu_rate))
        dx = self.enter(trace.feed, t, dx, inner @ params.inner)
        if trace.cross is not None:
            assert gradient.cross_out is not None
            given, to = gradient.cross_normed, gradient.cross_out
            dx, out = self.leave(trace.cross, t, dx, params.cross_scale, given, to, kept[1])
            dx = self.enter(trace.cross, t, dx, self.attend_source(a, t, out))
        given, to = gradient.attention_normed, gradient.attention_out
        dx, out = self.leave(trace.attention, t, dx, params.attention_scale, given, to, kept[0])
        return self.enter(trace.attention, t, dx, self.attend(a, t, out))

    def leave(
        self,
        sublayer: SublayerTrace,
        t: int,
        dx: Tensor,
        scale: Tensor | None,
        given: Tensor | None,
        out: Tensor,
        kept: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """From the gradient of what left a sublayer to those of its sum with x and of its own output."""
        if given is not None:
            assert sublayer.normed is not None and scale is not None
            given[t - self.begin] = dx
            dx = standardize_back(dx * scale, sublayer.normed[t], sublayer.rstd[t])
        return dx, out[t - self.begin].copy_(dx if kept is None else dx * kept)

    def enter(self, sublayer: SublayerTrace, t: int, dx: Tensor, input: Tensor) -> Tensor:
        if self.plan.pre:
            input = standardize_back(input, sublayer.input[t], sublayer.rstd[t])
        return dx + input

    def attend(self, a: int, t: int, dx: Tensor) -> Tensor:
        """The gradient of what attention input with. (B, D) -> (B, D)"""
        plan, params, trace, gradient = self.plan, self.inputs.layers[a], self.trace.layers[a], self.gradients.layers[a]
        B, H, K, width, itself, i = plan.B, plan.H, plan.K, plan.width(a), int(plan.itself), t - self.begin
        keys, values = window(plan, self.trace, a, t)
        read = torch.mm(dx, params.out, out=gradient.read[t]).view(B * H, K, 1)
        grad = traces.fresh(dx, B * H, width, 1)
        torch.bmm(values, read, out=grad[:, itself:])
        own = trace.own[t].view(B, 2, H, K) if trace.own is not None else None
        if own is not None:
            grad.view(B, H, width)[..., 0] = (own[:, 1] * read.view(B, H, K)).sum(-1)
        kept = self.kept.attention[a]
        factor = kept[i] if kept is not None else None
        scores = softmax_back(grad.view(B, H, width), trace.self_attended.weights[t], factor, gradient.scores[t])
        query = gradient.query[i].view(B * H, 1, K)
        torch.mm(scores.view(B * H, width), self.inputs.position[:width], out=query.view(B * H, K))
        query.baddbmm_(scores.view(B * H, 1, width)[..., itself:], keys)
        if own is not None:
            query.view(B, H, K).addcmul_(scores[..., :1], own[:, 0])
        input = gradient.query[i] @ params.query
        if own is not None:
            input += self.own(a, t, scores[..., :1])
        return input

    def own(self, a: int, t: int, score: Tensor) -> Tensor:
        """Through the token's own key and value. score (B, H, 1) -> (B, D)"""
        plan, attended, gradient = self.plan, self.trace.layers[a].self_attended, self.gradients.layers[a]
        assert gradient.own is not None
        flat = gradient.own[t - self.begin]
        own = flat.view(plan.B, 2, plan.H, plan.K)
        torch.mul(attended.query[t].view(plan.B, plan.H, plan.K), score, out=own[:, 0])
        torch.mul(gradient.read[t].view(plan.B, plan.H, plan.K), attended.used[t][..., :1], out=own[:, 1])
        return flat @ self.inputs.sets[plan.set_of[a]].weight

    def attend_source(self, a: int, t: int, dx: Tensor) -> Tensor:
        plan, params, attended, gradient = self.plan, self.inputs.layers[a], *source_of(self.trace, self.gradients, a)
        assert params.cross_out is not None and params.cross_query is not None
        assert params.cross_keys is not None and params.cross_values is not None
        assert (
            gradient.cross_read is not None and gradient.cross_scores is not None and gradient.cross_query is not None
        )
        i, kept = t - self.begin, self.kept.cross[a]
        read = torch.mm(dx, params.cross_out, out=gradient.cross_read[i]).view(plan.B, plan.H, plan.K, 1)
        grad = (params.cross_values @ read).squeeze(-1)
        scores = softmax_back(
            grad, attended.weights[t], kept[i] if kept is not None else None, gradient.cross_scores[i]
        )
        out = gradient.cross_query[i].view(plan.B, plan.H, 1, plan.K)
        torch.matmul(scores.unsqueeze(-2), params.cross_keys, out=out)
        return gradient.cross_query[i] @ params.cross_query


def source_of(trace: Trace, gradients: Gradients, a: int) -> tuple[Attended, LayerGradients]:
    attended = trace.layers[a].cross_attended
    assert attended is not None
    return attended, gradients.layers[a]


def softmax_back(grad: Tensor, weights: Tensor, kept: Tensor | None, out: Tensor) -> Tensor:
    """From the gradient of the used weights to that of the scores, all (B, H, W)."""
    torch.mul(grad if kept is None else grad * kept, weights, out=out)
    return out.addcmul_(weights, out.sum(-1, keepdim=True), value=-1)


def diagonal(weights: Tensor, first: int, n: int, itself: int) -> Tensor:
    """What tokens first, first + 1, ... gave to the slot at their distance 1, 2, ...: a view (BH, 1, n)."""
    _, B, H, width = weights.shape
    row = B * H * width
    return weights.as_strided((B * H, 1, n), (width, 1, row + 1), weights.storage_offset() + first * row + itself)


class TorchBackend:
    """The loops as a back end of `segment`."""

    def forward(self, plan: Plan, inputs: Inputs, trace: Trace) -> None:
        Forward(plan, inputs, trace).run()

    def backward(
        self, plan: Plan, inputs: Inputs, trace: Trace, y: Tensor, memory: Tensor, gradients: Gradients, steps: range
    ) -> None:
        Backward(plan, inputs, trace, y, memory, gradients, steps).run()
