"""Counting: answer n A's with n B's (Fan et al., arXiv 2002.09402, 4.1.1). The paper counts up to 50 and up to 1,000.

A sequence is the document `A^n SEP B^n END` with n drawn uniformly from 1..length. A label is the next token, and it is
asked at `SEP` and at each B: n times B and then END, n + 1 labels. What follows an A cannot be known, and nothing is
asked there. Each sequence begins with a start flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stairwell import configs

from .base import IGNORE
from .generated import Array, GeneratedTask, Played, check_at_least

SYMBOLS = ("A", "SEP", "B", "END")
A, SEP, B, END = range(4)


@dataclass(frozen=True)
class Config(configs.Config):
    length: int = 50
    """the largest count (the paper: 50 and 1000)"""
    test_length: int = 0
    """the largest count in the test split; 0: the same as in training"""
    train_episodes: int = 0
    """size of the training set, which repeats; 0 draws new sequences without end"""
    valid_episodes: int = 200
    """fresh sequences in the validation split"""
    test_episodes: int = 1000
    """fresh sequences in the test split"""


@dataclass(frozen=True)
class Counts:
    length: int
    adjustable: ClassVar[tuple[str, ...]] = ("length",)
    documents: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    @property
    def size(self) -> int:
        return self.length + 3  # on average, n being uniform

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(1, self.length, size=count, endpoint=True)

    def play(self, draws: Array) -> Played:
        n = draws[:, None]
        place = np.arange(2 * self.length + 2)
        tokens = np.where(place < n, A, B)
        tokens[place == n] = SEP
        tokens[place == 2 * n + 1] = END
        following = np.where(place < 2 * n, B, END)
        asked = (place >= n) & (place <= 2 * n)
        return Played(tokens, np.where(asked, following, IGNORE), present=place <= 2 * n + 1)


class Counting(GeneratedTask):
    def __init__(self, config: Config) -> None:
        check_at_least(0, test_length=config.test_length)
        test = Counts(config.test_length or config.length)
        super().__init__(config, Counts(config.length), inputs=len(SYMBOLS), outputs=len(SYMBOLS), test=test)

    def describe(self) -> str:
        c = self.config
        tested = f", tested up to {c.test_length}" if c.test_length else ""
        return f"counting up to {c.length}{tested}; {self.sets()}"


def format_counts(tokens: Iterable[int]) -> str:
    """The sequences as text, one a line: `AAA -> BBB`."""
    return "".join(("A", " -> ", "B", "\n")[token] for token in tokens)
