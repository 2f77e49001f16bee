"""The layers of the transformer cores, without time: attention over a memory, feed-forward, norms, positions, span.

    score(q, slot) = q . (k_slot + p_distance) / sqrt(K)        p learned, one per distance, shared by heads and layers
    weights        = softmax over the visible slots, times the ramp of the span, renormalized
    Attn           = W_o sum of weights * v_slot

A core passes keys and values, the distance of each slot from each query, and which slots are visible to which query.
Letters: B batch size, T queries, J slots, D width, H heads, K head width, F inner width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import Config, check_at_least, check_probabilities
from stairwell.devices import on_accelerator

POSITIONS = ("learned", "clamped", "none", "random")
CLAMPED = 64  # default number of embeddings of `clamped` positions


@dataclass(frozen=True, kw_only=True)
class CoreConfig(Config):
    """Options that every core has."""

    width: int = 256
    "Width of the model (D)."
    layers: int = 2
    "Number of layers (L)."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "width", "layers")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(CoreConfig):
    """Options of cores whose layers have heads and a feed-forward sublayer."""

    heads: int = 4
    "Number of heads (H)."
    head_width: int | None = None
    "Width of one head (K); width / heads if not given."
    inner: int | None = None
    "Inner width of the feed-forward sublayer (F); 4 times the width if not given."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "heads", "head_width", "inner")
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


@dataclass(frozen=True, kw_only=True)
class LayerConfig(HeadsConfig):
    """Options of all transformer cores."""

    layers: int = 4
    "Number of layers (L)."
    norm: Literal["pre", "post"] = "pre"
    "Normalization before (pre) or after (post) each sublayer."
    attention_dropout: float = 0.0
    "Dropout rate of attention weights."
    relu_dropout: float = 0.0
    "Dropout rate of the feed-forward ReLU."
    residual_dropout: float = 0.0
    "Dropout rate of each sublayer's output, before the residual sum."
    locked_dropout: bool = False
    "One residual dropout mask per sequence and call instead of one per token (variational dropout)."
    layer_drop: float = 0.0
    "LayerDrop: rate at which a whole layer is skipped, sampled once per layer and call."
    adaptive_span: bool = False
    "Learned attention span per head."
    span_ramp: int = 32
    "Tokens over which a learned span fades out (R)."
    span_loss: float = 0.0
    "Loss per token of learned span (summed over layers, averaged over heads)."
    cross: bool = False
    "Cross-attention to a source in every layer (sequence to sequence)."
    positions: Literal["learned", "clamped", "none", "random"] = "learned"
    "Relative position embeddings: one per distance, far distances clamped, none, or randomized in training."
    position_embeddings: int | None = None
    "Number of position embeddings: clamped, 64 if not given; random, number of distances if not given."
    scaled_init: bool = False
    "Initial output projections of attention and feed-forward divided by sqrt(2 L)."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "span_ramp", "position_embeddings")
        check_probabilities(self, "attention_dropout", "relu_dropout", "residual_dropout", "layer_drop")
        if self.locked_dropout and not self.residual_dropout:
            raise ValueError("locked_dropout is only read with residual_dropout above 0")
        if self.span_loss and not self.adaptive_span:
            raise ValueError("span_loss is only read with adaptive_span=True")
        if self.position_embeddings is not None and self.positions not in ("clamped", "random"):
            raise ValueError(f"position_embeddings is only read with positions clamped or random, not {self.positions}")

    @property
    def first(self) -> int:
        """The nearest distance that a token attends to; 0 is the token itself."""
        return 0


class RelativePosition(nn.Module):
    """Relative position embeddings p_distance; distances beyond the last embedding share it.

    `learned` has one embedding per distance of the attention span; embeddings of distances that training never reaches
    keep their initial values. The other options can extrapolate: `clamped` has fewer embeddings; `none` has a single
    constant zero; `random` assigns embeddings of a larger range to the distances of each training call
    (`sample_position_index`)."""

    vectors: Tensor  # (embeddings, K)

    def __init__(self, config: LayerConfig, distances: int) -> None:
        super().__init__()
        self.first, self.distances = config.first, distances
        if config.positions == "none":
            self.register_buffer("vectors", torch.zeros(1, config.K))
            return
        count = config.position_embeddings or distances
        if config.positions == "clamped":
            count = min(config.position_embeddings or CLAMPED, distances)
        self.vectors = nn.Parameter(torch.empty(count, config.K))
        nn.init.normal_(self.vectors, std=config.K**-0.5)

    def index(self, distance: Tensor, position_index: Tensor | None = None) -> Tensor:
        """Return the embedding index of each distance."""
        index = (distance - self.first).clamp(min=0)
        if position_index is not None:
            index = position_index[index.clamp(max=position_index.shape[0] - 1)]
        return index.clamp(max=self.vectors.shape[0] - 1)

    def table(self, distances: int, position_index: Tensor | None = None) -> Tensor:
        """Return the embeddings of the first `distances` distances, nearest first. (distances, K)"""
        if position_index is None:
            embeddings = self.vectors[:distances]
        else:
            embeddings = self.vectors.index_select(0, position_index[:distances])
        missing = distances - embeddings.shape[0]
        return torch.cat([embeddings, embeddings[-1:].expand(missing, -1)]) if missing else embeddings

    def forward(self, q: Tensor, distance: Tensor, position_index: Tensor | None = None) -> Tensor:
        """Return q . p_distance. q (B, H, T, K), distance (T, J) -> (B, H, T, J)"""
        scores = q @ self.vectors.T  # (B, H, T, embeddings)
        index = self.index(distance, position_index).expand(*q.shape[:2], -1, -1)
        return scores.gather(-1, index)


def sample_position_index(distances: int, embeddings: int, device: torch.device) -> Tensor:
    """Sample the embedding index of each distance, in increasing order (Ruoss et al., 2023). (distances,)

    In a third of the calls the indices are sampled from all embeddings, as in the paper; in a third they are the first
    ones, as in evaluation; otherwise the range to sample from is log-uniform between the two."""
    distances = min(distances, embeddings)
    exponent = min(max(3 * float(torch.rand(())) - 1, 0.0), 1.0)
    sample_range = round(distances * (embeddings / distances) ** exponent)
    return torch.randperm(sample_range)[:distances].sort().values.to(device)


class AdaptiveSpan(nn.Module):
    """A learned span z per head: weights fade from 1 at distance z to 0 at z + R (Sukhbaatar et al., 2019).

    The parameter is the ratio z / S of the longest span. Adam changes a parameter by about the learning rate per step,
    so z itself, in tokens, would need tens of thousands of steps to move by some hundred tokens."""

    def __init__(self, heads: int, longest: int, first: int, ramp: int) -> None:
        super().__init__()
        self.longest, self.first, self.ramp = longest, first, ramp
        self.ratio = nn.Parameter(torch.zeros(heads))

    @property
    def z(self) -> Tensor:
        """The span of each head in tokens. (H,)

        A training loop that never calls `clamp` can move the ratio out of [0, 1]: the value is clamped here, so that
        all engines agree, and the gradient passes through, so that the ratio can return."""
        outside = self.ratio.clamp(0, 1) - self.ratio
        return (self.ratio + outside.detach()) * self.longest

    def forward(self, distance: Tensor) -> Tensor:
        """Return the ramp at each distance; it is 1 at the nearest. (T, J) -> (H, T, J)"""
        beyond = distance - self.first - self.z[:, None, None]
        return (1 - beyond / self.ramp).clamp(0, 1)

    def max_span(self) -> int:
        """Return how many slots, counted from the nearest, can have nonzero weight in any head."""
        return max(1, math.ceil(float(self.z.detach().max()) + self.ramp))

    @torch.no_grad()
    def clamp(self) -> None:
        self.ratio.clamp_(0, 1)


def masked_softmax(scores: Tensor, visible: Tensor, ramp: Tensor | None = None) -> Tensor:
    """Return the softmax over the visible slots, times `ramp`, renormalized; zeros where nothing is visible."""
    if ramp is not None:
        visible = visible & (ramp > 0)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    powers = powers * (visible if ramp is None else visible * ramp)
    total = powers.sum(-1, keepdim=True)
    return powers / total.masked_fill(total == 0, 1)


def weighted_sum(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum values by weights. weights (B, H, T, J), values in parts (B, H, j, K) -> (B, H, T, K)"""
    parts = torch.split(weights, [part.shape[2] for part in values], -1)
    return torch.stack([w @ part for w, part in zip(parts, values, strict=True)]).sum(0)


