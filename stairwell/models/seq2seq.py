"""Sequence to sequence: an encoder reads the source, and a decoder with any core generates the target.

    state = model.init_state(batch, source, source_mask)         source (B, J) int64, encoded once into the state
    logits, state = model(tokens, state)                          tokens (B, T) int64 -> (B, T, V), as a LanguageModel
    losses, nll, predictions, state = model.losses(tokens, targets, state, smoothing)

Cores with cross-attention attend to the source in every layer. Those without it (LSTM, DeltaNet) are followed by one
cross-attention and a feed-forward (Luong et al., 2015). Only the decoder has a memory; the encoded source is static in
the state.

Letters: B batch size, T target tokens, J source tokens, D width, V target vocabulary size.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stairwell.configs import check_probabilities
from stairwell.cores import build
from stairwell.cores.core import AttentionRecorder, SourceState, check_tensor
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.fast import choose_engine
from stairwell.fast.first_order import first_order
from stairwell.layers import Attention, CoreConfig, FeedForward, LayerConfig, Slots, source_slots
from stairwell.models.embedding import IGNORE_INDEX, Embedding, Head, StartEmbedding
from stairwell.models.encoder import Encoder, EncoderConfig
from stairwell.models.language import TokenModel, in_blocks
from stairwell.state import State


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(EncoderConfig):
    core: CoreConfig = field(default_factory=FeedbackConfig)
    "Config of the decoder's core."
    sources: int = 256
    "Source vocabulary size."
    targets: int = 256
    "Target vocabulary size (V)."
    joint: bool = True
    "Whether source and target share a vocabulary."
    tied: Literal["all", "output", "none"] = "all"
    "Shared embeddings: source, target and output (all), target and output (output), or none."
    start_embedding: bool = True
    "Start-of-sequence embedding of the target."
    embedding_dropout: float = 0.0
    "Dropout rate of the embedded source and target."
    output_dropout: float = 0.0
    "Dropout rate of the core's output."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sources < 1 or self.targets < 1:
            raise ValueError("sources and targets must be at least 1")
        if self.tied == "all" and (not self.joint or self.sources != self.targets):
            raise ValueError("tied all requires one vocabulary for source and target; use tied output")
        check_probabilities(self, "embedding_dropout", "output_dropout")

    @property
    def V(self) -> int:
        return self.targets

    @property
    def inputs(self) -> int:
        """Input vocabulary size of the decoder."""
        return self.targets


class SmoothedLoss(torch.autograd.Function):
    """Cross-entropy with label smoothing e over a vocabulary of V tokens (Szegedy et al., 2016):

        loss            = (1 - e) nll(target) + e mean of nll over the vocabulary
        d loss / d logit = softmax - e / V - (1 - e) [token is the target]

    A custom autograd function saves passes over the logits, the largest tensor of a small model."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return smoothed losses, plain losses and predicted tokens, (n,) each. logits (n, V), targets (n,)"""
        highest, predictions = logits.max(-1)
        powers = (logits - highest[:, None]).exp_()
        total = powers.sum(-1)
        logsumexp = total.log() + highest
        nll = logsumexp - logits.gather(1, targets[:, None])[:, 0]
        smoothed = (1 - smoothing) * nll + smoothing * (logsumexp - logits.mean(-1)) if smoothing else nll.clone()
        ctx.save_for_backward(powers, total, targets)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nll, predictions)
        return smoothed, nll, predictions

    @staticmethod
    @first_order(
        "the losses of a Seq2Seq have",
        "take the loss of the logits, F.cross_entropy(..., label_smoothing=...), instead",
    )
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        powers, total, targets = ctx.saved_tensors
        uniform = (-ctx.smoothing / powers.shape[1] * grad)[:, None]
        grad_logits = torch.addcmul(uniform, powers, (grad / total)[:, None])
        grad_logits.scatter_add_(1, targets[:, None], (ctx.smoothing - 1) * grad[:, None])
        return grad_logits, None, None


