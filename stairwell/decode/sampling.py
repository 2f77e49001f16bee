"""How the next token is chosen: temperature, top-k, top-p and a penalty on repetition.

    sampling = Sampling(temperature=0.8, top_p=0.95)
    tokens = sampling.sample(logits, generator)          (B, V) -> (B,)
    p = sampling.probabilities(logits)                   (..., V) -> (..., V)

Letters: B streams, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.errors import UserError

MIN_TEMPERATURE = 1e-6  # below it single precision cannot tell the distribution from a greedy choice
REPETITION_PENALTY_RANGE = (0.01, 100.0)
REPETITION_WINDOW = 64  # most recent tokens that the repetition penalty applies to


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is sampled from a model's distribution."""

    temperature: float = 1.0
    "Divisor of the logits; below 1e-6, decoding is greedy."
    top_k: int | None = None
    "Number of most probable tokens to sample from."
    top_p: float | None = None
    "Probability mass (of the top k) to sample from: the fewest tokens that reach it."
    repetition_penalty: float = 1.0
    "Penalty on the last 64 tokens; above 1 they become less probable."

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature must be a finite number, 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        low, high = REPETITION_PENALTY_RANGE
        if not low <= self.repetition_penalty <= high:
            raise UserError(
                f"the repetition penalty must be from {low:g} to {high:g} (1: no penalty), "
                f"not {self.repetition_penalty}"
            )

    def __call__(self, logits: Tensor, recent: Sequence[int], generator: torch.Generator | None) -> int:
        """Return the next token of one stream, given its logits (V,) and its most recent tokens."""
        if self.repetition_penalty != 1 and recent:
            logits = penalize_repetition(logits, recent[-REPETITION_WINDOW:], self.repetition_penalty)
        return int(self.sample(logits[None], generator))

    def sample(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one token per stream, without a repetition penalty. (B, V) -> (B,)"""
        if self.temperature < MIN_TEMPERATURE:
            return logits.argmax(-1)
        probabilities, tokens = self._truncated(logits)
        return tokens.gather(-1, torch.multinomial(probabilities, 1, generator=generator))[:, 0]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the distribution that `sample` samples from, in float64. (..., V) -> (..., V)"""
        zeros = torch.zeros_like(logits, dtype=torch.float64)
        if self.temperature < MIN_TEMPERATURE:
            return zeros.scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
        probabilities, tokens = self._truncated(logits.double())
        return zeros.scatter(-1, tokens, probabilities / probabilities.sum(-1, keepdim=True))

    def _truncated(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens that top-k and top-p leave, most probable first, and their probabilities, which need not
        sum to 1. (..., V) -> (..., k), (..., k)"""
        logits, tokens = (logits / self.temperature).sort(dim=-1, descending=True, stable=True)
        logits, tokens = logits[..., : self.top_k], tokens[..., : self.top_k]
        probabilities = logits.softmax(-1)
        if self.top_p is not None:
            preceding = probabilities.cumsum(-1) - probabilities
            # The most probable token stays, however small top_p is in single precision.
            probabilities = probabilities.masked_fill((preceding >= self.top_p) & (preceding > 0), 0)
        return probabilities, tokens


def penalize_repetition(logits: Tensor, recent: Sequence[int], penalty: float) -> Tensor:
    """Divide the positive logits of recent tokens by the penalty and multiply the negative ones (Keskar et al., 2019).

    logits (V,) -> (V,)"""
    index = torch.tensor(sorted(set(recent)), device=logits.device)
    scores = logits[index]
    return logits.index_copy(0, index, torch.where(scores > 0, scores / penalty, scores * penalty))
