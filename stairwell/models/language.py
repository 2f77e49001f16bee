"""Language models: embedding -> core -> head.

    logits, state = model(tokens, state)                                  tokens (B, T) int64 -> (B, T, V)
    losses, state = model.nll(tokens, targets, state)                     per-token losses (B, T)
    losses, predictions, state = model.losses(tokens, targets, state)     and the predicted tokens (B, T)

Letters: B batch size, T tokens, D width, V output vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stairwell.configs import Config, check_probabilities
from stairwell.cores import Core, build
from stairwell.cores.core import check_start, check_tensor
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.devices import on_accelerator
from stairwell.fast import choose_engine
from stairwell.layers import CoreConfig
from stairwell.models.embedding import (
    IGNORE_INDEX,
    AdaptiveEmbedding,
    AdaptiveHead,
    AdaptiveVectors,
    Embedding,
    Head,
    StartEmbedding,
)
from stairwell.state import State

FEW_TOKENS = 16
MAX_LOGITS = 1 << 24  # larger outputs are computed in blocks of tokens, and recomputed in the backward pass


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(Config):
    core: CoreConfig = field(default_factory=FeedbackConfig)
    "Config of the core."
    inputs: int = 256
    "Input vocabulary size."
    outputs: int | None = None
    "Output vocabulary size (V); that of the input if not given."
    tied: bool = False
    "Whether the output uses the input embeddings."
    start_embedding: bool = True
    "Start-of-sequence embedding; without it a core that attends to the current token cannot count equal tokens."
    embedding_dropout: float = 0.0
    "Dropout rate of the embedded input."
    output_dropout: float = 0.0
    "Dropout rate of the core's output."
    adaptive: tuple[int, ...] = ()
    "Adaptive embeddings and softmax: first token id of each rarer cluster (20000,40000,200000 in the papers)."
    adaptive_factor: int = 4
    "Factor by which the embeddings of each cluster are narrower than those of the one before."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs < 1 or (self.outputs is not None and self.outputs < 1):
            raise ValueError("inputs and outputs must be at least 1")
        if getattr(self.core, "cross", False):
            raise ValueError("a language model has no source, so core.cross must be false")
        if self.tied and self.inputs != self.V:
            raise ValueError(f"tied requires outputs equal to inputs, got {self.V} and {self.inputs}")
        if list(self.adaptive) != sorted(set(self.adaptive)) or any(cutoff < 1 for cutoff in self.adaptive):
            raise ValueError(f"the cutoffs of adaptive must be increasing and at least 1, got {self.adaptive}")
        check_probabilities(self, "embedding_dropout", "output_dropout")

    @property
    def V(self) -> int:
        return self.outputs if self.outputs is not None else self.inputs


class TokenModelConfig(Protocol):
    @property
    def inputs(self) -> int: ...

    @property
    def V(self) -> int: ...

    @property
    def embedding_dropout(self) -> float: ...


class TokenModel(nn.Module):
    """Base class of models that read and predict tokens."""

    config: TokenModelConfig
    core: Core[Any, Any]
    embedding: Embedding | AdaptiveEmbedding
    head: Head | AdaptiveHead
    start_embedding: StartEmbedding | None

    def forward(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """Return logits (B, T, V) and the state after. tokens (B, T)"""
        x, state = self.hidden(tokens, state, start)
        return self.head(x), state

    def hidden(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the input of the head, (B, T, D) after the last norm, and the state after."""
        raise NotImplementedError

    def hidden_for(
        self, targets: Tensor, tokens: Tensor, state: State, start: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Check the targets, then return the same as `hidden`."""
        check_tensor(tokens, "tokens")
        check_tensor(targets, "targets")
        self.check_token_ids(targets, "target", self.config.V, ignore=IGNORE_INDEX)
        if targets.shape != tokens.shape:
            raise ValueError(f"targets are {tuple(targets.shape)}, tokens {tuple(tokens.shape)}: they must be the same")
        return self.hidden(tokens, state, start)

    def embed(self, tokens: Tensor, since_start: Tensor | None) -> Tensor:
        """Return the input of the core. tokens, since_start (...) -> (..., D); None: no token is a stream's first"""
        x: Tensor = self.embedding(tokens)
        if self.start_embedding is not None and since_start is not None:
            x = self.start_embedding(x, since_start)
        return F.dropout(x, self.config.embedding_dropout) if self.training else x

    def check_tokens(self, tokens: Tensor, start: Tensor | None) -> None:
        check_tensor(tokens, "tokens")
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be (batch, tokens), not {tuple(tokens.shape)}")
        self.check_token_ids(tokens, "token", self.config.inputs)
        check_start(start, tokens.shape)

    @staticmethod
    def check_token_ids(ids: Tensor, what: str, vocabulary_size: int, ignore: int | None = None) -> None:
        if ids.dtype != torch.int64:
            raise TypeError(f"{what}s must be int64, not {ids.dtype}")
        # Reading values would synchronize with an accelerator; there the embedding makes its own check.
        if on_accelerator(ids):
            return
        # A few numbers are faster to check in Python than in three operations.
        if ids.numel() <= FEW_TOKENS and all(0 <= token < vocabulary_size for token in ids.flatten().tolist()):
            return
        wrong = (ids < 0) | (ids >= vocabulary_size)
        if ignore is not None:
            wrong &= ids != ignore
        if wrong.any():
            b, t = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{what} {int(ids[b, t])} at stream {b}, position {t} is out of range: "
                f"the model's vocabulary is 0..{vocabulary_size - 1}"
            )


