"""The fast engine of DeltaNet: native code per head (`csrc/delta.h`), or matrix products per chunk of tokens.

The m-th correction adds k_m u_m^T to the matrix, and u_m depends on the earlier ones of its chunk by a triangular
system (after Yang et al., arXiv 2406.06484, who invert it for all chunks at once). With S the matrix before the chunk,
d_im the decay of correction m until correction i (1 without a gate, 0 across a start), and d_i that of S:

    u_i = b_i (v_i - d_i S^T k_i - sum over m < i of d_im (k_m . k_i) u_m)          one triangular solve per chunk
    o_i = d_i S^T q_i + sum over m <= i of d_im (k_m . q_i) u_m
    S'  = d_M S + sum over m of d_Mm k_m u_m^T

Letters: B batch, T tokens, H heads, K head width, n corrections per token, M corrections of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stairwell.cores.delta import Corrections, DeltaNet, DeltaNetState
from stairwell.fast import native
from stairwell.fast.buffer_pool import pooled_empty
from stairwell.fast.engine import FastEngine
from stairwell.fast.first_order import FirstOrderFunction, first_order_only

CHUNK_CORRECTIONS = 20  # corrections per chunk: more mean fewer calls, but more work in each
MIN_TOKENS = 3  # for shorter calls the reference forward is as fast as the PyTorch engine


@dataclass(frozen=True)
class DeltaNetEngine(FastEngine):
    """Run DeltaNet per head in native code, or per chunk in PyTorch."""

    instruction_set: int | None = native.BEST_INSTRUCTION_SET  # of native code; None: PyTorch

    def in_native(self, core: DeltaNet, like: Tensor) -> bool:
        return self.instruction_set is not None and native.supports(like)

    def __call__(
        self,
        core: DeltaNet,
        x: Tensor,
        state: DeltaNetState,
        start: Tensor | None = None,
    ) -> tuple[Tensor, DeltaNetState]:
        T, in_native = x.shape[1], self.in_native(core, x)
        if not in_native and T < MIN_TOKENS:
            return core.reference(x, state, start)
        matrices = []
        for l, layer in enumerate(core.layers):
            corrections = layer.corrections(x)
            if in_native:
                o, S = DeltaSegment.apply(self.instruction_set, start, *corrections, state.matrix[:, l])
            else:
                o, S = apply_corrections(state.matrix[:, l], corrections, start)
            x = layer.output(x, o)
            matrices.append(S)
        return x, core.next_state(state, start, T, matrices)


class DeltaSegment(FirstOrderFunction):
    """A layer's corrections in native code: start (B, T), q, k, v, b, log a, S before -> o, S after."""

    @staticmethod
    def forward(ctx: Any, instruction_set: int, start: Tensor | None, *tensors: Any) -> tuple[Tensor, Tensor]:
        q, k, v, b, log_a, S = tensors
        a = log_a.exp() if log_a is not None else None
        q, *inputs = native.contiguous([q, k, v, b, a, start, S])
        outputs = torch.empty_like(q), torch.empty_like(inputs[-1])
        torch.ops.stairwell.delta_forward(
            q, inputs, [*k.shape], list(outputs), instruction_set, native.FILL_SCRATCH_WITH_NAN
        )
        ctx.instruction_set = instruction_set
        ctx.save_for_backward(q, *inputs)
        return outputs

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, *inputs = ctx.saved_tensors
        k, v, b, a, _, S = inputs
        gradients = [pooled_empty(like, *like.shape) for like in (q, k, v, b, a, S)]
        torch.ops.stairwell.delta_backward(
            *(q, inputs, [*k.shape], native.contiguous([*d_outputs]), gradients),
            *(ctx.instruction_set, native.FILL_SCRATCH_WITH_NAN),
        )
        return None, None, *(gradient if gradient.numel() else None for gradient in gradients)


def apply_corrections(S: Tensor, corrections: Corrections, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return o (B, T, H, K) of a call and the matrices after it, given the matrices S (B, H, K, K) before."""
    T, size, outputs = corrections.q.shape[1], max(1, CHUNK_CORRECTIONS // corrections.k.shape[2]), []
    for first in range(0, T, size):
        tokens = slice(first, first + size)
        S, o = apply_chunk(S, corrections.part(tokens), start[:, tokens] if start is not None else None)
        outputs.append(o)
    return torch.cat(outputs, 1), S


def apply_chunk(S: Tensor, corrections: Corrections, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the matrices (B, H, K, K) after a chunk and its o (B, T, H, K), given the matrices S before."""
    n = corrections.k.shape[2]
    q = corrections.q.transpose(1, 2)  # (B, H, T, K)
    k, v = (tensor.flatten(1, 2).transpose(1, 2) for tensor in (corrections.k, corrections.v))  # (B, H, M, K)
    b = corrections.b.flatten(1, 2).transpose(1, 2)[..., None]  # (B, H, M, 1)
    decay, S_decay = decays(corrections, start)
    system = b * decay * (k @ k.mT)  # only the part below the diagonal is used
    u = solve(system, b * (v - S_decay * (k @ S)))
    last = slice(n - 1, None, n)  # the output is read after a token's last correction
    o = S_decay[..., last, :] * (q @ S) + (decay[..., last, :] * (q @ k.mT)) @ u
    S = S_decay[..., -1:, :] * S + (decay[..., -1, :, None] * k).mT @ u
    return S, o.transpose(1, 2)


def solve(system: Tensor, right: Tensor) -> Tensor:
    """Solve a unit lower triangular system, at least in float32: PyTorch does not support narrower dtypes."""
    dtype = torch.promote_types(right.dtype, torch.float32)
    solution = torch.linalg.solve_triangular(system.to(dtype), right.to(dtype), upper=False, unitriangular=True)
    return solution.to(right.dtype)


def decays(corrections: Corrections, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the decay of correction m until correction i, (B or 1, H or 1, M, M), and of S, (.., M, 1)."""
    n, M = corrections.k.shape[2], corrections.k.shape[1] * corrections.k.shape[2]
    decay, S_decay = corrections.b.new_ones(M, M).tril_()[None, None], corrections.b.new_ones(1, 1, M, 1)
    if start is not None:
        starts = start.cumsum(1).repeat_interleave(n, 1)[:, None, :, None]  # (B, 1, M, 1): starts so far
        decay, S_decay = decay * (starts == starts.mT), S_decay * (starts == 0)
    if corrections.log_a is not None:
        # The gate is applied before a token's first correction, so there is no decay between its corrections.
        log_a = corrections.log_a.cumsum(1).repeat_interleave(n, 1).transpose(1, 2)[..., None]  # (B, H, M, 1)
        ahead = torch.ones(M, M, dtype=torch.bool, device=log_a.device).triu_(1)
        decay = decay * (log_a - log_a.mT).masked_fill(ahead, 0).exp()
        S_decay = S_decay * log_a.exp()
    return decay, S_decay
