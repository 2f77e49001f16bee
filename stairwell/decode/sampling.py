"""Sampling of the next token: temperature, top-k, top-p and repetition penalty.

    sampling = Sampling(temperature=0.8, top_p=0.95)
    tokens = sampling.sample(logits, generator)          (B, V) -> (B,)
    p = sampling.probabilities(logits)                   (..., V) -> (..., V)

Letters: B streams, V vocabulary size.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stairwell.errors import UserError

MIN_TEMPERATURE = 1e-6  # below it, sampling in float32 cannot be distinguished from greedy decoding
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
    "Probability mass (of the top k) to sample from: the smallest set of most probable tokens that reaches it."
    repetition_penalty: float = 1.0
    "Penalty on the last 64 tokens; above 1 they become less probable."

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "repetition_penalty"):
            value = getattr(self, name)
            if not hasattr(value, "__float__") and not (name == "top_p" and value is None):
                raise TypeError(f"{name} must be a number, not {value!r}")
        if self.top_k is not None:
            as_integer(self.top_k, "top_k must be an integer")
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
            return most_probable(logits)
        probabilities, tokens = self._truncated(logits)
        return tokens.gather(-1, torch.multinomial(probabilities, 1, generator=generator))[:, 0]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the distribution that `sample` samples from, in float64. (..., V) -> (..., V)"""
        zeros = torch.zeros_like(logits, dtype=torch.float64)
        if self.temperature < MIN_TEMPERATURE:
            return zeros.scatter(-1, most_probable(logits)[..., None], 1.0)
        probabilities, tokens = self._truncated(logits.double())
        return zeros.scatter(-1, tokens, probabilities / probabilities.sum(-1, keepdim=True))

    def _truncated(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and tokens, most probable first, after top-k and top-p. The probabilities of removed
        tokens are 0 and the others are not renormalized. (..., V) -> (..., k), (..., k)"""
        logits, tokens = (logits / self.temperature).sort(dim=-1, descending=True, stable=True)
        logits, tokens = logits[..., : self.top_k], tokens[..., : self.top_k]
        probabilities = logits.softmax(-1)
        if self.top_p is not None:
            preceding = probabilities.cumsum(-1) - probabilities
            # Always keep the most probable token, even if top_p rounds to 0 in float32.
            probabilities = probabilities.masked_fill((preceding >= self.top_p) & (preceding > 0), 0)
        return probabilities, tokens


def most_probable(logits: Tensor) -> Tensor:
    """Return the token with the highest logit. (..., V) -> (...)"""
    tokens = logits.argmax(-1)
    # NaN counts as the maximum, so it is enough to check the chosen logits.
    if logits.gather(-1, tokens[..., None]).isnan().any():
        raise UserError("the logits contain NaN, so no token can be chosen; check the model's parameters and its state")
    return tokens


def make_generator(device: torch.device, seed: int | None = None) -> torch.Generator:
    """Return a random generator; without a seed, every call returns a different one.

    PyTorch uses only the low 32 bits of a seed on the CPU, so larger and negative seeds are hashed:
    then all of their bits matter."""
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
        return generator
    if not 0 <= seed < 2**32:
        seed = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:4])
    return generator.manual_seed(seed)


def as_integer(number: Any, expected: str) -> int:
    """Return a number as a Python integer; raise a TypeError if it is a bool or not an integer."""
    try:
        if not isinstance(number, bool):
            return operator.index(number)
    except TypeError:
        pass
    raise TypeError(f"{expected}, not {number!r}")


def penalize_repetition(logits: Tensor, recent: Sequence[int], penalty: float) -> Tensor:
    """Divide the positive logits of recent tokens by the penalty and multiply the negative ones (Keskar et al., 2019).

    logits (V,) -> (V,)"""
    index = torch.tensor(sorted(set(recent)), device=logits.device)
    scores = logits[index]
    return logits.index_copy(0, index, torch.where(scores > 0, scores / penalty, scores * penalty))
