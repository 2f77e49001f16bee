"""The two loops of a Feedback segment in PyTorch, for any device.

No shape or branch depends on data, so a CUDA graph can capture the loops. The gradients of a token's key and value are
computed when its step is reached, instead of being accumulated over the window at every step. Token u's value was used
by token t > u with weight w[t, t-u-1]. These weights are on a diagonal, which is a view, so one product gives each of

    dv_u = sum_{t > u} w[t, t-u-1] dz_t            dk_u = sum_{t > u} dscores[t, t-u-1] q_t

The gradients of slots from the state are computed at the end, in one product per layer. Letters as in `segment_data`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stairwell.fast.buffer_pool import pooled_empty
from stairwell.fast.segment_data import (
    Activations,
    Gradients,
    Inputs,
    Plan,
    SublayerActivations,
)


def standardize(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x - mean) / sigma over the width, and 1 / sigma. (B, D) -> (B, D), (B)"""
    normed, _, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
    return normed, rstd.squeeze(-1)


def standardize_backward(grad: Tensor, normed: Tensor, rstd: Tensor) -> Tensor:
    """Return the gradient of the input of `standardize`."""
    along = (grad * normed).mean(-1, keepdim=True)
    return torch.addcmul(grad - grad.mean(-1, keepdim=True), normed, along, value=-1).mul_(rstd.unsqueeze(-1))


class ScoreBias:
    """Terms that are added to attention scores: -inf for empty slots, and the logarithm of the adaptive span's ramp."""

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        self.ramps = [params.ramp.log() if params.ramp is not None else None for params in inputs.layers]
        self.empty_slots: Tensor | None = None
        self.first_token: Tensor | None = None
        if not plan.full:
            since_start, width = plan.since_start.T[:, :, None, None], plan.R + plan.attend_to_current
            distance = torch.arange(1, plan.R + 1, device=since_start.device)
            self.empty_slots = torch.zeros(plan.T, plan.B, 1, width, dtype=inputs.x.dtype, device=since_start.device)
            self.empty_slots[..., plan.attend_to_current :].masked_fill_(distance > since_start, -torch.inf)
            if not plan.attend_to_current:
                self.first_token = since_start == 0

    def softmax(self, a: int, t: int, scores: Tensor, out: Tensor) -> None:
        """Compute attention weights from scores (B, H, W). A token with nothing to attend to gets zeros."""
        ramp = self.ramps[a]
        if ramp is not None:
            scores += ramp
        if self.empty_slots is not None:
            scores += self.empty_slots[t, ..., : scores.shape[-1]]
        torch.softmax(scores, -1, out=out)
        if self.first_token is not None:
            out.masked_fill_(self.first_token[t], 0)


class DropoutFactors:
    """Dropout masks of a range of tokens as factors, time first."""

    def __init__(self, plan: Plan, dtype: torch.dtype, tokens: range) -> None:
        def factors(masks: tuple[Tensor, ...], a: int, width: int) -> Tensor | None:
            if not masks:
                return None
            mask = masks[a][:, :, tokens.start : tokens.stop, :width]
            return mask.permute(2, 0, 1, 3).to(dtype) / (1 - plan.attention_rate)

        self.attention = [factors(plan.attention_masks, a, plan.width(a)) for a in range(plan.A)]
        width = plan.source_mask.shape[1] if plan.source_mask is not None else 0
        self.cross = [factors(plan.cross_masks, a, width) for a in range(plan.A)]
        self.plan, self.dtype = plan, dtype

    def residual(self, a: int, sublayer: int, t: int) -> Tensor | None:
        """Return the factors of a sublayer's output (B, D): 0 attention, 1 cross-attention, -1 feed-forward."""
        if not self.plan.residual_masks:
            return None
        return self.plan.residual_masks[a][sublayer, :, t].to(self.dtype) / (1 - self.plan.residual_rate)


