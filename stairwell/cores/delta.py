"""DeltaNet and DeltaProduct: a linear recurrence whose memory is one matrix per head, corrected at every token.

    S  <-  a_t S                                     decay, if gated
    S  <-  S + b_j k_j (v_j - S^T k_j)^T             for j = 1..n: the value of S at k_j moves toward v_j by b_j
    o_t  =  norm(S^T q_t)                            the value of S at q_t
    z_t  =  x_t + W_o o_t,   y_t = z_t + FFN(norm(z_t))

    q_t, k_j = SiLU(W u_t) / |SiLU(W u_t)|,   v_j = SiLU(W u_t),   b_j = 2 sigmoid(W u_t),   u_t = norm(x_t)

A token's transition is a product of n matrices I - b_j k_j k_j^T, each with the eigenvalue 1 - b_j at k_j. One product
is DeltaNet (Yang et al., arXiv 2406.06484), several are DeltaProduct (Siems et al., arXiv 2502.10297); with `gated` the
state decays once per token (Yang et al., arXiv 2412.06464). With b_j above 1 the eigenvalue is negative, and with 2 the
transition is a reflection; without negative eigenvalues such a layer cannot compute parity (Grazzi et al., arXiv
2411.12537). Differences from the authors' models: no short convolutions before q, k and v, so that tokens interact only
through the matrices; no output gate; a_t = sigmoid(W u_t + c) instead of Mamba's scaled softplus.

Letters: B batch size, T tokens, D width, H heads, K head width, F inner width, L layers, n products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import check_at_least
from stairwell.cores.core import Core, CoreState
from stairwell.cores.sliding_window import next_counts, tokens_since_start
from stairwell.layers import HeadsConfig
from stairwell.state import CARRY


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(HeadsConfig):
    products: int = 1
    "Corrections of the matrix per token; 1 is DeltaNet, more are DeltaProduct."
    negative_eigenvalues: bool = True
    "Corrections with b_j up to 2, a reflection, as state tracking needs; up to 1 otherwise."
    gated: bool = False
    "Learned decay per head and token."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "products")


@dataclass(frozen=True, eq=False)
class DeltaNetState(CoreState):
    matrix: Tensor = field(metadata=CARRY)  # (B, L, H, K, K): keys by values


class Corrections(NamedTuple):
    """The corrections of a layer's matrices at each token."""

    q: Tensor  # (B, T, H, K)
    k: Tensor  # (B, T, n, H, K)
    v: Tensor  # (B, T, n, H, K)
    b: Tensor  # (B, T, n, H)
    log_a: Tensor | None  # (B, T, H), if gated

    def part(self, tokens: slice) -> Corrections:
        log_a = self.log_a[:, tokens] if self.log_a is not None else None
        return Corrections(self.q[:, tokens], self.k[:, tokens], self.v[:, tokens], self.b[:, tokens], log_a)


class DeltaLayer(nn.Module):
    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__()
        D, H, K, n = config.width, config.heads, config.K, config.products
        self.config = config
        self.mix_norm = nn.LayerNorm(D)
        self.query = nn.Linear(D, H * K, bias=False)
        self.key = nn.Linear(D, n * H * K, bias=False)
        self.value = nn.Linear(D, n * H * K, bias=False)
        self.strength = nn.Linear(D, n * H, bias=False)
        if config.gated:
            self.keep = nn.Linear(D, H)
            nn.init.constant_(self.keep.bias, 4.0)  # almost no decay at first
        self.head_norm = nn.RMSNorm(K, eps=1e-5)
        self.out = nn.Linear(H * K, D, bias=False)
        self.feed_forward_norm = nn.LayerNorm(D)
        self.feed_forward = nn.Sequential(nn.Linear(D, config.F), nn.ReLU(), nn.Linear(config.F, D))

    def corrections(self, x: Tensor) -> Corrections:
        """Return everything that does not depend on the matrices. x (B, T, D)"""
        H, K, n = self.config.heads, self.config.K, self.config.products
        u = self.mix_norm(x)
        max_b = 2 if self.config.negative_eigenvalues else 1
        return Corrections(
            q=F.normalize(torch.unflatten(F.silu(self.query(u)), -1, (H, K)), dim=-1),
            k=F.normalize(torch.unflatten(F.silu(self.key(u)), -1, (n, H, K)), dim=-1),
            v=torch.unflatten(F.silu(self.value(u)), -1, (n, H, K)),
            b=max_b * torch.unflatten(self.strength(u).sigmoid(), -1, (n, H)),
            log_a=F.logsigmoid(self.keep(u)) if self.config.gated else None,
        )

    def output(self, x: Tensor, read: Tensor) -> Tensor:
        """Return the layer's output (B, T, D). x (B, T, D), read (B, T, H, K): S^T q"""
        z: Tensor = x + self.out(self.head_norm(read).flatten(2))
        y: Tensor = z + self.feed_forward(self.feed_forward_norm(z))
        return y


class DeltaNet(Core[DeltaNetConfig, DeltaNetState]):
    state_type = DeltaNetState
    final_norm = True

    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__(config)
        self.layers = cast(Sequence[DeltaLayer], nn.ModuleList(DeltaLayer(config) for _ in range(config.layers)))

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        if max_crop:
            raise ValueError("DeltaNet does not support crop; use max_crop=0")
        config = self.config
        return {"matrix": (config.layers, config.heads, config.K, config.K)}

    def reference(self, x: Tensor, state: DeltaNetState, start: Tensor | None = None) -> tuple[Tensor, DeltaNetState]:
        T, matrices = x.shape[1], []
        for l, layer in enumerate(self.layers):
            corrections = layer.corrections(x)
            S, reads = state.matrix[:, l], []  # (B, H, K, K)
            for t in range(T):
                if start is not None:
                    S = S.masked_fill(start[:, t, None, None, None], 0)
                S, read = correct(S, corrections, t)
                reads.append(read)
            x = layer.output(x, torch.stack(reads, 1))
            matrices.append(S)
        return x, self.next_state(state, start, T, matrices)

    def next_state(
        self, state: DeltaNetState, start: Tensor | None, T: int, matrices: Sequence[Tensor]
    ) -> DeltaNetState:
        """Return the state after T tokens, with the matrices (B, H, K, K) of each layer."""
        since_start = tokens_since_start(state.count, start, T)
        count, croppable = next_counts(state.count, state.croppable, start, since_start, 0)
        return DeltaNetState(count, croppable, torch.stack(list(matrices), 1))


def correct(S: Tensor, corrections: Corrections, t: int) -> tuple[Tensor, Tensor]:
    """Apply the corrections of token t: matrices S (B, H, K, K) -> the matrices after it, the read S^T q_t (B, H, K)"""
    q, k, v, b, log_a = corrections
    if log_a is not None:
        S = S * log_a[:, t].exp()[..., None, None]
    for k_j, v_j, b_j in zip(k[:, t].unbind(1), v[:, t].unbind(1), b[:, t].unbind(1), strict=True):
        value = torch.einsum("bhk,bhkv->bhv", k_j, S)  # S^T k_j
        S = S + torch.einsum("bhk,bhv->bhkv", k_j, b_j[..., None] * (v_j - value))
    return S, torch.einsum("bhk,bhkv->bhv", q[:, t], S)
