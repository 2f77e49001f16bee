"""Symbols to vectors and vectors to symbols: plain tables, and adaptive ones for large vocabularies.

Letters: D width, V output symbols.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    """One vector a symbol, scaled so that each number has about unit variance while the weights suit a tied head."""

    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.scale = width**0.5
        self.vectors = nn.Parameter(torch.randn(symbols, width) / self.scale)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.vectors) * self.scale


class StartEmbedding(nn.Module):
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
        return cross_entropy(logits, targets), logits.detach().argmax(-1)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """x (..., D), targets (...) -> the loss of each target (...)"""
        return cross_entropy(self(x), targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """logits (..., V), targets (...) -> (...), in float32 at least"""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


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

    def first_logits(self, x: Tensor) -> Tensor:
        """Logits of the frequent words and, after them, of the clusters."""
        return torch.cat([self.scores(x, 0), F.linear(x, self.rare)], -1)

    def first_step(self, x: Tensor) -> Tensor:
        """Log-probabilities of the frequent words and, after them, of the clusters."""
        return self.first_logits(x).log_softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all symbols: a rare word has its cluster's and its log-probability in the cluster.
        (..., D) -> (..., V)

        Not log-probabilities, which are never positive: a repetition penalty divides positive logits."""
        first, frequent = self.first_logits(x), self.clusters[0][1]
        steps = [first[..., :frequent]]
        for i in range(1, len(self.clusters)):
            steps.append(first[..., frequent + i - 1, None] + self.scores(x, i).log_softmax(-1))
        return torch.cat(steps, -1)

    def losses(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """x (..., D), targets (...) -> the loss of each target (...), the likeliest symbol (...)"""
        flat, shape = x.flatten(0, -2), targets.shape
        first = self.first_step(flat)
        return self.losses_from(first, flat, targets.flatten()).view(shape), self.likeliest(flat, first).view(shape)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """x (..., D), targets (...) -> the loss of each target (...)"""
        flat = x.flatten(0, -2)
        return self.losses_from(self.first_step(flat), flat, targets.flatten()).view(targets.shape)

    def losses_from(self, first: Tensor, x: Tensor, targets: Tensor) -> Tensor:
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