class LanguageModel(TokenModel):
    """Predicts at every token the next one, or a label from another vocabulary (state tracking)."""

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, engine: str = "auto") -> None:
        super().__init__()
        self.config = config
        self.core = build(config.core)
        D = config.core.width
        choose_engine(self.core, engine)
        if config.adaptive:
            cutoffs, factor = config.adaptive, config.adaptive_factor
            vectors = AdaptiveVectors(config.inputs, D, cutoffs, factor)
            self.embedding = AdaptiveEmbedding(vectors, D)
            output_vectors = vectors if config.tied else AdaptiveVectors(config.V, D, cutoffs, factor)
            self.head = AdaptiveHead(output_vectors, D, config.tied)
        else:
            embedding = Embedding(config.inputs, D)
            self.embedding, self.head = embedding, Head(config.V, D, embedding if config.tied else None)
        self.start_embedding = StartEmbedding(D) if config.start_embedding else None
        # With pre-norm there is a final norm; it affects neither the memory nor the passes.
        self.norm = nn.LayerNorm(D) if self.core.final_norm else nn.Identity()

    def init_state(
        self, batch: int, source: Tensor | None = None, source_mask: Tensor | None = None, max_crop: int = 0
    ) -> State:
        """Return the initial state of `batch` streams; `crop` can remove up to `max_crop` tokens."""
        if source is not None or source_mask is not None:
            raise ValueError("a LanguageModel has no source")
        state: State = self.core.init_state(batch, max_crop)
        return state

    def unpack(self, vector: Tensor, max_crop: int = 0) -> State:
        """Return the state that `pack` made `vector` (B, N) from; `max_crop` is that of the packed state."""
        state: State = self.core.unpack(vector, max_crop)
        return state

    def nll(self, tokens: Tensor, targets: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """Return losses (B, T) in nats, 0 where the target is IGNORE_INDEX, and the state after.

        tokens, targets (B, T)"""
        x, state = self.hidden_for(targets, tokens, state, start)
        (losses,) = in_blocks(
            lambda *block: (self.head.nll(*block),), x.flatten(0, 1), targets.flatten(), self.config.V
        )
        return losses.view(targets.shape), state

    def losses(
        self, tokens: Tensor, targets: Tensor, state: State, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Return losses (B, T) in nats, 0 where the target is IGNORE_INDEX, the predicted tokens (B, T) and the state
        after. tokens, targets (B, T)"""
        x, state = self.hidden_for(targets, tokens, state, start)
        losses, predictions = in_blocks(self.head.losses, x.flatten(0, 1), targets.flatten(), self.config.V)
        return losses.view(targets.shape), predictions.view(targets.shape), state

    def hidden(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        self.check_tokens(tokens, start)
        self.core.check_state(state, tokens.shape[0])
        x = self.embed(tokens, tokens_since_start(state.count, start, tokens.shape[1]))
        x, state = self.core(x, state, start)
        return F.dropout(self.norm(x), self.config.output_dropout, self.training), state


def in_blocks(
    function: Callable[[Tensor, Tensor], tuple[Tensor, ...]], x: Tensor, targets: Tensor, vocabulary_size: int
) -> tuple[Tensor, ...]:
    """Return function(x, targets) for x (n, D) and targets (n,), computed block by block with activation checkpointing,
    so that the logits of a large vocabulary never exist for all tokens at once."""
    block = max(1, MAX_LOGITS // vocabulary_size)
    if len(targets) <= block:
        return function(x, targets)
    blocks = [
        checkpoint(function, x[i : i + block], targets[i : i + block], use_reentrant=False)
        for i in range(0, len(targets), block)
    ]
    return tuple(torch.cat(parts) for parts in zip(*blocks))
