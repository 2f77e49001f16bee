"""The common protocol of published state-tracking benchmarks.

From Walker et al. (arXiv 2505.17761) and Terzić et al. (arXiv 2509.22284): the length of an episode is sampled
uniformly, from 3..40 in training and from 40..256 in testing, and only the last token has a label. Here the state is
reset at each episode.

Differences: `label = every` scores every token, in training and testing, with the label that the episode would have if
it ended there; `last_accuracy` is then still the published number. A model chooses among the labels only, published
models among all tokens. The published numbers are the best of several validations on the test lengths, which
`valid_min_length = 40`, `valid_length = 256` repeat; by default validation has the lengths of training.

Letters: E episodes, W tokens of the longest possible episode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from stairwell.errors import UserError

from .base import IGNORE_INDEX
from .generated import Array, EpisodeArrays, EpisodesConfig, GeneratedTask, check_at_least

ScoredTokens = Literal["last", "every"]  # the option `label`


@dataclass(frozen=True)
class StateTrackingConfig(EpisodesConfig):
    min_length: int = 3
    """Tokens of the shortest training episode (the benchmarks: 3)."""
    length: int = 40
    """Tokens of the longest training episode (the benchmarks: 40)."""
    valid_min_length: int = 0
    """Tokens of the shortest validation episode; 0: as in training."""
    valid_length: int = 0
    """Tokens of the longest validation episode; 0: as in training."""
    test_min_length: int = 40
    """Tokens of the shortest test episode (the benchmarks: 40)."""
    test_length: int = 256
    """Tokens of the longest test episode (the benchmarks: 256)."""
    label: ScoredTokens = "last"
    """Scored tokens: the last one of an episode (the benchmarks), or all."""


@dataclass(frozen=True)
class StateTrackingEpisodes:
    """Episodes of varying length. A task samples tokens for the longest one and computes their running labels."""

    min_length: int
    length: int
    label: ScoredTokens
    curriculum_options: ClassVar[tuple[str, ...]] = ("length",)
    reset: ClassVar[bool] = True  # the state is reset at each episode
    prefix: ClassVar[tuple[int, ...]] = ()  # unscored tokens at the start of an endless stream

    def __post_init__(self) -> None:
        check_at_least(1, min_length=self.min_length)
        if self.length < self.min_length:
            raise UserError(
                f"length is {self.length}; it must be at least the shortest length, which is {self.min_length}"
            )

    @property
    def size(self) -> int:
        """The mean number of tokens per episode."""
        return (self.min_length + self.length) // 2

    @property
    def max_length(self) -> int:
        """The number of tokens of the longest episode (W)."""
        return self.length

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Return the random numbers of `count` episodes (count, 1 + W): in column 0 the length of each one, then tokens
        for the longest possible one."""
        lengths = rng.integers(self.min_length, self.length, size=(count, 1), dtype=np.int32, endpoint=True)
        return np.concatenate([lengths, self.sample_tokens(rng, count)], axis=1)

    def sample_tokens(self, rng: np.random.Generator, count: int) -> Array:
        """Return tokens (count, W)."""
        raise NotImplementedError

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        """Return the label of each episode if it ended at this token (E, W), and the state to carry to the next call;
        `carry` is None at the start of an episode."""
        raise NotImplementedError

    def build(self, samples: Array) -> EpisodeArrays:
        """Return the episodes that follow from the numbers of `sample`."""
        tokens = samples[:, 1:]
        return self.truncate(samples[:, :1], tokens, self.labels(tokens, None)[0])

    def generate(self, rng: np.random.Generator, length: int) -> Array:
        """Return the next tokens of an endless stream (length,)."""
        return replace(self, min_length=1, length=length).sample_tokens(rng, 1)[0]

    def is_scored(self, positions: Array) -> Array:
        """Return whether tokens are scored, by their positions, counted from 1: with `every` all, with `last` those at
        which a training episode could have ended."""
        return positions >= (1 if self.label == "every" else self.min_length)

    def truncate(self, lengths: Array, tokens: Array, labels: Array, can_end: Array | bool = True) -> EpisodeArrays:
        """End each episode at its length (E, 1). `can_end` (W,): whether an episode could end at a position."""
        position = np.arange(tokens.shape[1])
        scored = position == lengths - 1
        if self.label == "every":
            scored |= can_end
        return EpisodeArrays(tokens, np.where(scored, labels, IGNORE_INDEX), present=position < lengths)


@dataclass(frozen=True)
class BitStringEpisodes(StateTrackingEpisodes):
    """Episodes of uniformly sampled bits."""

    def sample_tokens(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 2, size=(count, self.max_length), dtype=np.int8)


class StateTrackingTask(GeneratedTask):
    """A state-tracking benchmark: a short `name`, and episodes whose lengths differ between training and testing."""

    config: StateTrackingConfig
    config_type = StateTrackingConfig
    name: str

    def __init__(self, config: StateTrackingConfig, train: StateTrackingEpisodes, inputs: int, outputs: int) -> None:
        check_at_least(0, valid_min_length=config.valid_min_length, valid_length=config.valid_length)
        valid_min = config.valid_min_length or config.min_length
        valid = replace(train, min_length=valid_min, length=config.valid_length or config.length)
        test = replace(train, min_length=config.test_min_length, length=config.test_length)
        super().__init__(config, train, inputs, outputs, valid, test)

    def describe(self) -> str:
        c = self.config
        lengths = f"{c.min_length} to {c.length} tokens, tested on {c.test_min_length} to {c.test_length}"
        scored = "scored at the last" if c.label == "last" else "scored at every one"
        return f"{self.name}, {lengths}, {scored}; {self.describe_splits()}"