class SourceAttention(nn.Module):
    """Cross-attention after a core that has none: x + Attn(norm(x)), then x + FF(norm(x))."""

    recorder: AttentionRecorder | None = None  # set by `inspect`

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        config = LayerConfig(width=width, heads=heads)
        self.norm, self.attention = nn.LayerNorm(width), Attention(config)
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(width), FeedForward(config)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        keys, values = self.attention.keys_values(source.masked_fill(~mask[..., None], 0))
        return self.attend(x, source_slots(keys, values, mask))

    def attend(self, x: Tensor, source: Slots) -> Tensor:
        """Attend to the projected source: x (B, T, D) -> (B, T, D)."""
        z, weights = self.attention(self.norm(x), source, None)
        if self.recorder is not None:
            self.recorder.add_source(0, weights)
        x = x + z
        y: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class Seq2Seq(TokenModel):
    """Generates a target sequence from an encoded source."""

    config: Seq2SeqConfig
    embedding: Embedding

    def __init__(self, config: Seq2SeqConfig, engine: str = "auto") -> None:
        super().__init__()
        self.config = config
        D = config.core.width
        core = config.core
        self.core = build(dataclasses.replace(core, cross=True) if isinstance(core, LayerConfig) else core)
        choose_engine(self.core, engine)
        self.reader = None if isinstance(core, LayerConfig) else SourceAttention(D, config.encoder_heads)
        self.embedding = Embedding(config.targets, D)
        self.source_embedding = None if config.tied == "all" else Embedding(config.sources, D)
        self.encoder = Encoder(config, D)
        self.head = Head(config.targets, D, None if config.tied == "none" else self.embedding)
        self.start_embedding = StartEmbedding(D) if config.start_embedding else None
        self.norm = nn.LayerNorm(D) if self.core.final_norm or self.reader is not None else nn.Identity()

    def init_state(
        self, batch: int, source: Tensor | None = None, source_mask: Tensor | None = None, max_crop: int = 0
    ) -> SourceState:
        """Encode the sources and return the initial state of `batch` streams. source (B, J) int64, source_mask (B, J)
        bool, true where there is a source token."""
        if source is None:
            raise ValueError("a Seq2Seq needs a source: init_state(batch, source, source_mask)")
        mask = torch.ones_like(source, dtype=torch.bool) if source_mask is None else source_mask
        decoder = self.core.init_state(batch, max_crop)
        return SourceState(decoder=decoder, source=self.encode(source, mask), source_mask=mask)

    def encode(self, source: Tensor, mask: Tensor) -> Tensor:
        """Return the encoded source (B, J, D), zero where there is padding. source (B, J) int64, mask (B, J) bool"""
        check_tensor(source, "the source")
        check_tensor(mask, "source_mask")
        if source.dim() != 2 or source.shape != mask.shape or mask.dtype != torch.bool:
            raise ValueError(
                f"a source is (batch, tokens) with a bool mask of that shape, not {tuple(source.shape)} with "
                f"{mask.dtype} of {tuple(mask.shape)}"
            )
        source = source.masked_fill(~mask, 0)
        self.check_token_ids(source, "source token", self.config.sources)
        return self.encode_checked(source, mask)

    def encode_checked(self, source: Tensor, mask: Tensor) -> Tensor:
        """Encode a source without checks, which depend on values and cannot be traced."""
        table = self.embedding if self.source_embedding is None else self.source_embedding
        x = F.dropout(table(source), self.config.embedding_dropout, self.training)
        encoded: Tensor = self.encoder(x, mask)
        return encoded.masked_fill(~mask[..., None], 0)

    def losses(
        self, tokens: Tensor, targets: Tensor, state: State, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor, State]:
        """Return smoothed losses, plain losses in nats (both 0 where the target is IGNORE_INDEX) and predicted tokens,
        (B, T) each, and the state after. Logits are computed for scored targets only. tokens, targets (B, T)"""
        x, state = self.hidden_for(targets, tokens, state)
        scored = targets != IGNORE_INDEX
        score = partial(self.score, smoothing=smoothing)
        smoothed, nll, predictions = in_blocks(score, x[scored], targets[scored], self.config.V)
        zeros = smoothed.new_zeros(targets.shape)
        predictions = torch.full_like(targets, IGNORE_INDEX).masked_scatter(scored, predictions)
        return zeros.masked_scatter(scored, smoothed), zeros.masked_scatter(scored, nll), predictions, state

    def score(self, x: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return smoothed losses, plain losses and predicted tokens, (n,) each. x (n, D), targets (n,)"""
        logits = self.head(x)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        scores: tuple[Tensor, Tensor, Tensor] = SmoothedLoss.apply(wide, targets, smoothing)  # type: ignore[no-untyped-call]
        return scores

    def hidden(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        if not isinstance(state, SourceState):
            raise TypeError(f"a Seq2Seq needs a SourceState, not a {type(state).__name__}; make one with init_state")
        self.check_tokens(tokens, start)
        x = self.embed(tokens, tokens_since_start(state.count, start, tokens.shape[1]))
        if self.reader is None:
            x, decoder = self.core(x, state.decoder, start, state.source, state.source_mask)
        else:
            x, decoder = self.core(x, state.decoder, start)
            x = self.reader(x, state.source, state.source_mask)
        after = dataclasses.replace(state, decoder=decoder)
        return F.dropout(self.norm(x), self.config.output_dropout, self.training), after
