"""Counting: n A's, followed by n B's (Fan et al., arXiv 2002.09402, 4.1.1). The paper counts up to 50 and up to 1,000.

A sequence is the episode `A^n SEP B^n END` with n sampled uniformly from 1..length. The label is the next token. `SEP`
and each B are scored: n times B and then END, n + 1 labels. The token after an A cannot be predicted and is not scored.
The state is reset at each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .base import IGNORE_INDEX
from .generated import Array, EpisodeArrays, EpisodesConfig, GeneratedTask, check_at_least

COUNTING_TOKENS = ("A", "SEP", "B", "END")
A, SEP, B, END = range(4)


@dataclass(frozen=True)
class CountingConfig(EpisodesConfig):
    length: int = 50
    """Largest count (the paper: 50 and 1000)."""
    test_length: int = 0
    """Largest count in the test split; 0: as in training."""


@dataclass(frozen=True)
class CountingEpisodes:
    length: int
    curriculum_options: ClassVar[tuple[str, ...]] = ("length",)
    reset: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    @property
    def size(self) -> int:
        return self.length + 3  # on average, since n is uniform

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(1, self.length, size=count, endpoint=True)

    def build(self, samples: Array) -> EpisodeArrays:
        n = samples[:, None]
        position = np.arange(2 * self.length + 2)
        tokens = np.where(position < n, A, B)
        tokens[position == n] = SEP
        tokens[position == 2 * n + 1] = END
        labels = np.where(position < 2 * n, B, END)
        scored = (position >= n) & (position <= 2 * n)
        return EpisodeArrays(tokens, np.where(scored, labels, IGNORE_INDEX), present=position <= 2 * n + 1)


class Counting(GeneratedTask):
    config: CountingConfig
    config_type = CountingConfig

    def __init__(self, config: CountingConfig) -> None:
        check_at_least(0, test_length=config.test_length)
        train, test = CountingEpisodes(config.length), CountingEpisodes(config.test_length or config.length)
        super().__init__(config, train, inputs=len(COUNTING_TOKENS), outputs=len(COUNTING_TOKENS), test=test)

    def names(self) -> tuple[list[str], list[str]]:
        return list(COUNTING_TOKENS), list(COUNTING_TOKENS)

    def describe(self) -> str:
        c = self.config
        tested = f", tested up to {c.test_length}" if c.test_length else ""
        return f"counting up to {c.length}{tested}; {self.describe_splits()}"