def sum_of_visible(weights: Tensor, values: Sequence[Tensor], visible: Tensor) -> Tensor:
    """Do the same as `weighted_sum` for values that may not be finite. visible (B, 1 or H, 1 or T, J)

    Since 0 times NaN is NaN, invisible slots are left out of a query's sum explicitly, and a visible slot that is not
    finite makes the whole sum NaN. Runs without synchronizing with the device."""
    finite = [part.isfinite() for part in values]
    cleaned = [part.masked_fill(~where, 0) for part, where in zip(values, finite, strict=True)]
    broken = ~torch.cat([where.all(-1) for where in finite], -1)  # (B, H, J)
    affected = (visible & broken[:, :, None]).any(-1, keepdim=True)
    return weighted_sum(weights, cleaned).masked_fill(affected, torch.nan)


def can_read_values(x: Tensor) -> bool:
    """Return whether control flow may depend on values: not on an accelerator, where reading them synchronizes, and not
    while compiling or in a torch.func transform."""
    return not on_accelerator(x) and not torch.compiler.is_compiling() and not in_transform()


def can_check_output(y: Tensor) -> bool:
    """Return whether an engine's output may be checked for NaN. On an accelerator only without gradients: the check
    waits for the device once per call, and in training NaN anywhere makes the loss NaN, which stops the run."""
    may_wait = on_accelerator(y) and not y.is_meta and not torch.is_grad_enabled()
    return (may_wait or not on_accelerator(y)) and not torch.compiler.is_compiling() and not in_transform()


