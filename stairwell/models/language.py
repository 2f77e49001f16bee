"""Language models: embed -> core -> head. The core does the thinking; here symbols become vectors, and vectors symbols.

    logits, state = model(tokens, state)              tokens (B, T) int64 -> (B, T, V)
    losses, state = model.nll(tokens, targets, state)        per-token losses (B, T), for any size of vocabulary
    losses, likeliest, state = model.losses(tokens, targets, state)          and the symbols it would have chosen

Letters: B rows, T tokens, D width, V output symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stairwell.configs import Config, check_rates
from stairwell.cores import Core, build
from stairwell.cores.core import check_start, check_tensor
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.time import ages
from stairwell.devices import on_accelerator
from stairwell.fast import choose_engine
from stairwell.models.embedding import AdaptiveEmbedding, AdaptiveHead, AdaptiveVectors, Embedding, Head, StartEmbedding
from stairwell.state import State

IGNORE = -100  # a target that is not scored
LOGITS_AT_ONCE = 1 << 24  # numbers; larger outputs are computed in blocks of tokens, and again for the gradient


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(Config):
    core: Any = field(default_factory=FeedbackConfig)
    "the core's own config"
    inputs: int = 256
    "number of input symbols"
    outputs: int | None = None
    "number of output symbols (V); the inputs if not given"
    tied: bool = False
    "use the input vectors for the output too"
    start_embedding: bool = True
    "add a learned vector to a row's first token; without it a core that sees itself cannot count a run of equal tokens"
    embedding_dropout: float = 0.0
    "dropout rate on the embedded input"
    output_dropout: float = 0.0
    "dropout rate on the core's output"
    adaptive: tuple[int, ...] = ()
    "adaptive embeddings and softmax: where each cluster of rarer words begins (20000,40000,200000 in the papers)"
    adaptive_factor: int = 4
    "how much narrower the vectors of each such cluster are than those of the one before"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs < 1 or (self.outputs is not None and self.outputs < 1):
            raise ValueError("a model needs at least one input and one output symbol")
        if getattr(self.core, "cross", False):
            raise ValueError("a language model reads no source, so core.cross must be false")
        if self.tied and self.inputs != self.V:
            raise ValueError(f"tied needs as many outputs as inputs, got {self.V} and {self.inputs}")
        if list(self.adaptive) != sorted(set(self.adaptive)) or any(cutoff < 1 for cutoff in self.adaptive):
            raise ValueError(f"the cutoffs of adaptive must rise from at least 1, got {self.adaptive}")
        check_rates(self, "embedding_dropout", "output_dropout")

    @property
    def V(self) -> int:
        return self.outputs if self.outputs is not None else self.inputs


class SymbolModel(nn.Module):
    """What models that read and say symbols share."""

    config: Any
    core: Core
    embedding: Embedding | AdaptiveEmbedding
    head: Head | AdaptiveHead
    start_embedding: StartEmbedding | None

    def forward(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """tokens (B, T) -> logits (B, T, V), the state after"""
        x, state = self.hidden(tokens, state, start)
        return self.head(x), state

    def hidden(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """What the head reads: (B, T, D) after the last norm."""
        raise NotImplementedError

    def hidden_for(
        self, targets: Tensor, tokens: Tensor, state: State, start: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """What the head reads, once targets and tokens are known to belong together."""
        check_tensor(tokens, "tokens")
        check_tensor(targets, "targets")
        self.check_symbols(targets, "target", self.config.V, ignore=IGNORE)
        if targets.shape != tokens.shape:
            raise ValueError(f"targets are {tuple(targets.shape)}, tokens {tuple(tokens.shape)}: they must be the same")
        return self.hidden(tokens, state, start)

    def embed(self, tokens: Tensor, age: Tensor) -> Tensor:
        """What the core reads. tokens, age (...) -> (..., D); age 0 is a row's first token"""
        x = self.embedding(tokens)
        if self.start_embedding is not None:
            x = self.start_embedding(x, age)
        return F.dropout(x, self.config.embedding_dropout, self.training)

    def check_tokens(self, tokens: Tensor, start: Tensor | None) -> None:
        check_tensor(tokens, "tokens")
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be (rows, tokens), not {tuple(tokens.shape)}")
        self.check_symbols(tokens, "token", self.config.inputs)
        check_start(start, tokens.shape)

    @staticmethod
    def check_symbols(symbols: Tensor, what: str, size: int, ignore: int | None = None) -> None:
        if symbols.dtype != torch.int64:
            raise TypeError(f"{what}s must be int64, not {symbols.dtype}")
        # On an accelerator looking at the values would stall it; there the embedding's own check has to do.
        if on_accelerator(symbols):
            return
        wrong = (symbols < 0) | (symbols >= size)
        if ignore is not None:
            wrong &= symbols != ignore
        if wrong.any():
            row, place = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{what} {int(symbols[row, place])} at row {row}, place {place} is out of range: "
                f"the model knows 0..{size - 1}"
            )


