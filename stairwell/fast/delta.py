"""The fast engine of DeltaNet: the walk of `stairwell.cores.delta`, head by head in C++ (`csrc/delta.h`) where that is,
elsewhere a chunk of tokens at a time by matrix products.

The m-th correction adds k_m u_m^T to the matrix, and u_m depends on the earlier ones of its chunk by a triangular
system (after Yang et al., arXiv 2406.06484, who invert it for all chunks at once). With S the matrix before the chunk,
d_im what forgetting leaves of correction m at correction i (1 without a gate, 0 across a start), and d_i what it leaves
of S:

    u_i = b_i (v_i - d_i S^T k_i - sum over m < i of d_im (k_m . k_i) u_m)          one triangular solve a chunk
    o_i = d_i S^T q_i + sum over m <= i of d_im (k_m . q_i) u_m
    S'  = d_M S + sum over m of d_Mm k_m u_m^T

Letters: B rows, T tokens, H heads, K head width, n products, M corrections of a chunk, n for each of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source
from stairwell.cores.delta import Corrections, DeltaNet, DeltaNetState
from stairwell.fast import native
from stairwell.fast.engine import FastEngine
from stairwell.fast.first_order import FirstOrderFunction, once
from stairwell.fast.memory import recycled
from stairwell.layers import Masks

CHUNK = 20  # corrections that are solved for at once: with more there are fewer calls, and more work in each
SHORTEST = 3  # tokens of a call; for fewer the loop in PyTorch is as fast


@dataclass(frozen=True)
class DeltaNetEngine(FastEngine):
    """The reference's walk, head by head or chunk by chunk."""

    instruction_set: int | None = native.BEST  # of native code; none: PyTorch's operations

    def in_native(self, core: DeltaNet, like: Tensor) -> bool:
        return self.instruction_set is not None and native.supports(like)

    def __call__(
        self,
        core: DeltaNet,
        x: Tensor,
        state: DeltaNetState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, DeltaNetState]:
        T, in_native = x.shape[1], self.in_native(core, x)
        if not in_native and T < SHORTEST:
            return core.walk(x, state, start, source, masks)
        matrices = []
        for l, layer in enumerate(core.layers):
            todo = layer.corrections(x)
            if in_native:
                read, S = DeltaSegment.apply(self.instruction_set, start, *todo, state.matrix[:, l])
            else:
                read, S = correct_all(state.matrix[:, l], todo, start)
            x = layer.leave(x, read)
            matrices.append(S)
        return x, core.after(state, start, T, matrices)


class DeltaSegment(FirstOrderFunction):
    """A layer's matrices along a call, in C++: start (B, T), q, k, v, b, log a, S before -> what is read, S after"""

    @staticmethod
    def forward(ctx: Any, instruction_set: int, start: Tensor | None, *tensors: Any) -> tuple[Tensor, Tensor]:
        q, k, v, b, log_a, S = tensors
        a = log_a.exp() if log_a is not None else None
        q, *given = native.dense([q, k, v, b, a, start, S])
        read, after = torch.empty_like(q), torch.empty_like(given[-1])
        torch.ops.stairwell.delta_forward(q, given, [*k.shape], [read, after], instruction_set, native.POISON)
        ctx.instruction_set = instruction_set
        ctx.save_for_backward(q, *given)
        return read, after

    @staticmethod
    @once
    def backward(ctx: Any, *come: Tensor) -> tuple[Tensor | None, ...]:
        q, *given = ctx.saved_tensors
        k, v, b, a, _, S = given
        made = [recycled(like, *like.shape) for like in (q, k, v, b, a, S)]
        torch.ops.stairwell.delta_backward(
            q, given, [*k.shape], native.dense([*come]), made, ctx.instruction_set, native.POISON
        )
        return None, None, *(gradient if gradient.numel() else None for gradient in made)


def correct_all(S: Tensor, todo: Corrections, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """The matrices before (B, H, K, K) -> what each token of a call reads (B, T, H, K), and the matrices after"""
    T, size, reads = todo.q.shape[1], max(1, CHUNK // todo.k.shape[2]), []
    for first in range(0, T, size):
        tokens = slice(first, first + size)
        S, read = correct_chunk(S, todo.part(tokens), start[:, tokens] if start is not None else None)
        reads.append(read)
    return torch.cat(reads, 1), S


def correct_chunk(S: Tensor, todo: Corrections, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """The matrices before (B, H, K, K) -> the matrices after the chunk, and what each token reads (B, T, H, K)"""
    n = todo.k.shape[2]
    q = todo.q.transpose(1, 2)  # (B, H, T, K)
    k, v = (tensor.flatten(1, 2).transpose(1, 2) for tensor in (todo.k, todo.v))  # (B, H, M, K)
    b = todo.b.flatten(1, 2).transpose(1, 2)[..., None]  # (B, H, M, 1)
    left, left_of_S = remains(todo, start)
    system = b * left * (k @ k.mT)  # its diagonal is taken for ones, what lies above it is not read
    wanted = b * (v - left_of_S * (k @ S))
    u = solve(system, wanted)
    asked = slice(n - 1, None, n)  # a token reads after its last correction
    read = left_of_S[..., asked, :] * (q @ S) + (left[..., asked, :] * (q @ k.mT)) @ u
    S = left_of_S[..., -1:, :] * S + (left[..., -1, :, None] * k).mT @ u
    return S, read.transpose(1, 2)


def solve(system: Tensor, wanted: Tensor) -> Tensor:
    """The triangular system with ones on its diagonal. PyTorch solves none in types narrower than float32."""
    dtype = torch.promote_types(wanted.dtype, torch.float32)
    solved = torch.linalg.solve_triangular(system.to(dtype), wanted.to(dtype), upper=False, unitriangular=True)
    return solved.to(wanted.dtype)


def remains(todo: Corrections, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """What is left at correction i of correction m, (B or 1, H or 1, M, M), and of the matrices before, (.., M, 1)."""
    n, M = todo.k.shape[2], todo.k.shape[1] * todo.k.shape[2]
    left, left_of_S = todo.b.new_ones(M, M).tril_()[None, None], todo.b.new_ones(1, 1, M, 1)
    if start is not None:
        begun = start.cumsum(1).repeat_interleave(n, 1)[:, None, :, None]  # (B, 1, M, 1): starts so far
        left, left_of_S = left * (begun == begun.mT), left_of_S * (begun == 0)
    if todo.log_a is not None:
        # Forgetting comes before a token's first correction, so its corrections forget nothing of each other.
        log_a = todo.log_a.cumsum(1).repeat_interleave(n, 1).transpose(1, 2)[..., None]  # (B, H, M, 1)
        ahead = torch.ones(M, M, dtype=torch.bool, device=log_a.device).triu_(1)
        left = left * (log_a - log_a.mT).masked_fill(ahead, 0).exp()
        left_of_S = left_of_S * log_a.exp()
    return left, left_of_S
