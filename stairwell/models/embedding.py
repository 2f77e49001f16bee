"""Token embeddings and output heads: standard ones, and adaptive ones for large vocabularies.

Letters: D width, V output vocabulary size.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE_INDEX = -100  # a target that is not scored; the default ignore_index of torch's cross entropy


class Embedding(nn.Module):
    """Token embeddings of about unit variance.

    The parameters have variance 1 / width, which suits a tied head, and are multiplied by sqrt(width) here."""

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__()
        self.scale = width**0.5
        self.vectors = nn.Parameter(torch.randn(vocabulary_size, width) / self.scale)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = F.embedding(tokens, self.vectors) * self.scale
        return x


class StartEmbedding(nn.Module):
    """The start-of-sequence embedding: a learned vector, initially zero, added to the first token of a stream.

    Positions affect attention scores only, so attention over equal tokens returns the same value for any number of
    them. Without this embedding, a core that attends to the current token could not distinguish `1` from `11` at the
    start of a stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, since_start: Tensor) -> Tensor:
        """Add the vector to first tokens. x (..., D), tokens since start (...) -> (..., D)"""
        return torch.addcmul(x, (since_start == 0).to(x.dtype)[..., None], self.vector)


def set_unregistered(module: nn.Module, name: str, other: nn.Module | None) -> None:
    """Set a module as an attribute without registering it, so that its parameters are counted and saved only once."""
    object.__setattr__(module, name, other)


class Head(nn.Module):
    """Output head: logits of the vocabulary. If tied, it shares the parameters of the embedding."""

    embedding: Embedding | None

    def __init__(self, vocabulary_size: int, width: int, tied: Embedding | None) -> None:
        super().__init__()
        set_unregistered(self, "embedding", tied)
        if tied is None:
            self.vectors = nn.Parameter(torch.randn(vocabulary_size, width) / width**0.5)
        self.bias = None if tied is not None else nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @property
    def weight(self) -> Tensor:
        """Return the output matrix (V, D). Saved as `vectors`, unless it is the embedding's."""
        return self.vectors if self.embedding is None else self.embedding.vectors

    def losses(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each target and the predicted tokens. x (..., D), targets (...) -> (...), (...)"""
        logits = self(x)
        return cross_entropy(logits, targets), logits.detach().argmax(-1)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each target. x (..., D), targets (...) -> (...)"""
        return cross_entropy(self(x), targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each target, in float32 or float64. logits (..., V), targets (...) -> (...)"""
    upcast = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(upcast.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


class AdaptiveVectors(nn.Module):
    """Adaptive embedding parameters (Baevski & Auli, 2019). Token ids are sorted by descending frequency; each cluster
    of rarer tokens has a narrower table and a projection to the full width."""

    def __init__(self, vocabulary_size: int, width: int, cutoffs: tuple[int, ...], factor: int) -> None:
        super().__init__()
        edges = [0, *(cutoff for cutoff in cutoffs if cutoff < vocabulary_size), vocabulary_size]
        self.clusters = list(pairwise(edges))
        widths = [max(1, width // factor**i) for i in range(len(self.clusters))]
        self.tables = nn.ParameterList(
            torch.randn(end - start, narrow) / narrow**0.5 for (start, end), narrow in zip(self.clusters, widths)
        )
        self.projections = nn.ParameterList(torch.randn(width, narrow) / narrow**0.5 for narrow in widths)


class AdaptiveEmbedding(nn.Module):
    def __init__(self, vectors: AdaptiveVectors, width: int) -> None:
        super().__init__()
        self.width = width
        self.vectors = vectors

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.vectors
        flat = tokens.flatten()
        x: Tensor = vectors.projections[0].new_zeros(flat.shape[0], self.width)
        for (start, end), table, projection in zip(vectors.clusters, vectors.tables, vectors.projections):
            where = ((flat >= start) & (flat < end)).nonzero().flatten()
            embedded = F.linear(F.embedding(flat[where] - start, table), projection) * table.shape[1] ** 0.5
            x = x.index_put((where,), embedded.to(x.dtype))
        return x.view(*tokens.shape, self.width)


class AdaptiveHead(nn.Module):
    """Adaptive softmax (Grave et al., 2017): first a frequent token or a cluster, then the token within the cluster."""

    vectors: AdaptiveVectors

    def __init__(self, vectors: AdaptiveVectors, width: int, tied: bool) -> None:
        super().__init__()
        if tied:
            set_unregistered(self, "vectors", vectors)
        else:
            self.vectors = vectors
        self.clusters = vectors.clusters
        self.frequent = self.clusters[0][1]  # number of frequent tokens
        self.rare = nn.Parameter(torch.randn(len(self.clusters) - 1, width) / width**0.5)

    def scores(self, x: Tensor, cluster: int) -> Tensor:
        """Return the logits of the tokens of a cluster. x (n, D) -> (n, tokens of the cluster)"""
        return F.linear(x @ self.vectors.projections[cluster], self.vectors.tables[cluster])

    def first_logits(self, x: Tensor) -> Tensor:
        """Return the logits of the frequent tokens followed by those of the clusters."""
        return torch.cat([self.scores(x, 0), F.linear(x, self.rare)], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the vocabulary: for a rare token, its cluster's logit plus its log-probability in the
        cluster. (..., D) -> (..., V)

        Logits are returned instead of log-probabilities, which are never positive, because a repetition penalty treats
        positive and negative logits differently."""
        first = self.first_logits(x)
        logits = [first[..., : self.frequent]]
        for i in range(1, len(self.clusters)):
            logits.append(first[..., self.frequent + i - 1, None] + self.scores(x, i).log_softmax(-1))
        return torch.cat(logits, -1)

    def losses(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each target and the predicted tokens. x (..., D), targets (...) -> (...), (...)"""
        flat, shape = x.flatten(0, -2), targets.shape
        first = self.first_logits(flat).log_softmax(-1)
        return self._losses(first, flat, targets.flatten()).view(shape), self._argmax(flat, first).view(shape)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each target. x (..., D), targets (...) -> (...)"""
        flat = x.flatten(0, -2)
        first = self.first_logits(flat).log_softmax(-1)
        return self._losses(first, flat, targets.flatten()).view(targets.shape)

    def _losses(self, first: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        """Return the losses (n,). The tokens of a cluster are scored only for targets in it. x (n, D), targets (n,)"""
        losses = first.new_zeros(targets.shape)
        for i, (start, end) in enumerate(self.clusters):
            where = ((targets >= start) & (targets < end)).nonzero().flatten()
            if not where.numel():
                continue
            target = (targets[where] - start)[:, None]
            if i == 0:
                loss = -first[where].gather(1, target)[:, 0]
            else:
                inside = self.scores(x[where], i).log_softmax(-1).gather(1, target)[:, 0]
                loss = -first[where, self.frequent + i - 1] - inside
            losses = losses.index_put((where,), loss)
        return losses

    @torch.no_grad()
    def _argmax(self, x: Tensor, first: Tensor) -> Tensor:
        """Return the most probable tokens (n,). No token is more probable than its cluster, so a cluster is scored only
        where it is more probable than the best token so far. x (n, D)"""
        best, token = first[:, : self.frequent].max(-1)
        for i in range(1, len(self.clusters)):
            where = (first[:, self.frequent + i - 1] > best).nonzero().flatten()
            if not where.numel():
                continue
            inside, index = self.scores(x[where], i).log_softmax(-1).max(-1)
            candidate = first[where, self.frequent + i - 1] + inside
            better = candidate > best[where]
            best[where[better]] = candidate[better]
            token[where[better]] = index[better] + self.clusters[i][0]
        return token
