"""The encoder of a sequence-to-sequence model: a parallel, bidirectional Transformer that reads a source at once.

    z = x + drop(Attn(norm(x)));   y = z + drop(FF(norm(z)))          pre-norm; with post-norm the norms follow the sums
    score(q, k) = q . k / sqrt(K)                                     sinusoids are added to the embedding, or
    score(q, k) = q . (k + p_distance) / sqrt(K)                      p learned, one a signed distance, as in the cores

What pads the shorter sources of a batch is seen by nobody; where no gradient is asked for it is not even computed.
Letters: B rows, J source tokens, N tokens that are there, D width, H heads, K head width, F inner width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import Config, check_at_least, check_rates
from stairwell.fast.products import linear
from stairwell.layers import ResidualLayer, can_read_values


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    encoder_layers: int = 6
    "number of layers of the encoder"
    encoder_heads: int = 4
    "number of attention heads of the encoder"
    encoder_inner: int | None = None
    "inner width of the encoder's feed-forward sublayers; 4 times the width if not given"
    encoder_norm: Literal["pre", "post"] = "pre"
    "normalize before or after each sublayer of the encoder"
    encoder_positions: Literal["sinusoidal", "relative"] = "sinusoidal"
    "sinusoids added to the source's embedding, or learned vectors for the distance between two source tokens"
    encoder_distance: int = 64
    "relative: the farthest distance that is told apart; farther ones share its vector"
    encoder_attn_drop: float = 0.0
    "dropout rate on the encoder's attention weights"
    encoder_relu_drop: float = 0.0
    "dropout rate on the encoder's ReLU"
    encoder_dropout: float = 0.0
    "dropout rate on the output of each sublayer of the encoder, before it is added"
    encoder_layer_drop: float = 0.0
    "LayerDrop: rate at which a whole layer of the encoder is skipped, drawn once a layer and call"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "encoder_layers", "encoder_heads", "encoder_distance", "encoder_inner")
        check_rates(self, "encoder_dropout", "encoder_attn_drop", "encoder_relu_drop", "encoder_layer_drop")


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        if width % config.encoder_heads:
            raise ValueError(f"width {width} is not divisible by {config.encoder_heads} encoder_heads")
        self.config = config
        self.layers = nn.ModuleList(EncoderLayer(config, width) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(width) if config.encoder_norm == "pre" else nn.Identity()
        relative = config.encoder_positions == "relative"
        K = width // config.encoder_heads
        # Zero at first: a distance means nothing yet.
        self.distances = nn.Parameter(torch.zeros(2 * config.encoder_distance + 1, K)) if relative else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, J, D), mask (B, J) bool, true where the source is there -> (B, J, D)"""
        if self.distances is None:
            x = x + sinusoids(x)
        drop = self.config.encoder_layer_drop if self.training else 0.0
        drawn = torch.rand(len(self.layers)).tolist() if drop else [1.0] * len(self.layers)
        there = Unpadded(mask) if can_read_values(x) and not (self.training or torch.is_grad_enabled()) else None
        if there is not None:
            x = there.pick(x)
        for layer, number in zip(self.layers, drawn, strict=True):
            if number >= drop:
                x = layer(x, mask, self.distances, there)
        return self.norm(x) if there is None else there.spread(self.norm(x))


class Unpadded:
    """The tokens that are there, one after the other: (N, D) instead of (B, J, D)."""

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        self.place = None if bool(mask.all()) else mask.flatten().nonzero().flatten()  # (N,)

    def pick(self, x: Tensor) -> Tensor:
        """(B, J, n) -> (N, n)"""
        return x.flatten(0, 1) if self.place is None else x.flatten(0, 1)[self.place]

    def spread(self, x: Tensor) -> Tensor:
        """(N, n) -> (B, J, n), zero where nothing is."""
        if self.place is not None:
            x = x.new_zeros(self.shape.numel(), x.shape[-1]).index_copy_(0, self.place, x)
        return x.unflatten(0, self.shape)


class EncoderLayer(ResidualLayer, nn.Module):
    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        self.config = config
        inner = config.encoder_inner or 4 * width
        self.pre = config.encoder_norm == "pre"
        self.attention_norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)

    def forward(self, x: Tensor, mask: Tensor, distances: Tensor | None, there: Unpadded | None = None) -> Tensor:
        """(B, J, D) -> (B, J, D); or (N, D) -> (N, D), the tokens that are `there`, outside autograd"""
        if there is not None:
            return self.apply_sublayers(
                x, lambda normed: self.attend_there(normed, mask, distances, there), None, self.feed_there
            )

        def attend(normed: Tensor) -> Tensor:
            return self.drop(self.out(self.attend(self.project(normed), mask, distances)))

        def feed_forward(normed: Tensor) -> Tensor:
            return self.drop(self.feed_forward(normed))

        return self.apply_sublayers(x, attend, None, feed_forward)

    def drop(self, z: Tensor) -> Tensor:
        return F.dropout(z, self.config.encoder_dropout, self.training)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.outer(F.dropout(F.relu(self.inner(x)), self.config.encoder_relu_drop, self.training))

    def attend_there(self, x: Tensor, mask: Tensor, distances: Tensor | None, there: Unpadded) -> Tensor:
        read = self.attend(there.spread(linear(x, self.project.weight)), mask, distances)
        return linear(there.pick(read), self.out.weight)

    def feed_there(self, x: Tensor) -> Tensor:
        active = linear(x, self.inner.weight, self.inner.bias, relu=True)
        return linear(active, self.outer.weight, self.outer.bias)

    def attend(self, projected: Tensor, mask: Tensor, distances: Tensor | None) -> Tensor:
        """Between the projections. (B, J, 3 D) -> (B, J, D)"""
        B, J, D = *mask.shape, projected.shape[-1] // 3
        H = self.config.encoder_heads
        q, k, v = projected.view(B, J, 3, H, D // H).permute(2, 0, 3, 1, 4)  # each (B, H, J, K)
        visible = mask[:, None, None]
        if distances is not None:
            bias = relative_scores(q, distances)
            visible = bias.masked_fill(~visible, -torch.inf)
        rate = self.config.encoder_attn_drop if self.training else 0.0
        z = F.scaled_dot_product_attention(q, k, v, visible, rate)
        return z.transpose(1, 2).reshape(B, J, D)


def relative_scores(q: Tensor, distances: Tensor) -> Tensor:
    """q . p_distance / sqrt(K) for every pair of places. q (B, H, J, K), distances (2 P + 1, K) -> (B, H, J, J)"""
    J, farthest = q.shape[2], distances.shape[0] // 2
    place = torch.arange(J, device=q.device)
    index = (place - place[:, None]).clamp(-farthest, farthest) + farthest
    scores = q @ distances.T / math.sqrt(q.shape[-1])
    return scores.gather(-1, index.expand(*q.shape[:2], J, J))


def sinusoids(x: Tensor) -> Tensor:
    """The sines and cosines of Vaswani et al. (2017), (J, D), of the type and on the device of x (B, J, D)."""
    _, J, D = x.shape
    # In double precision, so that a place has the same numbers whatever the model's type.
    place = torch.arange(J, device=x.device, dtype=torch.float64)[:, None]
    even = torch.arange(0, D, 2, device=x.device, dtype=torch.float64)
    angle = place * torch.exp(-math.log(10_000.0) * even / D)  # (J, D / 2)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :D].to(x.dtype)
