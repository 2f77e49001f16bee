"""Models: embed -> core -> head. The core does the thinking; this file only turns symbols into vectors and back.

    logits, state = model(tokens, state)              tokens (B, T) int64 -> (B, T, V)
    losses, state = model.nll(tokens, targets, state)        per-token losses (B, T), for any size of vocabulary
    losses, likeliest, state = model.losses(tokens, targets, state)          and the symbols it would have chosen

Letters: B rows, T tokens, D width, V output symbols.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stairwell.cores import Core, Seen, build
from stairwell.cores.core import check_start, check_tensor
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.time import ages
from stairwell.fast import choose_engine
from stairwell.state import State

IGNORE = -100  # a target that is not scored
LOGITS_AT_ONCE = 1 << 24  # numbers; larger outputs are computed in blocks of tokens, and again for the gradient


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig:
    core: Any = field(default_factory=FeedbackConfig)
    "the core's own config"
    inputs: int = 256
    "number of input symbols"
    outputs: int | None = None
    "number of output symbols (V); the inputs if not given"
    tied: bool = False
    "use the input vectors for the output too"
    first_token: bool = True
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
        if self.inputs < 1 or (self.outputs is not None and self.outputs < 1):
            raise ValueError("a model needs at least one input and one output symbol")
        if getattr(self.core, "cross", False):
            raise ValueError("a language model reads no source, so core.cross must be false")
        if self.tied and self.inputs != self.V:
            raise ValueError(f"tied needs as many outputs as inputs, got {self.V} and {self.inputs}")
        if list(self.adaptive) != sorted(set(self.adaptive)) or any(cutoff < 1 for cutoff in self.adaptive):
            raise ValueError(f"the cutoffs of adaptive must rise from at least 1, got {self.adaptive}")
        for name in ("embedding_dropout", "output_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")

    @property
    def V(self) -> int:
        return self.outputs if self.outputs is not None else self.inputs


class Embedding(nn.Module):
    """One vector a symbol, scaled so that each number has about unit variance while the weights suit a tied head."""

    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.scale = width**0.5
        self.vectors = nn.Parameter(torch.randn(symbols, width) / self.scale)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.vectors) * self.scale


class FirstToken(nn.Module):
    """Tells a row's first token apart: a learned vector, zero at first, is added to its input.

    Positions enter keys only, so attention over equal tokens is an average of equal values, the same for one and for
    many. A core that sees itself could not tell `1` from `11` at the beginning of a row otherwise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, age: Tensor) -> Tensor:
        """x (..., D), age (...): how many tokens the row has read before -> (..., D)"""
        return torch.addcmul(x, (age == 0).to(x.dtype)[..., None], self.vector)


def borrow(module: nn.Module, name: str, other: nn.Module | None) -> None:
    """Give a module another one to use without making it its own, so that its weights are counted and saved once."""
    object.__setattr__(module, name, other)


