"""The maths of one call, without time: attention over a memory, feed-forward, norms, positions, adaptive span.

    score(q, slot) = q . (k_slot + p_distance) / sqrt(K)        p learned, one a distance, for all heads and layers
    weights        = softmax over the visible slots, times the span's ramp, renormalized
    Attn           = W_o sum of weights * v_slot

Nothing here knows which slot holds what: cores hand in keys and values, how far away each slot is, and who sees whom.
Letters: B rows, T queries, J slots, D width, H heads, K head width, F inner width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import Config, check_at_least, check_rates
from stairwell.devices import on_accelerator

POSITIONS = ("learned", "clamped", "none", "random")
CLAMPED = 64  # distances with a vector of their own where far ones share one, if nobody says how many


@dataclass(frozen=True, kw_only=True)
class LayerConfig(Config):
    """What all transformer cores share."""

    width: int = 256
    "width of the model (D)"
    layers: int = 4
    "number of layers (L)"
    heads: int = 4
    "number of attention heads (H)"
    head_width: int | None = None
    "width of one head (K); width / heads if not given"
    inner: int | None = None
    "inner width of the feed-forward sublayer (F); 4 times the width if not given"
    norm: Literal["pre", "post"] = "pre"
    "normalize before or after each sublayer"
    attention_dropout: float = 0.0
    "dropout rate on attention weights"
    relu_dropout: float = 0.0
    "dropout rate on the feed-forward's ReLU"
    residual_dropout: float = 0.0
    "dropout rate on the output of each sublayer, before the residual sum"
    locked_dropout: bool = False
    "draw one residual dropout mask per sequence and call instead of one per token (variational dropout)"
    layer_drop: float = 0.0
    "LayerDrop: rate at which a whole layer is skipped, drawn once a layer and call"
    adaptive_span: bool = False
    "learn for each head how far back it looks"
    span_ramp: int = 32
    "tokens over which a learned span fades out (R)"
    span_loss: float = 0.0
    "loss per token of learned span (summed over layers, averaged over heads)"
    cross: bool = False
    "attend to a source (for sequence to sequence) in every layer"
    positions: Literal["learned", "clamped", "none", "random"] = "learned"
    "a vector for each distance; far ones share one; none; or, in training, a random choice of vectors, in order"
    position_vectors: int | None = None
    "how many vectors: clamped, 64 if not given; random, to choose from, as many as distances if not given"
    scaled_init: bool = False
    "divide the initial output projections of attention and feed-forward by sqrt(2 L)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "width", "layers", "heads", "head_width", "inner", "span_ramp", "position_vectors")
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads; "
                f"choose a multiple, or give head_width (for instance {self.width // self.heads or 1})"
            )
        check_rates(self, "attention_dropout", "relu_dropout", "residual_dropout", "layer_drop")
        if self.locked_dropout and not self.residual_dropout:
            raise ValueError("locked_dropout is only read with residual_dropout above 0")
        if self.span_loss and not self.adaptive_span:
            raise ValueError("span_loss is only read with adaptive_span=True")
        if self.position_vectors is not None and self.positions not in ("clamped", "random"):
            raise ValueError(f"position_vectors is only read with positions clamped or random, not {self.positions}")

    @property
    def K(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def F(self) -> int:
        return self.inner or 4 * self.width

    @property
    def first(self) -> int:
        """The nearest distance that a token attends to: 0, itself."""
        return 0


class RelativePosition(nn.Module):
    """p_distance: one learned vector a distance; distances beyond the last vector share it.

    `learned` has a vector for each of the distances in sight, and those that training never reaches stay as they were
    drawn. The others can extrapolate: `clamped` has fewer vectors; `none` has one for all distances, zero for ever;
    `random` gives the distances of a call in training vectors from a larger range (`draw_vectors`)."""

    vectors: Tensor  # (vectors, K)

    def __init__(self, config: LayerConfig, distances: int) -> None:
        super().__init__()
        self.first, self.distances = config.first, distances
        if config.positions == "none":
            self.register_buffer("vectors", torch.zeros(1, config.K))
            return
        count = config.position_vectors or distances
        if config.positions == "clamped":
            count = min(config.position_vectors or CLAMPED, distances)
        self.vectors = nn.Parameter(torch.empty(count, config.K))
        nn.init.normal_(self.vectors, std=config.K**-0.5)

    def slot(self, distance: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Which vector belongs to a distance; `drawn` are those of a call in training, the nearest first."""
        place = (distance - self.first).clamp(min=0)
        if drawn is not None:
            place = drawn[place.clamp(max=drawn.shape[0] - 1)]
        return place.clamp(max=self.vectors.shape[0] - 1)

    def table(self, distances: int, drawn: Tensor | None = None) -> Tensor:
        """The vectors of so many distances, the nearest first. (distances, K)"""
        chosen = self.vectors[:distances] if drawn is None else self.vectors.index_select(0, drawn[:distances])
        missing = distances - chosen.shape[0]
        return torch.cat([chosen, chosen[-1:].expand(missing, -1)]) if missing else chosen

    def forward(self, q: Tensor, distance: Tensor, drawn: Tensor | None = None) -> Tensor:
        """q . p_distance. q (B, H, T, K), distance (T, J) -> (B, H, T, J)"""
        scores = q @ self.vectors.T  # (B, H, T, vectors)
        index = self.slot(distance, drawn).expand(*q.shape[:2], -1, -1)
        return scores.gather(-1, index)