class LanguageModel(SymbolModel):
    """Predicts a symbol at every token: the next one, or a label of its own vocabulary (state tracking)."""

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
            own = vectors if config.tied else AdaptiveVectors(config.V, D, cutoffs, factor)
            self.head = AdaptiveHead(own, D, config.tied)
        else:
            embedding = Embedding(config.inputs, D)
            self.embedding, self.head = embedding, Head(config.V, D, embedding if config.tied else None)
        self.start_embedding = StartEmbedding(D) if config.start_embedding else None
        # With pre-norm the last thing a token meets is a norm; it is in no memory and not between passes.
        self.norm = nn.LayerNorm(D) if self.core.final_norm else nn.Identity()

    def init_state(
        self, batch: int, source: Tensor | None = None, source_mask: Tensor | None = None, max_crop: int = 0
    ) -> State:
        """A fresh state for `batch` rows, from which `crop` can take back up to `max_crop` tokens."""
        if source is not None or source_mask is not None:
            raise ValueError("a LanguageModel reads no source")
        return self.core.init_state(batch, max_crop)

    def unpack(self, vector: Tensor, max_crop: int = 0) -> State:
        """The state that `pack` made `vector` (B, N) of; `max_crop` is what that state was made with."""
        return self.core.unpack(vector, max_crop)

    def nll(self, tokens: Tensor, targets: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """tokens, targets (B, T) -> losses (B, T) in nats, 0 where the target is IGNORE, and the state after"""
        x, state = self.hidden_for(targets, tokens, state, start)
        (losses,) = by_blocks(
            lambda *block: (self.head.nll(*block),), x.flatten(0, 1), targets.flatten(), self.config.V
        )
        return losses.view(targets.shape), state

    def losses(
        self, tokens: Tensor, targets: Tensor, state: State, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """tokens, targets (B, T) -> losses (B, T) in nats, 0 where the target is IGNORE, the likeliest symbols (B, T),
        and the state after."""
        x, state = self.hidden_for(targets, tokens, state, start)
        losses, likeliest = by_blocks(self.head.losses, x.flatten(0, 1), targets.flatten(), self.config.V)
        return losses.view(targets.shape), likeliest.view(targets.shape), state

    def hidden(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """What the head reads: (B, T, D) after the last norm."""
        self.check_tokens(tokens, start)
        self.core.check_state(state, tokens.shape[0])
        x = self.embed(tokens, ages(state.count, start, tokens.shape[1]))
        x, state = self.core(x, state, start)
        return F.dropout(self.norm(x), self.config.output_dropout, self.training), state


def by_blocks(
    judge: Callable[[Tensor, Tensor], tuple[Tensor, ...]], x: Tensor, targets: Tensor, symbols: int
) -> tuple[Tensor, ...]:
    """What `judge` says of x (n, D) and targets (n,). The logits of a large vocabulary are formed for a block of tokens
    at a time, and formed again for the gradient, never for all of them."""
    block = max(1, LOGITS_AT_ONCE // symbols)
    if len(targets) <= block:
        return judge(x, targets)
    blocks = [
        checkpoint(judge, x[i : i + block], targets[i : i + block], use_reentrant=False)
        for i in range(0, len(targets), block)
    ]
    return tuple(torch.cat(parts) for parts in zip(*blocks))
