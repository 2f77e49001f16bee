"""Modular arithmetic without brackets: what is 3 - 2 * 4 + 1 modulo 5? A regular language of the Chomsky suite.

The definition (Delétang et al., arXiv 2207.02098): numbers 0..4 with +, - and * between them, multiplication first; the
label is the value modulo 5. Walker et al. (arXiv 2505.17761) close an expression with =, ask there, count it as a
token, and make a drawn length that is odd longer by one, so that lengths are even: 4..40 in training, 40..256 in
testing.

Ours: tokens 0..4 are the numbers, then come +, -, * and =; numbers and operators are drawn uniformly. With
`label = every` the value so far is asked at each number and at =, where an expression is whole, never at an operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell.errors import UserError
from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from .generated import Array, Endless, Played

MODULUS = 5
SYMBOLS = (*map(str, range(MODULUS)), "+", "-", "*", "=")
PLUS, MINUS, TIMES, EQUALS = range(MODULUS, MODULUS + 4)


Config = StateTrackingConfig


@dataclass(frozen=True)
class Expressions(StateTrackingEpisodes):
    @property
    def longest(self) -> int:
        return self.length + self.length % 2

    def draw_tokens(self, rng: np.random.Generator, count: int) -> Array:
        tokens = np.empty((count, self.longest), dtype=np.int8)
        half = (count, self.longest // 2)
        tokens[:, ::2] = rng.integers(0, MODULUS, size=half, dtype=np.int8)
        tokens[:, 1::2] = rng.integers(PLUS, TIMES, size=half, dtype=np.int8, endpoint=True)
        return tokens

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        """The value up to each number, and the same once more at the operator behind it."""
        E, W = tokens.shape
        values = np.empty((W // 2, E), dtype=np.int64)  # time first, for speed
        # The sum of the terms that are closed, the term that a * would go on with, the operator before the next number.
        total, term, operator = np.tile([[0], [0], [PLUS]], E) if before is None else before.T
        for place, (number, following) in enumerate(zip(tokens.T[::2].astype(np.int64), tokens.T[1::2])):
            times = operator == TIMES
            total = np.where(times, total, (total + term) % MODULUS)
            factor = np.where(times, term, np.where(operator == MINUS, -1, 1))
            term = factor * number % MODULUS
            values[place] = (total + term) % MODULUS
            operator = following
        return np.repeat(values.T, 2, axis=1), np.stack([total, term, operator], axis=1)

    def asks(self, place: Array) -> Array:
        return place % 2 == 1

    def play(self, draws: Array) -> Played:
        lengths, tokens = draws[:, :1] + draws[:, :1] % 2, draws[:, 1:]
        place = np.arange(tokens.shape[1])
        closed = np.where(place == lengths - 1, EQUALS, tokens)
        return self.cut(lengths, closed, self.follow(tokens, None)[0], whole=place % 2 == 0)


class ModularArithmetic(StateTrackingTask):
    name = f"the value of an expression modulo {MODULUS}"

    def __init__(self, config: Config) -> None:
        expressions = Expressions(config.min_length, config.length, config.label)
        super().__init__(config, expressions, inputs=len(SYMBOLS), outputs=MODULUS)

    def endless(self) -> Endless:
        if self.config.label == "last":
            raise UserError(
                "an expression without end has no =, where this model was asked; train one with --task.label every"
            )
        return super().endless()
