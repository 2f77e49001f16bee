"""Modular arithmetic without brackets: what is 3 - 2 * 4 + 1 modulo 5? A regular language of the Chomsky suite.

Definition (Delétang et al., arXiv 2207.02098): numbers 0..4 with +, - and * between them, multiplication first; the
label is the value modulo 5. Walker et al. (arXiv 2505.17761) end an expression with =, score it there, count it as a
token, and add one to odd lengths, so that lengths are even: 4..40 in training, 40..256 in testing.

Here tokens 0..4 are the numbers, followed by +, -, * and =; numbers and operators are sampled uniformly. With `label =
every` the value so far is scored at each number and at =, where the expression is complete, but not at operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell.errors import UserError
from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from .generated import Array, EndlessStream, EpisodeArrays

MODULUS = 5
EXPRESSION_TOKENS = (*map(str, range(MODULUS)), "+", "-", "*", "=")
PLUS, MINUS, TIMES, EQUALS = range(MODULUS, MODULUS + 4)


@dataclass(frozen=True)
class ExpressionEpisodes(StateTrackingEpisodes):
    @property
    def max_length(self) -> int:
        return self.length + self.length % 2

    def sample_tokens(self, rng: np.random.Generator, count: int) -> Array:
        tokens = np.empty((count, self.max_length), dtype=np.int8)
        half = (count, self.max_length // 2)
        tokens[:, ::2] = rng.integers(0, MODULUS, size=half, dtype=np.int8)
        tokens[:, 1::2] = rng.integers(PLUS, TIMES, size=half, dtype=np.int8, endpoint=True)
        return tokens

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        """Return the value up to each number, repeated at the operator after it."""
        E, W = tokens.shape
        values = np.empty((W // 2, E), dtype=np.int64)  # time first, for speed
        # The sum of the finished terms, the term that a * would continue, the operator before the next number.
        total, term, operator = np.tile([[0], [0], [PLUS]], E) if carry is None else carry.T
        for t, (number, next_operator) in enumerate(zip(tokens.T[::2].astype(np.int64), tokens.T[1::2])):
            times = operator == TIMES
            total = np.where(times, total, (total + term) % MODULUS)
            factor = np.where(times, term, np.where(operator == MINUS, -1, 1))
            term = factor * number % MODULUS
            values[t] = (total + term) % MODULUS
            operator = next_operator
        return np.repeat(values.T, 2, axis=1), np.stack([total, term, operator], axis=1)

    def is_scored(self, positions: Array) -> Array:
        return positions % 2 == 1

    def build(self, samples: Array) -> EpisodeArrays:
        lengths, tokens = samples[:, :1] + samples[:, :1] % 2, samples[:, 1:]
        position = np.arange(tokens.shape[1])
        ended = np.where(position == lengths - 1, EQUALS, tokens)
        return self.truncate(lengths, ended, self.labels(tokens, None)[0], can_end=position % 2 == 0)


class ModularArithmetic(StateTrackingTask):
    name = f"the value of an expression modulo {MODULUS}"

    def __init__(self, config: StateTrackingConfig) -> None:
        episodes = ExpressionEpisodes(config.min_length, config.length, config.label)
        super().__init__(config, episodes, inputs=len(EXPRESSION_TOKENS), outputs=MODULUS)

    def endless_stream(self) -> EndlessStream:
        if self.config.label == "last":
            raise UserError(
                "an endless expression has no =, where this model was trained; train a model with --task.label every"
            )
        return super().endless_stream()
