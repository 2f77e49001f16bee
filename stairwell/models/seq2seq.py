"""Sequence to sequence: an encoder reads the source once, a decoder of any core writes the target from it.

    state = model.init_state(batch, source, source_mask)         source (B, J) int64: encoded here, once, into the state
    logits, state = model(tokens, state)                          tokens (B, T) int64 -> (B, T, V), as a LanguageModel
    losses, nll, likeliest, state = model.losses(tokens, targets, state, smoothing)

Cores with cross-attention attend to the source in every layer. Those without it (LSTM, DeltaNet) are followed by one
attention to the source and a feed-forward, Luong et al. (2015). Only the decoder has a memory: what the encoder made is
static in the state. Letters: B rows, T target tokens, J source tokens, D width, V target symbols.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import check_rates
from stairwell.cores import build
from stairwell.cores.core import AttentionRecorder, SourceState, check_tensor
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.time import ages
from stairwell.fast import choose_engine
from stairwell.fast.first_order import first_order
from stairwell.layers import Attention, FeedForward, LayerConfig, Slots
from stairwell.models.embedding import Embedding, Head, StartEmbedding
from stairwell.models.encoder import Encoder, EncoderConfig
from stairwell.models.language import IGNORE, SymbolModel, by_blocks
from stairwell.state import State


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(EncoderConfig):
    core: Any = field(default_factory=FeedbackConfig)
    "the config of the decoder's core"
    sources: int = 256
    "number of source symbols"
    targets: int = 256
    "number of target symbols (V)"
    joint: bool = True
    "whether source and target have the same symbols"
    tied: Literal["all", "output", "none"] = "all"
    "which tables are one: source, target and output (all), target and output, or none"
    start_embedding: bool = True
    "add a learned vector to a target's first token"
    embedding_dropout: float = 0.0
    "dropout rate on the embedded source and target"
    output_dropout: float = 0.0
    "dropout rate on the core's output"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sources < 1 or self.targets < 1:
            raise ValueError("a model needs at least one source and one target symbol")
        if self.tied == "all" and (not self.joint or self.sources != self.targets):
            raise ValueError("tied all needs one vocabulary for source and target; use tied output")
        check_rates(self, "embedding_dropout", "output_dropout")

    @property
    def V(self) -> int:
        return self.targets

    @property
    def inputs(self) -> int:
        """How many symbols the decoder reads."""
        return self.targets


class SmoothedLoss(torch.autograd.Function):
    """Cross-entropy with a share e of the target's probability spread over all V symbols (Szegedy et al., 2016):

        loss            = (1 - e) nll(target) + e mean of nll over all symbols
        d loss / d logit = softmax - e / V - (1 - e) [it is the target]

    By hand, since the logits are the largest tensor of a small model: every pass over them that is saved counts."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        """logits (n, V), targets (n,) -> smoothed losses, plain losses, the likeliest symbols: (n,)"""
        highest, likeliest = logits.max(-1)
        powers = (logits - highest[:, None]).exp_()
        total = powers.sum(-1)
        level = total.log() + highest
        nll = level - logits.gather(1, targets[:, None])[:, 0]
        smoothed = (1 - smoothing) * nll + smoothing * (level - logits.mean(-1)) if smoothing else nll.clone()
        ctx.save_for_backward(powers, total, targets)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nll, likeliest)
        return smoothed, nll, likeliest

    @staticmethod
    @first_order(
        "the losses of a Seq2Seq have",
        "take the loss of the logits, F.cross_entropy(..., label_smoothing=...), instead",
    )
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        powers, total, targets = ctx.saved_tensors
        spread = (-ctx.smoothing / powers.shape[1] * slope)[:, None]
        given = torch.addcmul(spread, powers, (slope / total)[:, None])
        given.scatter_add_(1, targets[:, None], (ctx.smoothing - 1) * slope[:, None])
        return given, None, None


class SourceReader(nn.Module):
    """Attention to the source after a core that has none: x + Attn(norm(x)), then x + FF(norm(x))."""

    seen: AttentionRecorder | None = None  # set by `inspect`

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        config = LayerConfig(width=width, heads=heads)
        self.norm, self.attention = nn.LayerNorm(width), Attention(config)
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(width), FeedForward(config)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        keys, values = self.attention.keys_values(source.masked_fill(~mask[..., None], 0))
        distance = torch.zeros(1, source.shape[1], dtype=torch.int64, device=source.device)
        z, weights = self.attention(self.norm(x), Slots([keys], [values], distance, mask[:, None]), None)
        if self.seen is not None:
            self.seen.add_source(0, weights)
        x = x + z
        return x + self.feed_forward(self.feed_forward_norm(x))


class Seq2Seq(SymbolModel):
    """Writes a target, symbol by symbol, from a source that it has read as a whole."""

    def __init__(self, config: Seq2SeqConfig, engine: str = "auto") -> None:
        super().__init__()
        self.config = config
        D = config.core.width
        crosses = isinstance(config.core, LayerConfig)
        self.core = build(dataclasses.replace(config.core, cross=True) if crosses else config.core)
        choose_engine(self.core, engine)
        self.reader = None if crosses else SourceReader(D, config.encoder_heads)
        self.embedding = Embedding(config.targets, D)
        self.source_embedding = None if config.tied == "all" else Embedding(config.sources, D)
        self.encoder = Encoder(config, D)
        self.head = Head(config.targets, D, None if config.tied == "none" else self.embedding)
        self.start_embedding = StartEmbedding(D) if config.start_embedding else None
        self.norm = nn.LayerNorm(D) if self.core.final_norm or self.reader is not None else nn.Identity()

    def init_state(
        self, batch: int, source: Tensor | None = None, source_mask: Tensor | None = None, max_crop: int = 0
    ) -> SourceState:
        """A fresh state for `batch` rows with their sources: source (B, J) int64, source_mask (B, J) bool, true where
        the source is there. The encoder runs here."""
        if source is None:
            raise ValueError("a Seq2Seq reads a source: init_state(batch, source, source_mask)")
        mask = torch.ones_like(source, dtype=torch.bool) if source_mask is None else source_mask
        decoder = self.core.init_state(batch, max_crop)
        return SourceState(decoder=decoder, source=self.encode(source, mask), source_mask=mask)

    def encode(self, source: Tensor, mask: Tensor) -> Tensor:
        """source (B, J) int64, mask (B, J) bool -> (B, J, D), zero where the source is not there."""
        check_tensor(source, "the source")
        check_tensor(mask, "source_mask")
        if source.dim() != 2 or source.shape != mask.shape or mask.dtype != torch.bool:
            raise ValueError(
                f"a source is (rows, tokens) with a bool mask of that shape, not {tuple(source.shape)} with "
                f"{mask.dtype} of {tuple(mask.shape)}"
            )
        source = source.masked_fill(~mask, 0)
        self.check_symbols(source, "source token", self.config.sources)
        table = self.embedding if self.source_embedding is None else self.source_embedding
        x = F.dropout(table(source), self.config.embedding_dropout, self.training)
        return self.encoder(x, mask).masked_fill(~mask[..., None], 0)

    def losses(
        self, tokens: Tensor, targets: Tensor, state: State, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor, State]:
        """tokens, targets (B, T) -> smoothed losses, plain losses in nats (both 0 where the target is IGNORE), the
        likeliest symbols, all (B, T), and the state after. No logits are formed where nothing is scored."""
        x, state = self.hidden_for(targets, tokens, state)
        scored = targets != IGNORE
        flat, wanted = x[scored], targets[scored]
        judge = partial(self.score, smoothing=smoothing)
        smoothed, nll, likeliest = by_blocks(judge, flat, wanted, self.config.V)
        zeros = smoothed.new_zeros(targets.shape)
        likeliest = torch.full_like(targets, IGNORE).masked_scatter(scored, likeliest)
        return zeros.masked_scatter(scored, smoothed), zeros.masked_scatter(scored, nll), likeliest, state

    def score(self, x: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        """x (n, D), targets (n,) -> smoothed losses, plain losses, the likeliest symbols: (n,)"""
        logits = self.head(x)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return SmoothedLoss.apply(wide, targets, smoothing)

    def hidden(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """What the head reads: (B, T, D) after the last norm."""
        if not isinstance(state, SourceState):
            raise TypeError(f"a Seq2Seq needs a SourceState, not a {type(state).__name__}; make one with init_state")
        self.check_tokens(tokens, start)
        x = self.embed(tokens, ages(state.count, start, tokens.shape[1]))
        if self.reader is None:
            x, decoder = self.core(x, state.decoder, start, state.source, state.source_mask)
        else:
            x, decoder = self.core(x, state.decoder, start)
            x = self.reader(x, state.source, state.source_mask)
        after = dataclasses.replace(state, decoder=decoder)
        return F.dropout(self.norm(x), self.config.output_dropout, self.training), after