class Forward:
    """The forward loop over the tokens of a segment; i is the index of token t in the saved activations."""

    def __init__(self, plan: Plan, inputs: Inputs, saved: Activations) -> None:
        self.plan, self.inputs, self.saved = plan, inputs, saved
        self.bias, self.dropout = ScoreBias(plan, inputs), DropoutFactors(plan, inputs.x.dtype, range(plan.T))
        self.source_padding: Tensor | None = None
        if plan.source_mask is not None:
            self.source_padding = ~plan.source_mask[:, None, :]

    def run(self) -> None:
        plan, saved = self.plan, self.saved
        for s, group in enumerate(self.inputs.kv_groups):
            keys, values = group.state_kv.view(plan.B, plan.R, 2, plan.H, plan.K).permute(2, 0, 3, 1, 4)
            saved.keys[s][:, :, plan.T :] = keys
            saved.values[s][:, :, plan.T :] = values
        for t in range(plan.T):
            x = self.inputs.x[t]
            for a in range(plan.A):
                last = a + 1 == plan.A
                x = self.layer(a, t, x, saved.y[t] if last else saved.layer_outputs[a + 1][self.at(t)])
            self.write_memory(t)

    def at(self, t: int) -> int:
        return t if self.plan.needs_gradient else 0

    def layer(self, a: int, t: int, x: Tensor, out: Tensor) -> Tensor:
        params, layer, i = self.inputs.layers[a], self.saved.layers[a], self.at(t)
        z = self.attend(a, t, self.sublayer_input(layer.attention, i, x))
        output, norm = z @ params.out.T, (params.attention_scale, params.attention_shift)
        x = self.add_output(layer.attention, i, x, output, *norm, self.dropout.residual(a, 0, t))
        if layer.cross is not None:
            assert params.cross_out is not None
            z = self.attend_source(a, t, self.sublayer_input(layer.cross, i, x))
            output, norm = z @ params.cross_out.T, (params.cross_scale, params.cross_shift)
            x = self.add_output(layer.cross, i, x, output, *norm, self.dropout.residual(a, 1, t))
        normed = self.sublayer_input(layer.feed, i, x)
        active = torch.addmm(params.inner_bias, normed, params.inner.T, out=layer.active[i]).relu_()
        if self.plan.relu_masks:
            active.mul_(self.plan.relu_masks[a][:, t]).mul_(1 / (1 - self.plan.relu_rate))
        output, norm = torch.addmm(params.outer_bias, active, params.outer.T), (params.feed_scale, params.feed_shift)
        return self.add_output(layer.feed, i, x, output, *norm, self.dropout.residual(a, -1, t), out)

    def sublayer_input(self, sublayer: SublayerActivations, i: int, x: Tensor) -> Tensor:
        """Return the sublayer's input: x, standardized with pre-norm."""
        if not self.plan.pre_norm:
            return sublayer.input[i].copy_(x)
        normed, sublayer.rstd[i] = standardize(x, self.plan.eps)
        return sublayer.input[i].copy_(normed)

    def add_output(
        self,
        sublayer: SublayerActivations,
        i: int,
        x: Tensor,
        output: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        dropout: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of x and the sublayer's output, normalized with post-norm."""
        if dropout is not None:
            output = output.mul_(dropout)
        if self.plan.pre_norm:
            return torch.add(x, output, out=out)
        assert sublayer.normed is not None and scale is not None and shift is not None
        normed, sublayer.rstd[i] = standardize(output.add_(x), self.plan.eps)
        sublayer.normed[i] = normed
        return torch.addcmul(shift, normed, scale, out=out)

    def attend(self, a: int, t: int, input: Tensor) -> Tensor:
        """Return z, the attention of layer a for token t. (B, D) -> (B, HK)"""
        plan, params, saved, i = self.plan, self.inputs.layers[a], self.saved.layers[a], self.at(t)
        B, H, K, width = plan.B, plan.H, plan.K, plan.width(a)
        attention, current = saved.self_attention, int(plan.attend_to_current)
        query = multiply(input, params.query, params.query_bias, attention.query[i])
        keys, values = window(plan, self.saved, a, t)
        scores = query.view(B * H, K) @ self.inputs.position[:width].T  # (BH, W)
        scores[:, current:] += torch.bmm(keys, query.view(B * H, K, 1)).squeeze(-1)
        current_kv = self.current_kv(a, i, input)
        if current_kv is not None:
            scores[:, 0] += (current_kv[:, 0] * query.view(B, H, K)).sum(-1).view(-1)
        self.bias.softmax(a, t, scores.view(B, H, width), attention.weights[i])
        used = attention.weights[i]
        dropout = self.dropout.attention[a]
        if dropout is not None:
            used = torch.mul(used, dropout[t], out=attention.used_weights[i])
        z = attention.z[i].view(B * H, 1, K)
        torch.bmm(used.view(B * H, 1, width)[..., current:], values, out=z)
        if current_kv is not None:
            z.view(B, H, K).addcmul_(used[..., :1], current_kv[:, 1])
        return attention.z[i]

    def current_kv(self, a: int, i: int, input: Tensor) -> Tensor | None:
        """Return the token's own key and value, which only the token itself attends to. (B, 2, H, K)"""
        plan, out = self.plan, self.saved.layers[a].current_kv
        if out is None:
            return None
        project = self.inputs.kv_groups[plan.kv_group[a]]
        return multiply(input, project.weight, project.bias, out[i]).view(plan.B, 2, plan.H, plan.K)

    def attend_source(self, a: int, t: int, input: Tensor) -> Tensor:
        plan, params, attention, i = self.plan, self.inputs.layers[a], self.saved.layers[a].cross_attention, self.at(t)
        assert attention is not None and params.cross_query is not None and self.source_padding is not None
        assert params.cross_keys is not None and params.cross_values is not None
        query = multiply(input, params.cross_query, params.cross_query_bias, attention.query[i]).view(
            plan.B, plan.H, plan.K
        )
        scores = (params.cross_keys @ query.unsqueeze(-1)).squeeze(-1)  # (B, H, J)
        # A finite minimum instead of -inf: if all tokens are padding, the softmax is uniform and then set to zero.
        scores.masked_fill_(self.source_padding, torch.finfo(scores.dtype).min)
        used = torch.softmax(scores, -1, out=attention.weights[i]).masked_fill_(self.source_padding, 0)
        dropout = self.dropout.cross[a]
        if dropout is not None:
            used = torch.mul(used, dropout[t], out=attention.used_weights[i])
        torch.matmul(used.unsqueeze(-2), params.cross_values, out=attention.z[i].view(plan.B, plan.H, 1, plan.K))
        return attention.z[i]

    def write_memory(self, t: int) -> None:
        """Mix the layer outputs into this token's memory, and project its key and value."""
        plan, inputs, saved, i = self.plan, self.inputs, self.saved, self.at(t)
        outputs = [inputs.x[t], *(output[i] for output in saved.layer_outputs[1:-1]), saved.y[t]]
        memory = saved.memory[:, t]
        memory.copy_(torch.tensordot(inputs.mix, torch.stack(outputs), 1))
        for g in range(plan.G):
            if plan.pre_norm:
                saved.memory_input[g, i], saved.memory_rstd[g, i] = standardize(memory[g], plan.eps)
            else:
                saved.memory_input[g, i] = memory[g]
        for s, project in enumerate(inputs.kv_groups):
            kv = multiply(saved.memory_input[plan.group_memory[s], i], project.weight, project.bias)
            kv = kv.view(plan.B, 2, plan.H, plan.K)
            saved.keys[s][:, :, plan.T - 1 - t] = kv[:, 0]
            saved.values[s][:, :, plan.T - 1 - t] = kv[:, 1]


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


def window(plan: Plan, saved: Activations, a: int, t: int) -> tuple[Tensor, Tensor]:
    """Return the keys and values (BH, span, K) visible to layer a at token t: views, or copies if they are rounded."""
    s, slots = plan.kv_group[a], slice(plan.T - t, plan.T - t + plan.spans[a])
    keys, values = (stored[s].flatten(0, 1)[:, slots].to(saved.y.dtype) for stored in (saved.keys, saved.values))
    return keys, values


class Backward:
    """The backward loop over a block of tokens; i is the index of token t in the block."""

    def __init__(
        self,
        plan: Plan,
        inputs: Inputs,
        saved: Activations,
        d_y: Tensor,
        d_memory: Tensor,
        gradients: Gradients,
        tokens: range,
    ) -> None:
        self.plan, self.inputs, self.saved = plan, inputs, saved
        self.d_y, self.d_memory, self.gradients = d_y, d_memory, gradients
        self.tokens, self.start = tokens, tokens.start
        self.dropout = DropoutFactors(plan, inputs.x.dtype, tokens)

    def run(self) -> None:
        plan, mix = self.plan, self.inputs.mix
        for t in reversed(self.tokens):
            self.memory_backward(t)
            dx = self.d_y[t].clone()
            for a in reversed(range(plan.A)):
                dx += self.grad_from_memory(mix[:, a + 1], t)
                dx = self.layer(a, t, dx)
            torch.add(dx, self.grad_from_memory(mix[:, 0], t), out=self.gradients.x[t])
        if self.start == 0:
            for s in range(len(self.inputs.kv_groups)):
                self.state_kv_backward(s)

    def grad_from_memory(self, weights: Tensor, t: int) -> Tensor:
        """Return the gradient of a layer's output through the memory mix. weights (G,) -> (B, D)"""
        return torch.tensordot(weights, self.gradients.memory[:, t], 1)

    def memory_backward(self, t: int) -> None:
        """Compute the gradient of token t's memory from all later tokens that attention to its key and value."""
        plan, inputs, saved, gradients = self.plan, self.inputs, self.saved, self.gradients
        gradients.memory[:, t] = self.d_memory[:, t]
        for s, project in enumerate(inputs.kv_groups):
            g = plan.group_memory[s]
            gradients.new_kv[s][t] = self.new_kv_backward(s, t)
            grad = gradients.new_kv[s][t] @ project.weight
            if plan.pre_norm:
                grad = standardize_backward(grad, saved.memory_input[g, t], saved.memory_rstd[g, t])
            gradients.memory[g, t] += grad

    def new_kv_backward(self, s: int, u: int) -> Tensor:
        """Return the gradients of token u's key and value. (B, 2HK)"""
        plan = self.plan
        B, H, K, T = plan.B, plan.H, plan.K, plan.T
        total = self.d_y.new_zeros(2, B * H, 1, K)
        for a in plan.layers_of_group(s):
            n = min(plan.spans[a], T - 1 - u)
            if n == 0:
                continue
            attention, gradient = self.saved.layers[a].self_attention, self.gradients.layers[a]
            for which, (weights, vectors) in enumerate(
                ((gradient.scores, attention.query), (attention.used_weights, gradient.z))
            ):
                later = vectors[u + 1 : u + 1 + n].view(n, B * H, K).transpose(0, 1)
                total[which].baddbmm_(diagonal(weights, u + 1, n, int(plan.attend_to_current)), later)
        return total.view(2, B, H * K).transpose(0, 1).reshape(B, 2 * H * K)

    def state_kv_backward(self, s: int) -> None:
        """Compute the gradients of slots from the state. weights[t, .., p + t] is a view of the padded weights."""
        plan = self.plan
        B, H, K, T, current = plan.B, plan.H, plan.K, plan.T, int(plan.attend_to_current)
        total = self.d_y.new_zeros(2, B * H, plan.R, K)
        for a in plan.layers_of_group(s):
            attention, gradient, span = self.saved.layers[a].self_attention, self.gradients.layers[a], plan.spans[a]
            for which, (weights, vectors) in enumerate(
                ((gradient.scores, attention.query), (attention.used_weights, gradient.z))
            ):
                padded = F.pad(weights[..., current:], (0, T)).view(T, B * H, span + T)
                shifted = padded.as_strided((B * H, span, T), (span + T, 1, B * H * (span + T) + 1))
                total[which, :, :span].baddbmm_(shifted, vectors.view(T, B * H, K).transpose(0, 1))
        self.gradients.state_kv[s].view(B, plan.R, 2, H, K).copy_(total.view(2, B, H, plan.R, K).permute(1, 3, 0, 2, 4))

    def layer(self, a: int, t: int, dx: Tensor) -> Tensor:
        params, saved, gradient = self.inputs.layers[a], self.saved.layers[a], self.gradients.layers[a]
        dropout = [self.dropout.residual(a, sublayer, t) for sublayer in (0, 1, -1)]
        d_normed, d_out = gradient.feed_normed, gradient.feed_out
        dx, out = self.output_backward(saved.feed, t, dx, params.feed_scale, d_normed, d_out, dropout[2])
        inner = torch.mm(out, params.outer, out=gradient.inner[t - self.start]).mul_(saved.active[t] != 0)
        if self.plan.relu_masks:
            inner.mul_(1 / (1 - self.plan.relu_rate))
        dx = self.input_backward(saved.feed, t, dx, inner @ params.inner)
        if saved.cross is not None:
            assert gradient.cross_out is not None
            d_normed, d_out = gradient.cross_normed, gradient.cross_out
            dx, out = self.output_backward(saved.cross, t, dx, params.cross_scale, d_normed, d_out, dropout[1])
            dx = self.input_backward(saved.cross, t, dx, self.attend_source(a, t, out))
        d_normed, d_out = gradient.attention_normed, gradient.attention_out
        dx, out = self.output_backward(saved.attention, t, dx, params.attention_scale, d_normed, d_out, dropout[0])
        return self.input_backward(saved.attention, t, dx, self.attend(a, t, out))

    def output_backward(
        self,
        sublayer: SublayerActivations,
        t: int,
        dx: Tensor,
        scale: Tensor | None,
        d_normed: Tensor | None,
        d_out: Tensor,
        dropout: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of the residual sum and of the sublayer's output."""
        if d_normed is not None:
            assert sublayer.normed is not None and scale is not None
            d_normed[t - self.start] = dx
            dx = standardize_backward(dx * scale, sublayer.normed[t], sublayer.rstd[t])
        return dx, d_out[t - self.start].copy_(dx if dropout is None else dx * dropout)

    def input_backward(self, sublayer: SublayerActivations, t: int, dx: Tensor, d_input: Tensor) -> Tensor:
        if self.plan.pre_norm:
            d_input = standardize_backward(d_input, sublayer.input[t], sublayer.rstd[t])
        return dx + d_input

    def attend(self, a: int, t: int, dx: Tensor) -> Tensor:
        """Return the gradient of the attention sublayer's input. (B, D) -> (B, D)"""
        plan, params, saved, gradient = self.plan, self.inputs.layers[a], self.saved.layers[a], self.gradients.layers[a]
        B, H, K, width, current, i = plan.B, plan.H, plan.K, plan.width(a), int(plan.attend_to_current), t - self.start
        keys, values = window(plan, self.saved, a, t)
        d_z = torch.mm(dx, params.out, out=gradient.z[t]).view(B * H, K, 1)
        grad = pooled_empty(dx, B * H, width, 1)
        torch.bmm(values, d_z, out=grad[:, current:])
        current_kv = saved.current_kv[t].view(B, 2, H, K) if saved.current_kv is not None else None
        if current_kv is not None:
            grad.view(B, H, width)[..., 0] = (current_kv[:, 1] * d_z.view(B, H, K)).sum(-1)
        dropout = self.dropout.attention[a]
        factor = dropout[i] if dropout is not None else None
        scores = softmax_backward(grad.view(B, H, width), saved.self_attention.weights[t], factor, gradient.scores[t])
        query = gradient.query[i].view(B * H, 1, K)
        torch.mm(scores.view(B * H, width), self.inputs.position[:width], out=query.view(B * H, K))
        query.baddbmm_(scores.view(B * H, 1, width)[..., current:], keys)
        if current_kv is not None:
            query.view(B, H, K).addcmul_(scores[..., :1], current_kv[:, 0])
        d_input = gradient.query[i] @ params.query
        if current_kv is not None:
            d_input += self.current_kv_backward(a, t, scores[..., :1])
        return d_input

    def current_kv_backward(self, a: int, t: int, score: Tensor) -> Tensor:
        """Return the gradient through the token's own key and value. score (B, H, 1) -> (B, D)"""
        plan, attention, gradient = self.plan, self.saved.layers[a].self_attention, self.gradients.layers[a]
        assert gradient.current_kv is not None
        flat = gradient.current_kv[t - self.start]
        current_kv = flat.view(plan.B, 2, plan.H, plan.K)
        torch.mul(attention.query[t].view(plan.B, plan.H, plan.K), score, out=current_kv[:, 0])
        torch.mul(gradient.z[t].view(plan.B, plan.H, plan.K), attention.used_weights[t][..., :1], out=current_kv[:, 1])
        return flat @ self.inputs.kv_groups[plan.kv_group[a]].weight

    def attend_source(self, a: int, t: int, dx: Tensor) -> Tensor:
        plan, params, gradient = self.plan, self.inputs.layers[a], self.gradients.layers[a]
        attention = self.saved.layers[a].cross_attention
        assert attention is not None
        assert params.cross_out is not None and params.cross_query is not None
        assert params.cross_keys is not None and params.cross_values is not None
        assert gradient.cross_z is not None and gradient.cross_scores is not None and gradient.cross_query is not None
        i, dropout = t - self.start, self.dropout.cross[a]
        z = torch.mm(dx, params.cross_out, out=gradient.cross_z[i]).view(plan.B, plan.H, plan.K, 1)
        grad = (params.cross_values @ z).squeeze(-1)
        scores = softmax_backward(
            grad, attention.weights[t], dropout[i] if dropout is not None else None, gradient.cross_scores[i]
        )
        out = gradient.cross_query[i].view(plan.B, plan.H, 1, plan.K)
        torch.matmul(scores.unsqueeze(-2), params.cross_keys, out=out)
        return gradient.cross_query[i] @ params.cross_query


def softmax_backward(grad: Tensor, weights: Tensor, dropout: Tensor | None, out: Tensor) -> Tensor:
    """Return the gradient of the scores, given that of the weights after dropout. All are (B, H, W)."""
    torch.mul(grad if dropout is None else grad * dropout, weights, out=out)
    return out.addcmul_(weights, out.sum(-1, keepdim=True), value=-1)


def diagonal(weights: Tensor, first: int, n: int, current: int) -> Tensor:
    """Return a view (BH, 1, n) of the weights of tokens first, first + 1, ... at distance 1, 2, ..."""
    _, B, H, width = weights.shape
    row = B * H * width
    return weights.as_strided((B * H, 1, n), (width, 1, row + 1), weights.storage_offset() + first * row + current)


class TorchBackend:
    """Backend of a Feedback segment."""

    def forward(self, plan: Plan, inputs: Inputs, saved: Activations) -> None:
        Forward(plan, inputs, saved).run()

    def backward(
        self,
        plan: Plan,
        inputs: Inputs,
        saved: Activations,
        d_y: Tensor,
        d_memory: Tensor,
        gradients: Gradients,
        tokens: range,
    ) -> None:
        Backward(plan, inputs, saved, d_y, d_memory, gradients, tokens).run()