def draw_vectors(distances: int, vectors: int, device: torch.device) -> Tensor:
    """Randomised positions (Ruoss et al., 2023): which vectors so many distances have, in order. (distances,)

    In a third of the calls they are chosen among all vectors, as there; in a third they are the first ones, as in an
    evaluation; otherwise how many to choose from is drawn by order of magnitude."""
    distances = min(distances, vectors)
    sparse = min(max(3 * float(torch.rand(())) - 1, 0.0), 1.0)
    among = round(distances * (vectors / distances) ** sparse)
    return torch.randperm(among)[:distances].sort().values.to(device)


class AdaptiveSpan(nn.Module):
    """A learned span z per head: weights fade from 1 at distance z to 0 at z + R (Sukhbaatar et al., 2019).

    The parameter is the ratio z / S of the longest span. Adam moves a parameter by about the learning rate per step, so
    z itself, in tokens, would need tens of thousands of steps to cross a memory of some hundred positions."""

    def __init__(self, heads: int, longest: int, first: int, ramp: int) -> None:
        super().__init__()
        self.longest, self.first, self.ramp = longest, first, ramp
        self.ratio = nn.Parameter(torch.zeros(heads))

    @property
    def z(self) -> Tensor:
        """The span of each head in tokens. (H,)"""
        return self.ratio * self.longest

    def forward(self, distance: Tensor) -> Tensor:
        """The ramp at each distance. (T, J) -> (H, T, J). The nearest distance always counts fully."""
        beyond = distance - self.first - self.z[:, None, None]
        return (1 - beyond / self.ramp).clamp(0, 1)

    def reach(self) -> int:
        """How many slots, counted from the nearest, have any weight: farther ones need not be computed."""
        return max(1, math.ceil(float(self.z.detach().max()) + self.ramp))

    @torch.no_grad()
    def clamp(self) -> None:
        self.ratio.clamp_(0, 1)


def masked_softmax(scores: Tensor, visible: Tensor, ramp: Tensor | None = None) -> Tensor:
    """Softmax over the visible slots, each counted `ramp` times; all zero where nothing is visible."""
    if ramp is not None:
        visible = visible & (ramp > 0)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    powers = powers * (visible if ramp is None else visible * ramp)
    total = powers.sum(-1, keepdim=True)
    return powers / total.masked_fill(total == 0, 1)