class Head(nn.Module):
    """Logits, one a symbol; with the embedding's vectors if tied."""

    embedding: Embedding | None

    def __init__(self, symbols: int, width: int, tied: Embedding | None) -> None:
        super().__init__()
        borrow(self, "embedding", tied)
        if tied is None:
            self.vectors = nn.Parameter(torch.randn(symbols, width) / width**0.5)
        self.bias = None if tied is not None else nn.Parameter(torch.zeros(symbols))

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.vectors if self.embedding is None else self.embedding.vectors
        return F.linear(x, vectors, self.bias)

    def losses(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """x (..., D), targets (...) -> the loss of each target (...), the likeliest symbol (...)"""
        logits = self(x)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        nll = F.cross_entropy(wide.flatten(0, -2), targets.flatten(), reduction="none")
        return nll.view(targets.shape), logits.detach().argmax(-1)


class AdaptiveVectors(nn.Module):
    """Adaptive vectors (Baevski & Auli, 2019): words are numbered by falling frequency; each cluster of rarer ones has
    a narrower table and a projection to the full width."""

    def __init__(self, symbols: int, width: int, cutoffs: tuple[int, ...], factor: int) -> None:
        super().__init__()
        self.clusters = list(pairwise([0, *(cutoff for cutoff in cutoffs if cutoff < symbols), symbols]))
        widths = [max(1, width // factor**i) for i in range(len(self.clusters))]
        self.tables = nn.ParameterList(
            torch.randn(last - first, narrow) / narrow**0.5 for (first, last), narrow in zip(self.clusters, widths)
        )
        self.projections = nn.ParameterList(torch.randn(width, narrow) / narrow**0.5 for narrow in widths)


class AdaptiveEmbedding(nn.Module):
    def __init__(self, vectors: AdaptiveVectors, width: int) -> None:
        super().__init__()
        self.width = width
        self.vectors = vectors

    def forward(self, tokens: Tensor) -> Tensor:
        V = self.vectors
        flat = tokens.flatten()
        x = V.projections[0].new_zeros(flat.shape[0], self.width)
        for (first, last), table, projection in zip(V.clusters, V.tables, V.projections):
            where = ((flat >= first) & (flat < last)).nonzero().flatten()
            embedded = F.linear(F.embedding(flat[where] - first, table), projection) * table.shape[1] ** 0.5
            x = x.index_put((where,), embedded.to(x.dtype))
        return x.view(*tokens.shape, self.width)


class AdaptiveHead(nn.Module):
    """Adaptive softmax (Grave et al., 2017): a frequent word or a cluster first, then the word within its cluster."""

    vectors: AdaptiveVectors

    def __init__(self, vectors: AdaptiveVectors, width: int, tied: bool) -> None:
        super().__init__()
        if tied:
            borrow(self, "vectors", vectors)
        else:
            self.vectors = vectors
        self.clusters = vectors.clusters
        self.rare = nn.Parameter(torch.randn(len(self.clusters) - 1, width) / width**0.5)

    def scores(self, x: Tensor, cluster: int) -> Tensor:
        """x (n, D) -> (n, words of the cluster)"""
        return F.linear(x @ self.vectors.projections[cluster], self.vectors.tables[cluster])

    def first_step(self, x: Tensor) -> Tensor:
        """Log-probabilities of the frequent words and, after them, of the clusters."""
        return torch.cat([self.scores(x, 0), F.linear(x, self.rare)], -1).log_softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """The log-probabilities of all symbols. (..., D) -> (..., V)"""
        first, frequent = self.first_step(x), self.clusters[0][1]
        steps = [first[..., :frequent]]
        for i in range(1, len(self.clusters)):
            steps.append(first[..., frequent + i - 1, None] + self.scores(x, i).log_softmax(-1))
        return torch.cat(steps, -1)

    def losses(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """x (..., D), targets (...) -> the loss of each target (...), the likeliest symbol (...)"""
        flat, shape = x.flatten(0, -2), targets.shape
        first = self.first_step(flat)
        return self.nll(flat, targets.flatten(), first).view(shape), self.likeliest(flat, first).view(shape)

    def nll(self, x: Tensor, targets: Tensor, first: Tensor) -> Tensor:
        """x (n, D), targets (n,) -> (n,). A cluster's words are scored only for the tokens that are in it."""
        frequent = self.clusters[0][1]
        losses = first.new_zeros(targets.shape)
        for i, (begin, end) in enumerate(self.clusters):
            where = ((targets >= begin) & (targets < end)).nonzero().flatten()
            if not where.numel():
                continue
            word = (targets[where] - begin)[:, None]
            if i == 0:
                loss = -first[where].gather(1, word)[:, 0]
            else:
                inside = self.scores(x[where], i).log_softmax(-1).gather(1, word)[:, 0]
                loss = -first[where, frequent + i - 1] - inside
            losses = losses.index_put((where,), loss)
        return losses

    @torch.no_grad()
    def likeliest(self, x: Tensor, first: Tensor) -> Tensor:
        """x (n, D) -> (n,). No word is likelier than its cluster, so a cluster is looked into only for the tokens for
        which it is itself likelier than the best word so far."""
        frequent = self.clusters[0][1]
        best, word = first[:, :frequent].max(-1)
        for i in range(1, len(self.clusters)):
            where = (first[:, frequent + i - 1] > best).nonzero().flatten()
            if not where.numel():
                continue
            inside, place = self.scores(x[where], i).log_softmax(-1).max(-1)
            found = first[where, frequent + i - 1] + inside
            better = found > best[where]
            best[where[better]] = found[better]
            word[where[better]] = place[better] + self.clusters[i][0]
        return word


class LanguageModel(nn.Module):
    """Predicts a symbol at every token: the next one, or a label of its own vocabulary (state tracking)."""

    def __init__(self, config: LanguageModelConfig, engine: str = "auto") -> None:
        super().__init__()
        self.config = config
        D = config.core.width
        self.core: Core = build(config.core)
        choose_engine(self.core, engine)
        self.embedding: Embedding | AdaptiveEmbedding
        self.head: Head | AdaptiveHead
        if config.adaptive:
            cutoffs, factor = config.adaptive, config.adaptive_factor
            vectors = AdaptiveVectors(config.inputs, D, cutoffs, factor)
            self.embedding = AdaptiveEmbedding(vectors, D)
            own = vectors if config.tied else AdaptiveVectors(config.V, D, cutoffs, factor)
            self.head = AdaptiveHead(own, D, config.tied)
        else:
            embedding = Embedding(config.inputs, D)
            self.embedding, self.head = embedding, Head(config.V, D, embedding if config.tied else None)
        self.first_token = FirstToken(D) if config.first_token else None
        # With pre-norm the last thing a token meets is a norm; it is in no memory and not between passes.
        self.norm = nn.LayerNorm(D) if self.core.final_norm else nn.Identity()

    def init_state(
        self, batch: int, source: Tensor | None = None, source_mask: Tensor | None = None, slack: int = 0
    ) -> State:
        """A fresh state for `batch` rows, from which `crop` can take back up to `slack` tokens."""
        if source is not None or source_mask is not None:
            raise ValueError("a LanguageModel reads no source")
        return self.core.init_state(batch, slack)

    def unpack(self, vector: Tensor, slack: int = 0) -> State:
        """The state that `pack` made `vector` (B, N) of; `slack` is what that state was made with."""
        return self.core.unpack(vector, slack)

    def forward(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """tokens (B, T) -> logits (B, T, V), the state after"""
        x, state = self.hidden(tokens, state, start)
        return self.head(x), state

    def nll(self, tokens: Tensor, targets: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """tokens, targets (B, T) -> losses (B, T) in nats, 0 where the target is IGNORE, and the state after"""
        losses, _, state = self.losses(tokens, targets, state, start)
        return losses, state

    def losses(
        self, tokens: Tensor, targets: Tensor, state: State, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """tokens, targets (B, T) -> losses (B, T) in nats, 0 where the target is IGNORE, the likeliest symbols (B, T),
        and the state after.

        A large vocabulary's logits are formed for a block of tokens at a time, never for the whole batch."""
        check_tensor(tokens, "tokens")
        check_tensor(targets, "targets")
        self.check_symbols(targets, "target", self.config.V, ignore=IGNORE)
        if targets.shape != tokens.shape:
            raise ValueError(f"targets are {tuple(targets.shape)}, tokens {tuple(tokens.shape)}: they must be the same")
        x, state = self.hidden(tokens, state, start)
        block = max(1, LOGITS_AT_ONCE // self.config.V)
        if targets.numel() <= block:
            return *self.head.losses(x, targets), state
        flat, wanted = x.flatten(0, 1), targets.flatten()
        blocks = [
            checkpoint(self.head.losses, flat[i : i + block], wanted[i : i + block], use_reentrant=False)
            for i in range(0, flat.shape[0], block)
        ]
        losses, likeliest = (torch.cat(parts).view(targets.shape) for parts in zip(*blocks))
        return losses, likeliest, state

    def hidden(self, tokens: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, State]:
        """What the head reads: (B, T, D) after the last norm."""
        check_tensor(tokens, "tokens")
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be (rows, tokens), not {tuple(tokens.shape)}")
        self.check_symbols(tokens, "token", self.config.inputs)
        self.core.check_state(state, tokens.shape[0])
        check_start(start, tokens.shape)
        x = self.embed(tokens, ages(state.count, start, tokens.shape[1]))
        x, state = self.core(x, state, start)
        return F.dropout(self.norm(x), self.config.output_dropout, self.training), state

    def embed(self, tokens: Tensor, age: Tensor) -> Tensor:
        """What the core reads. tokens, age (...) -> (..., D); age 0 is a row's first token"""
        x = self.embedding(tokens)
        if self.first_token is not None:
            x = self.first_token(x, age)
        return F.dropout(x, self.config.embedding_dropout, self.training)

    @staticmethod
    def check_symbols(symbols: Tensor, what: str, size: int, ignore: int | None = None) -> None:
        if symbols.dtype != torch.int64:
            raise TypeError(f"{what}s must be int64, not {symbols.dtype}")
        # On an accelerator looking at the values would stall it; there the embedding's own check has to do.
        if symbols.device.type != "cpu":
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


@contextmanager
def inspect(model: nn.Module) -> Iterator[Seen]:
    """Look inside: `with inspect(model) as seen: model(tokens, state)`.

    Then `seen.attention[layer]` is (B, H, T, slots), the nearest slot first (the token itself where it sees itself,
    else the one before), and `seen.layer_weights` what the memory is made of. Runs the reference engine."""
    seen = Seen()
    cores = [module for module in model.modules() if isinstance(module, Core)]
    if not cores:
        raise TypeError(f"{type(model).__name__} has no core to look into")
    for core in cores:
        core.seen = seen
    try:
        yield seen
    finally:
        for core in cores:
            core.seen = None