def is_finite(x: Tensor) -> bool:
    """Return whether all values are finite. The sum decides in one operation unless it overflows."""
    x = x.detach()
    total = x.sum(dtype=torch.float32) if x.dtype.itemsize < 4 else x.sum()
    return math.isfinite(float(total)) or bool(x.isfinite().all())


def in_transform() -> bool:
    """Return whether a torch.func transform (vmap, grad, jvp, ...) is active, as PyTorch's autograd functions test
    it."""
    return torch._C._are_functorch_transforms_active()


def dropout_mask(rate: float, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a dropout mask: true (keep) with probability 1 - rate, to within 1/65536.

    Sampling dominates the cost of dropout, so each 64-bit random number is used for four elements."""
    count = math.prod(shape)
    numbers = torch.empty(-(-count // 4), dtype=torch.int64, device=device).random_(-(2**63), None)
    return numbers.view(torch.int16)[:count].view(shape) >= round(rate * 65536) - 32768


@dataclass(frozen=True)
class Masks:
    """Everything random in one training call, sampled in one place so that all engines use the same masks.

    Depth counts layers through all passes. True means keep. A tuple is empty if its dropout rate is 0."""

    attention: tuple[Tensor, ...]  # per depth: (B, H, T, distances) bool
    relu: tuple[Tensor, ...]  # per depth: (B, T, F) bool
    cross: tuple[Tensor, ...]  # per depth: (B, H, T, source) bool
    dropped: tuple[bool, ...]  # per layer: skipped by LayerDrop
    residual: tuple[Tensor, ...] = ()  # per depth: (sublayers, B, T, D) bool
    position_index: Tensor | None = None  # (distances,) int64: embedding index of each distance, nearest first

    @staticmethod
    def sample(config: LayerConfig, x: Tensor, depth: int, distances: int, source: Tensor | None) -> Masks:
        B, T, D = x.shape

        def masks(rate: float, *shape: int) -> tuple[Tensor, ...]:
            if not rate:
                return ()
            return tuple(dropout_mask(rate, shape, x.device) for _ in range(depth))

        rate = config.attention_dropout
        cross = masks(rate, B, config.heads, T, source.shape[1]) if source is not None else ()
        sublayers, residual_T = 2 if source is None else 3, 1 if config.locked_dropout else T
        random = torch.rand(config.layers).tolist() if config.layer_drop else [1.0] * config.layers
        return Masks(
            attention=masks(rate, B, config.heads, T, distances),
            relu=masks(config.relu_dropout, B, T, config.F),
            cross=cross,
            dropped=tuple(number < config.layer_drop for number in random),
            residual=tuple(
                mask.expand(-1, -1, T, -1).contiguous()
                for mask in masks(config.residual_dropout, sublayers, B, residual_T, D)
            ),
        )

    def for_layer(self, depth: int, first: int, last: int) -> LayerMasks:
        """Return the masks of one layer for the queries first..last-1."""

        def queries(masks: tuple[Tensor, ...]) -> Tensor | None:
            return masks[depth][..., first:last, :] if masks else None

        dropped = self.dropped[depth % len(self.dropped)]
        attention, relu, cross, residual = map(queries, (self.attention, self.relu, self.cross, self.residual))
        return LayerMasks(attention, relu, cross, residual, dropped)


@dataclass(frozen=True)
class LayerMasks:
    """The dropout masks of one layer; None where there is no dropout."""

    attention: Tensor | None = None
    relu: Tensor | None = None
    cross: Tensor | None = None
    residual: Tensor | None = None  # (sublayers, B, T, D), in the order of the sublayers
    dropped: bool = False


NO_MASKS = LayerMasks()


@dataclass(frozen=True)
class Slots:
    """What queries attend to. Keys and values come in parts, which avoids a copy."""

    keys: Sequence[Tensor]  # parts (B, H, j, K), with the sum of all j equal to J
    values: Sequence[Tensor]  # the same shapes
    distance: Tensor  # (T, J) int64
    visible: Tensor  # (B, T or 1, J) bool


def source_slots(keys: Tensor, values: Tensor, mask: Tensor) -> Slots:
    """Return a projected source, keys and values (B, H, R, K), as slots that are visible to all queries where the mask
    (B, R) is true. A source has no distances."""
    no_distance = torch.zeros(1, keys.shape[2], dtype=torch.int64, device=keys.device)
    return Slots([keys], [values], no_distance, mask[:, None])


class Attention(nn.Module):
    """Multi-head attention; without `owns_keys`, keys and values are projected by another layer's attention."""

    def __init__(self, config: LayerConfig, owns_keys: bool = True) -> None:
        super().__init__()
        self.config = config
        D, self.H, self.K = config.width, config.heads, config.K
        self.query = nn.Linear(D, self.H * self.K, bias=False)
        if owns_keys:
            self.key = nn.Linear(D, self.H * self.K, bias=False)
            self.value = nn.Linear(D, self.H * self.K, bias=False)
        self.out = nn.Linear(self.H * self.K, D, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        """Split heads: (B, T, H*K) -> (B, H, T, K), contiguous, so that products with a range of T need no copy."""
        B, T, _ = x.shape
        return x.view(B, T, self.H, self.K).transpose(1, 2).contiguous()

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, J, K) of a memory (B, J, D)."""
        return self.heads(self.key(memory)), self.heads(self.value(memory))

    def forward(
        self,
        x: Tensor,
        slots: Slots,
        position: RelativePosition | None,
        span: AdaptiveSpan | None = None,
        mask: Tensor | None = None,
        position_index: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend with queries of x (B, T, D); return the output (B, T, D) and the attention weights (B, H, T, J)."""
        B, T, _ = x.shape
        q = self.heads(self.query(x))
        scores = torch.cat([q @ part.transpose(-1, -2) for part in slots.keys], -1)  # (B, H, T, J)
        if position is not None:
            scores = scores + position(q, slots.distance, position_index)
        ramp = span(slots.distance) if span is not None else None
        weights = masked_softmax(scores / math.sqrt(self.K), slots.visible[:, None], ramp)
        dropped_out = weights
        if mask is not None:
            if position is not None:  # masks of self-attention are indexed by distance
                index = (slots.distance - position.first).clamp(0, mask.shape[-1] - 1)
                mask = mask.gather(-1, index.expand_as(weights))
            dropped_out = weights * mask / (1 - self.config.attention_dropout)
        z = weighted_sum(dropped_out, slots.values) if can_read_values(dropped_out) else None
        if z is None or not is_finite(z):
            visible = slots.visible[:, None] if ramp is None else slots.visible[:, None] & (ramp > 0)
            z = sum_of_visible(dropped_out, slots.values, visible)
        return self.out(z.transpose(1, 2).reshape(B, T, self.H * self.K)), weights


class FeedForward(nn.Module):
    """W_2 ReLU(W_1 x + b_1) + b_2, with dropout on the ReLU."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = nn.Linear(config.width, config.F)
        self.out = nn.Linear(config.F, config.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        active = F.relu(self.inner(x))
        y: Tensor = self.out(active if mask is None else active * mask / (1 - self.config.relu_dropout))
        return y


Sublayer = Callable[[Tensor], Tensor]  # from its input (normalized with pre-norm) to what is added, both (..., D)


class ResidualLayer:
    """The structure of a layer: norms, residual sums and residual dropout.

    Cores, engines, decoding sessions and the encoder pass in their own sublayers."""

    pre: bool  # pre-norm or post-norm
    residual_dropout: float = 0.0
    attention_norm: Callable[[Tensor], Tensor]
    cross_norm: Callable[[Tensor], Tensor]
    feed_forward_norm: Callable[[Tensor], Tensor]

    def apply_sublayers(
        self,
        x: Tensor,
        attend: Sublayer,
        attend_source: Sublayer | None,
        feed_forward: Sublayer,
        masks: LayerMasks = NO_MASKS,
    ) -> Tensor:
        """Return the layer's output (..., D). x (..., D)"""
        if masks.dropped:
            return x
        # The first mask is that of attention, the last one that of the feed-forward.
        residual = masks.residual if masks.residual is not None else (None, None, None)
        x = self.residual(x, self.attention_norm, attend, residual[0])
        if attend_source is not None:
            x = self.residual(x, self.cross_norm, attend_source, residual[1])
        return self.residual(x, self.feed_forward_norm, feed_forward, residual[-1])

    def residual(self, x: Tensor, norm: Sublayer, sublayer: Sublayer, mask: Tensor | None) -> Tensor:
        """x + sublayer(norm(x)) with pre-norm, norm(x + sublayer(x)) with post-norm; dropout before the sum."""
        z = sublayer(norm(x) if self.pre else x)
        if mask is not None:
            z = z * mask / (1 - self.residual_dropout)
        return x + z if self.pre else norm(x + z)

    def normed(self, memory: Tensor) -> Tensor:
        """Return the input of the key and value projections: with pre-norm, the memory through the attention norm."""
        return self.attention_norm(memory) if self.pre else memory


class Layer(ResidualLayer, nn.Module):
    """One transformer layer: attention to the memory, optional attention to a source, feed-forward."""

    attention_norm: nn.LayerNorm
    cross_norm: nn.LayerNorm
    feed_forward_norm: nn.LayerNorm
    forward = ResidualLayer.apply_sublayers

    def __init__(self, config: LayerConfig, distances: int, owns_keys: bool = True) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.pre = config.norm == "pre"
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

    @property
    def residual_dropout(self) -> float:  # type: ignore[override]
        return self.config.residual_dropout

    @torch.no_grad()
    def scale_outputs(self, factor: float) -> None:
        """Scale the output projections, so that initially the residual stream does not grow with depth."""
        attentions = [self.attention, *([self.cross] if hasattr(self, "cross") else [])]
        for projection in (*(attention.out for attention in attentions), self.feed_forward.out):
            projection.weight.mul_(factor)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, J, K) of raw memory (B, J, D)."""
        return self.attention.keys_values(self.normed(memory))

    def ramp(self, distances: int) -> Tensor | None:
        """Return the ramp of the span at the first distances, nearest first; None without adaptive span. (H,
        distances)"""
        if self.span is None:
            return None
        distance = torch.arange(distances, device=self.span.ratio.device) + self.span.first
        ramp: Tensor = self.span(distance[None])[:, 0]
        return ramp

    def attend_source(
        self, source: Slots | None, mask: Tensor | None, record: Callable[[Tensor], None] | None = None
    ) -> Sublayer | None:
        """Return the cross-attention sublayer, None without a source; `record` is called with its weights (B, H, T,
        R)."""
        if source is None:
            return None

        def attend(normed: Tensor) -> Tensor:
            z: Tensor
            z, weights = self.cross(normed, source, None, None, mask)
            if record is not None:
                record(weights)
            return z

        return attend

    def source_slots(self, source: Tensor, mask: Tensor) -> Slots:
        """Return the source (B, R, D) as slots, visible to all queries where mask (B, R) is true."""
        return source_slots(*self.cross.keys_values(source), mask)