def weighted_sum(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """weights (B, H, T, J), values in parts (B, H, j, K) -> (B, H, T, K)"""
    sizes = [part.shape[2] for part in values]
    return torch.stack([w @ part for w, part in zip(weights.split(sizes, -1), values, strict=True)]).sum(0)


def sum_of_visible(weights: Tensor, values: Sequence[Tensor], visible: Tensor) -> Tensor:
    """The same where some values may not be finite: 0 times NaN is NaN, so what a query does not see is left out of its
    sum, and what it does see makes all of its sum NaN. visible (B, 1 or H, 1 or T, J)

    One product, and no question to the device: which slots are broken is compared with which are visible."""
    finite = [part.isfinite() for part in values]
    whole = [part.masked_fill(~where, 0) for part, where in zip(values, finite, strict=True)]
    broken = ~torch.cat([where.all(-1) for where in finite], -1)  # (B, H, J)
    touched = (visible & broken[:, :, None]).any(-1, keepdim=True)
    return weighted_sum(weights, whole).masked_fill(touched, torch.nan)


def can_read_values(x: Tensor) -> bool:
    """Whether a decision may depend on the values: not on an accelerator, which would have to be waited for, and not
    where a tensor stands for many values, in a trace or a transform."""
    return not on_accelerator(x) and not torch.compiler.is_compiling() and not transformed()


def is_finite(x: Tensor) -> bool:
    """Return whether every value is a finite number. Their sum answers in one operation, unless it overflows."""
    x = x.detach()
    total = x.sum(dtype=torch.float32) if x.dtype.itemsize < 4 else x.sum()
    return math.isfinite(float(total)) or bool(x.isfinite().all())


def transformed() -> bool:
    """Whether torch.func (vmap, grad, jvp, ...) looks on. PyTorch's own autograd functions ask the same."""
    return torch._C._are_functorch_transforms_active()


def keep_mask(rate: float, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A dropout mask: true (kept) with probability 1 - rate, to within 1/65536.

    Drawing random numbers is what costs time, so each one of 64 bits decides four times."""
    count = math.prod(shape)
    numbers = torch.empty(-(-count // 4), dtype=torch.int64, device=device).random_(-(2**63), None)
    return numbers.view(torch.int16)[:count].view(shape) >= round(rate * 65536) - 32768


@dataclass(frozen=True)
class Masks:
    """The random part of one call, drawn in one place so that every engine sees the same. Depth counts layers from
    the first, through all passes. True is kept; a kind whose rate is 0 is empty."""

    attention: tuple[Tensor, ...]  # a depth each: (B, H, T, distances) bool
    relu: tuple[Tensor, ...]  # a depth each: (B, T, F) bool
    cross: tuple[Tensor, ...]  # a depth each: (B, H, T, source) bool
    dropped: tuple[bool, ...]  # a layer each
    residual: tuple[Tensor, ...] = ()  # a depth each: (sublayers, B, T, D) bool
    vectors: Tensor | None = None  # (distances,) int64: the position vector of each, the nearest first

    @staticmethod
    def draw(config: LayerConfig, x: Tensor, depth: int, distances: int, source: Tensor | None) -> Masks:
        B, T, D = x.shape

        def kept(rate: float, *shape: int) -> tuple[Tensor, ...]:
            if not rate:
                return ()
            return tuple(keep_mask(rate, shape, x.device) for _ in range(depth))

        rate = config.attention_dropout
        cross = kept(rate, B, config.heads, T, source.shape[1]) if source is not None else ()
        sublayers, per_sequence = 2 if source is None else 3, 1 if config.locked_dropout else T
        drawn = torch.rand(config.layers).tolist() if config.layer_drop else [1.0] * config.layers
        return Masks(
            attention=kept(rate, B, config.heads, T, distances),
            relu=kept(config.relu_dropout, B, T, config.F),
            cross=cross,
            dropped=tuple(number < config.layer_drop for number in drawn),
            residual=tuple(
                mask.expand(-1, -1, T, -1).contiguous()
                for mask in kept(config.residual_dropout, sublayers, B, per_sequence, D)
            ),
        )

    def at(self, depth: int, first: int, last: int) -> LayerMasks:
        """What is kept in one layer for the queries first..last-1."""

        def queries(masks: tuple[Tensor, ...]) -> Tensor | None:
            return masks[depth][..., first:last, :] if masks else None

        dropped = self.dropped[depth % len(self.dropped)]
        attention, relu, cross, residual = map(queries, (self.attention, self.relu, self.cross, self.residual))
        return LayerMasks(attention, relu, cross, residual, dropped)


@dataclass(frozen=True)
class LayerMasks:
    attention: Tensor | None = None
    relu: Tensor | None = None
    cross: Tensor | None = None
    residual: Tensor | None = None  # (sublayers, B, T, D), the sublayers in their order
    dropped: bool = False


KEEP_ALL = LayerMasks()


@dataclass(frozen=True)
class Slots:
    """What a query may attend to: keys and values in parts (so that nobody has to copy them together), the distance of
    each slot from each query, and who sees whom."""

    keys: Sequence[Tensor]  # parts (B, H, j, K) whose j add up to J
    values: Sequence[Tensor]  # the same shapes
    distance: Tensor  # (T, J) int64
    visible: Tensor  # (B, T or 1, J) bool


class Attention(nn.Module):
    """Queries and output of multi-head attention; keys and values too, unless another layer's are shared."""

    def __init__(self, config: LayerConfig, owns_keys: bool = True) -> None:
        super().__init__()
        D, self.H, self.K = config.width, config.heads, config.K
        self.rate = config.attention_dropout
        self.query = nn.Linear(D, self.H * self.K, bias=False)
        if owns_keys:
            self.key = nn.Linear(D, self.H * self.K, bias=False)
            self.value = nn.Linear(D, self.H * self.K, bias=False)
        self.out = nn.Linear(self.H * self.K, D, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, H*K) -> (B, H, T, K), laid out so that a range of T is a view that needs no copy to be multiplied."""
        B, T, _ = x.shape
        return x.view(B, T, self.H, self.K).transpose(1, 2).contiguous()

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """memory (B, J, D) -> keys, values (B, H, J, K)"""
        return self.heads(self.key(memory)), self.heads(self.value(memory))

    def forward(
        self,
        x: Tensor,
        slots: Slots,
        position: RelativePosition | None,
        span: AdaptiveSpan | None = None,
        kept: Tensor | None = None,
        drawn: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, D) -> (B, T, D), weights (B, H, T, J); `drawn` are the position vectors of a call in training"""
        B, T, _ = x.shape
        q = self.heads(self.query(x))
        scores = torch.cat([q @ part.transpose(-1, -2) for part in slots.keys], -1)  # (B, H, T, J)
        if position is not None:
            scores = scores + position(q, slots.distance, drawn)
        ramp = span(slots.distance) if span is not None else None
        weights = masked_softmax(scores / math.sqrt(self.K), slots.visible[:, None], ramp)
        used = weights
        if kept is not None:
            if position is not None:  # self-attention's masks are laid out by distance
                kept = kept.gather(
                    -1, (slots.distance - position.first).clamp(0, kept.shape[-1] - 1).expand_as(weights)
                )
            used = weights * kept / (1 - self.rate)
        z = weighted_sum(used, slots.values) if can_read_values(used) else None
        if z is None or not is_finite(z):
            visible = slots.visible[:, None] if ramp is None else slots.visible[:, None] & (ramp > 0)
            z = sum_of_visible(used, slots.values, visible)
        return self.out(z.transpose(1, 2).reshape(B, T, self.H * self.K)), weights


class FeedForward(nn.Module):
    """W_2 ReLU(W_1 x + b_1) + b_2, with dropout on the ReLU."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.rate = config.relu_dropout
        self.inner = nn.Linear(config.width, config.F)
        self.out = nn.Linear(config.F, config.width)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        active = F.relu(self.inner(x))
        return self.out(active if kept is None else active * kept / (1 - self.rate))


Sublayer = Callable[[Tensor], Tensor]  # from what it reads (normed with pre-norm) to what is added, both (..., D)


class ResidualLayer:
    """How sublayers are put together to a layer: norms, residual sums and their dropout, here and nowhere else.

    Whoever walks through a layer, a core, an engine, a decoding session or an encoder, hands in how it attends."""

    pre: bool
    residual_rate: float  # of the masks that are handed in
    attention_norm: Callable[[Tensor], Tensor]
    cross_norm: Callable[[Tensor], Tensor]
    feed_forward_norm: Callable[[Tensor], Tensor]

    def apply_sublayers(
        self,
        x: Tensor,
        attend: Sublayer,
        attend_source: Sublayer | None,
        feed_forward: Sublayer,
        masks: LayerMasks = KEEP_ALL,
    ) -> Tensor:
        """x (..., D) -> the layer's output (..., D); without a source nobody attends to it."""
        if masks.dropped:
            return x
        # The first sublayer's mask is attention's, the last one the feed-forward's.
        kept = masks.residual if masks.residual is not None else (None, None, None)
        x = self.residual(x, self.attention_norm, attend, kept[0])
        if attend_source is not None:
            x = self.residual(x, self.cross_norm, attend_source, kept[1])
        return self.residual(x, self.feed_forward_norm, feed_forward, kept[-1])

    def residual(self, x: Tensor, norm: Sublayer, sublayer: Sublayer, kept: Tensor | None) -> Tensor:
        """x + sublayer(norm(x)) with pre-norm, norm(x + sublayer(x)) with post-norm; dropout before the sum."""
        z = sublayer(norm(x) if self.pre else x)
        if kept is not None:
            z = z * kept / (1 - self.residual_rate)
        return x + z if self.pre else norm(x + z)

    def normed(self, memory: Tensor) -> Tensor:
        """Raw memory as keys and values are projected from it: with pre-norm through the norm of the queries."""
        return self.attention_norm(memory) if self.pre else memory


class Layer(ResidualLayer, nn.Module):
    """One transformer layer: attention to the memory, attention to a source if there is one, feed-forward."""

    attention_norm: nn.LayerNorm
    cross_norm: nn.LayerNorm
    feed_forward_norm: nn.LayerNorm
    forward = ResidualLayer.apply_sublayers

    def __init__(self, config: LayerConfig, distances: int, owns_keys: bool = True) -> None:
        super().__init__()
        D = config.width
        self.pre = config.norm == "pre"
        self.residual_rate = config.residual_dropout
        self.attention_norm = nn.LayerNorm(D)
        self.attention = Attention(config, owns_keys)
        self.span = (
            AdaptiveSpan(config.heads, distances, config.first, config.span_ramp) if config.adaptive_span else None
        )
        if config.cross:
            self.cross_norm = nn.LayerNorm(D)
            self.cross = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(D)
        self.feed_forward = FeedForward(config)
        if config.scaled_init:
            self.scale_outputs((2 * config.layers) ** -0.5)

    @torch.no_grad()
    def scale_outputs(self, factor: float) -> None:
        """Scale what the sublayers add to the residual stream, so that it does not grow with depth at first."""
        attentions = [self.attention, *([self.cross] if hasattr(self, "cross") else [])]
        for projection in (*(attention.out for attention in attentions), self.feed_forward.out):
            projection.weight.mul_(factor)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, J, K) of raw memory (B, J, D)."""
        return self.attention.keys_values(self.normed(memory))

    def ramp(self, distances: int) -> Tensor | None:
        """The span's factor at so many distances, the nearest first; none without a span. (H, distances)"""
        if self.span is None:
            return None
        distance = torch.arange(distances, device=self.span.ratio.device) + self.span.first
        return self.span(distance[None])[:, 0]

    def attend_source(
        self, source: Slots | None, kept: Tensor | None, tell: Callable[[Tensor], None] | None = None
    ) -> Sublayer | None:
        """Attention to a source, if there is one; `tell` hears its weights (B, H, T, R)."""
        if source is None:
            return None

        def attend(normed: Tensor) -> Tensor:
            z, weights = self.cross(normed, source, None, None, kept)
            if tell is not None:
                tell(weights)
            return z

        return attend

    def source_slots(self, source: Tensor, mask: Tensor) -> Slots:
        """The source (B, R, D) as slots that any number of queries see where the mask (B, R) is true."""
        keys, values = self.cross.keys_values(source)
        no_distance = torch.zeros(1, source.shape[1], dtype=torch.int64, device=source.device)
        return Slots([keys], [values], no_distance, mask[:, None])
