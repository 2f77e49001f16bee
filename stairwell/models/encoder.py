"""The encoder of a sequence-to-sequence model: a bidirectional Transformer.

    z = x + drop(Attn(norm(x)));   y = z + drop(FF(norm(z)))          pre-norm; with post-norm the norms follow the sums
    score(q, k) = q . k / sqrt(K)                                     sinusoids are added to the embedding, or
    score(q, k) = q . (k + p_distance) / sqrt(K)                      p learned, one per signed distance

Padding is masked; without gradients it is not computed at all.
Letters: B batch size, J source tokens, N tokens without padding, D width, H heads, K head width, F inner width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import Config, check_at_least, check_probabilities
from stairwell.fast.linear import linear
from stairwell.layers import ResidualLayer, can_read_values


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    encoder_layers: int = 6
    "Number of encoder layers."
    encoder_heads: int = 4
    "Number of attention heads of the encoder."
    encoder_inner: int | None = None
    "Inner width of the encoder's feed-forward sublayers; 4 times the width if not given."
    encoder_norm: Literal["pre", "post"] = "pre"
    "Normalization before (pre) or after (post) each encoder sublayer."
    encoder_positions: Literal["sinusoidal", "relative"] = "sinusoidal"
    "Sinusoidal embeddings added to the source embedding, or learned relative position embeddings."
    encoder_distance: int = 64
    "Farthest distance with its own relative position embedding; farther ones share it."
    encoder_attn_drop: float = 0.0
    "Dropout rate of the encoder's attention weights."
    encoder_relu_drop: float = 0.0
    "Dropout rate of the encoder's ReLU."
    encoder_dropout: float = 0.0
    "Dropout rate of each encoder sublayer's output, before the residual sum."
    encoder_layer_drop: float = 0.0
    "LayerDrop: rate at which a whole encoder layer is skipped, sampled once per layer and call."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "encoder_layers", "encoder_heads", "encoder_distance", "encoder_inner")
        check_probabilities(self, "encoder_dropout", "encoder_attn_drop", "encoder_relu_drop", "encoder_layer_drop")


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
        self.distances = nn.Parameter(torch.zeros(2 * config.encoder_distance + 1, K)) if relative else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode x (B, J, D) -> (B, J, D); mask (B, J) bool is true where there is a source token."""
        if self.distances is None:
            x = x + sinusoids(x)
        layer_drop = self.config.encoder_layer_drop if self.training else 0.0
        random = torch.rand(len(self.layers)).tolist() if layer_drop else [1.0] * len(self.layers)
        unpadded = Unpadded(mask) if can_read_values(x) and not (self.training or torch.is_grad_enabled()) else None
        if unpadded is not None:
            x = unpadded.gather(x)
        for layer, number in zip(self.layers, random, strict=True):
            if number >= layer_drop:
                x = layer(x, mask, self.distances, unpadded)
        y: Tensor = self.norm(x)
        return y if unpadded is None else unpadded.scatter(y)


class Unpadded:
    """Converts between padded (B, J, n) and unpadded (N, n) tensors."""

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        self.index = None if bool(mask.all()) else mask.flatten().nonzero().flatten()  # (N,)

    def gather(self, x: Tensor) -> Tensor:
        """Remove padding: (B, J, n) -> (N, n)."""
        return x.flatten(0, 1) if self.index is None else x.flatten(0, 1)[self.index]

    def scatter(self, x: Tensor) -> Tensor:
        """Restore padding, as zeros: (N, n) -> (B, J, n)."""
        if self.index is not None:
            x = x.new_zeros(self.shape.numel(), x.shape[-1]).index_copy_(0, self.index, x)
        return torch.unflatten(x, 0, self.shape)


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

    def forward(self, x: Tensor, mask: Tensor, distances: Tensor | None, unpadded: Unpadded | None = None) -> Tensor:
        """Apply the layer: (B, J, D) -> (B, J, D); with `unpadded`, (N, D) -> (N, D) without autograd."""
        if unpadded is not None:

            def attend_unpadded(normed: Tensor) -> Tensor:
                projected = unpadded.scatter(linear(normed, self.project.weight))
                return linear(unpadded.gather(self.attend(projected, mask, distances)), self.out.weight)

            def feed_forward_unpadded(normed: Tensor) -> Tensor:
                active = linear(normed, self.inner.weight, self.inner.bias, relu=True)
                return linear(active, self.outer.weight, self.outer.bias)

            return self.apply_sublayers(x, attend_unpadded, None, feed_forward_unpadded)

        def attend(normed: Tensor) -> Tensor:
            return self.dropout(self.out(self.attend(self.project(normed), mask, distances)))

        def feed_forward(normed: Tensor) -> Tensor:
            active = F.dropout(F.relu(self.inner(normed)), self.config.encoder_relu_drop, self.training)
            return self.dropout(self.outer(active))

        return self.apply_sublayers(x, attend, None, feed_forward)

    def dropout(self, z: Tensor) -> Tensor:
        return F.dropout(z, self.config.encoder_dropout, self.training)

    def attend(self, projected: Tensor, mask: Tensor, distances: Tensor | None) -> Tensor:
        """Attend with projected queries, keys and values. (B, J, 3 D) -> (B, J, D)"""
        B, J, D = *mask.shape, projected.shape[-1] // 3
        H = self.config.encoder_heads
        q, k, v = projected.view(B, J, 3, H, D // H).permute(2, 0, 3, 1, 4)  # each (B, H, J, K)
        visible = mask[:, None, None]
        if distances is not None:
            bias = relative_scores(q, distances)
            visible = bias.masked_fill(~visible, -torch.inf)
        rate = self.config.encoder_attn_drop if self.training else 0.0
        z = F.scaled_dot_product_attention(q, k, v, visible, rate)
        # The strides depend on the implementation, so a traced graph must not rely on them.
        z = z.contiguous() if torch.compiler.is_compiling() else z
        return z.transpose(1, 2).reshape(B, J, D)


def relative_scores(q: Tensor, distances: Tensor) -> Tensor:
    """Return q . p_distance / sqrt(K) for every pair of positions. q (B, H, J, K), distances (2 P + 1, K) -> (B, H, J,
    J)"""
    J, farthest = q.shape[2], distances.shape[0] // 2
    position = torch.arange(J, device=q.device)
    index = (position - position[:, None]).clamp(-farthest, farthest) + farthest
    scores = q @ distances.T / math.sqrt(q.shape[-1])
    return scores.gather(-1, index.expand(*q.shape[:2], J, J))


def sinusoids(x: Tensor) -> Tensor:
    """Return the sinusoidal embeddings of Vaswani et al. (2017), (J, D), for x (B, J, D)."""
    _, J, D = x.shape
    # In float64, so that a position has the same embedding whatever the dtype of the model.
    position = torch.arange(J, device=x.device, dtype=torch.float64)[:, None]
    even = torch.arange(0, D, 2, device=x.device, dtype=torch.float64)
    angle = position * torch.exp(-math.log(10_000.0) * even / D)  # (J, D / 2)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :D].to(x.dtype)
