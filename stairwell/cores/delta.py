"""DeltaNet and its product form: a linear recurrence whose memory is one matrix a head, corrected token by token.

    S  <-  a_t S                                     forget, if gated
    S  <-  S + b_j k_j (v_j - S^T k_j)^T             for j = 1..n: what S holds at k_j moves to v_j, by the part b_j
    o_t  =  norm(S^T q_t)                            read what S holds at q_t
    z_t  =  x_t + W_o o_t,   y_t = z_t + FFN(norm(z_t))

    q_t, k_j = SiLU(W u_t) / |SiLU(W u_t)|,   v_j = SiLU(W u_t),   b_j = 2 sigmoid(W u_t),   u_t = norm(x_t)

A token's transition is a product of n matrices I - b_j k_j k_j^T, each with the eigenvalue 1 - b_j at k_j.
One product is DeltaNet (Yang et al., arXiv 2406.06484), several are DeltaProduct (Siems et al., arXiv 2502.10297); with
`gated` they forget once a token (Yang et al., arXiv 2412.06464). A b_j above 1 makes the eigenvalue negative, and 2 a
reflection: without them no such layer keeps a parity (Grazzi et al., arXiv 2411.12537). Left out: the short
convolutions that the authors put before q, k and v, so that tokens meet in the matrices alone, and the output gate.
Ours: a_t = sigmoid(W u_t + c), where they scale a softplus as Mamba does.

Letters: B rows, T tokens, D width, H heads, K head width, F inner width, L layers, n products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import Config, check_at_least
from stairwell.cores.core import Core, CoreState, Source
from stairwell.cores.time import ages, counts
from stairwell.field_types import CARRY
from stairwell.layers import Masks


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(Config):
    width: int = 256
    "width of the model (D)"
    layers: int = 2
    "number of layers (L)"
    heads: int = 4
    "number of heads (H), each with a matrix of its own"
    head_width: int | None = None
    "rows and columns of a head's matrix (K); width / heads if not given"
    inner: int | None = None
    "inner width of the feed-forward sublayer (F); 4 times the width if not given"
    products: int = 1
    "corrections of the matrix a token; 1 is DeltaNet, more are DeltaProduct"
    negative_eigenvalues: bool = True
    "let a correction go beyond its value, up to a reflection, as state tracking needs"
    gated: bool = False
    "let each head forget at each token"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "width", "layers", "heads", "head_width", "inner", "products")
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads; "
                f"choose a multiple, or give head_width (for instance {self.width // self.heads or 1})"
            )

    @property
    def K(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def F(self) -> int:
        return self.inner or 4 * self.width


@dataclass(frozen=True, eq=False)
class DeltaNetState(CoreState):
    matrix: Tensor = field(metadata=CARRY)  # (B, L, H, K, K): keys by values


class Corrections(NamedTuple):
    """What a layer does to its matrices at each token."""

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
            nn.init.constant_(self.keep.bias, 4.0)  # at first nearly everything is kept
        self.head_norm = nn.RMSNorm(K, eps=1e-5)
        self.out = nn.Linear(H * K, D, bias=False)
        self.feed_forward_norm = nn.LayerNorm(D)
        self.feed_forward = nn.Sequential(nn.Linear(D, config.F), nn.ReLU(), nn.Linear(config.F, D))

    def corrections(self, x: Tensor) -> Corrections:
        """x (B, T, D) -> all that does not depend on the matrices."""
        H, K, n = self.config.heads, self.config.K, self.config.products
        u = self.mix_norm(x)
        most = 2 if self.config.negative_eigenvalues else 1
        return Corrections(
            q=F.normalize(F.silu(self.query(u)).unflatten(-1, (H, K)), dim=-1),
            k=F.normalize(F.silu(self.key(u)).unflatten(-1, (n, H, K)), dim=-1),
            v=F.silu(self.value(u)).unflatten(-1, (n, H, K)),
            b=most * self.strength(u).sigmoid().unflatten(-1, (n, H)),
            log_a=F.logsigmoid(self.keep(u)) if self.config.gated else None,
        )

    def leave(self, x: Tensor, read: Tensor) -> Tensor:
        """x (B, T, D) and what was read from the matrices (B, T, H, K) -> the layer's output (B, T, D)"""
        z = x + self.out(self.head_norm(read).flatten(2))
        return z + self.feed_forward(self.feed_forward_norm(z))


class DeltaNet(Core):
    state_type = DeltaNetState
    final_norm = True

    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__(config.width)
        self.config = config
        self.layers = cast(Sequence[DeltaLayer], nn.ModuleList(DeltaLayer(config) for _ in range(config.layers)))

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        if max_crop:
            raise ValueError("a DeltaNet cannot take tokens back, so it has no max_crop; use max_crop=0")
        config = self.config
        return {"matrix": (config.layers, config.heads, config.K, config.K)}

    def walk(
        self,
        x: Tensor,
        state: DeltaNetState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, DeltaNetState]:
        matrices = []
        for l, layer in enumerate(self.layers):
            todo = layer.corrections(x)
            S, reads = state.matrix[:, l], []  # (B, H, K, K)
            for t in range(x.shape[1]):
                if start is not None:
                    S = S.masked_fill(start[:, t, None, None, None], 0)
                S, read = correct(S, todo, t)
                reads.append(read)
            x = layer.leave(x, torch.stack(reads, 1))
            matrices.append(S)
        return x, self.after(state, start, x.shape[1], matrices)

    def after(self, state: DeltaNetState, start: Tensor | None, T: int, matrices: Sequence[Tensor]) -> DeltaNetState:
        """The state when each layer's matrices have become these (B, H, K, K)."""
        count, croppable = counts(state.count, state.croppable, start, ages(state.count, start, T), 0)
        return DeltaNetState(count, croppable, torch.stack(list(matrices), 1))


def correct(S: Tensor, todo: Corrections, t: int) -> tuple[Tensor, Tensor]:
    """Token t: the matrices before (B, H, K, K) -> the matrices after, and what is read from them (B, H, K)"""
    if todo.log_a is not None:
        S = S * todo.log_a[:, t].exp()[..., None, None]
    for k, v, b in zip(todo.k[:, t].unbind(1), todo.v[:, t].unbind(1), todo.b[:, t].unbind(1), strict=True):
        held = torch.einsum("bhk,bhkv->bhv", k, S)
        S = S + torch.einsum("bhk,bhv->bhkv", k, b[..., None] * (v - held))
    return S, torch.einsum("bhk,bhkv->bhv", todo.q[:, t], S)
