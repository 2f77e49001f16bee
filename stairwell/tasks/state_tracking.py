"""The protocol that today's tables of state tracking share, and the episodes that follow it.

From Walker et al. (arXiv 2505.17761) and Terzić et al. (arXiv 2509.22284): an episode's length is drawn uniformly, from
3..40 in training and from 40..256 in testing, and the only label is at its last token. Episodes are documents here:
each begins with a start flag.

Ours: `label = every` asks at every token of training and testing for the label that the episode would have if it ended
there; `last_accuracy` is the published number then too. A model chooses among the labels only, where the published
ones choose among all symbols. The published numbers are the best of several validations on the test's lengths, which
`valid_min_length = 40`, `valid_length = 256` repeat; by default validation has the lengths of training.

Letters: E episodes, W tokens of the longest that could be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from stairwell.configs import Config
from stairwell.errors import UserError

from .base import IGNORE
from .generated import Array, GeneratedTask, Played, check_at_least

Label = Literal["last", "every"]


@dataclass(frozen=True)
class StateTrackingConfig(Config):
    min_length: int = 3
    """tokens in the shortest training episode (the tables: 3)"""
    length: int = 40
    """tokens in the longest training episode (the tables: 40)"""
    valid_min_length: int = 0
    """tokens in the shortest validation episode; 0: as in training"""
    valid_length: int = 0
    """tokens in the longest validation episode; 0: as in training"""
    test_min_length: int = 40
    """tokens in the shortest test episode (the tables: 40)"""
    test_length: int = 256
    """tokens in the longest test episode (the tables: 256)"""
    label: Label = "last"
    """where a label is asked: at an episode's last token (the tables), or at every one"""
    train_episodes: int = 0
    """size of the training set, which repeats; 0 draws new episodes without end"""
    valid_episodes: int = 200
    """fresh episodes in the validation split"""
    test_episodes: int = 1000
    """fresh episodes in the test split"""


@dataclass(frozen=True)
class StateTrackingEpisodes:
    """Episodes of unequal length. A task draws tokens for the longest and says what their running labels are."""

    min_length: int
    length: int
    label: Label
    adjustable: ClassVar[tuple[str, ...]] = ("length",)
    documents: ClassVar[bool] = True
    opening: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_at_least(1, min_length=self.min_length)
        if self.length < self.min_length:
            raise UserError(
                f"length is {self.length}; it must be at least the shortest length, which is {self.min_length}"
            )

    @property
    def size(self) -> int:
        return (self.min_length + self.length) // 2

    @property
    def longest(self) -> int:
        """How many tokens the longest episode has (W)."""
        return self.length

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """(count, 1 + W): each episode's length, and tokens for the longest there can be."""
        lengths = rng.integers(self.min_length, self.length, size=(count, 1), dtype=np.int32, endpoint=True)
        return np.concatenate([lengths, self.draw_tokens(rng, count)], axis=1)

    def draw_tokens(self, rng: np.random.Generator, count: int) -> Array:
        """(count, W)"""
        raise NotImplementedError

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        """(E, W) -> (E, W), the label of each episode if it ended at this token, and what its further labels need to be
        known of it; `before` is that of the tokens before, none at an episode's beginning."""
        raise NotImplementedError

    def play(self, draws: Array) -> Played:
        tokens = draws[:, 1:]
        return self.cut(draws[:, :1], tokens, self.follow(tokens, None)[0])

    def go_on(self, rng: np.random.Generator, length: int) -> Array:
        return replace(self, min_length=1, length=length).draw_tokens(rng, 1)[0]

    def asks(self, place: Array) -> Array:
        """Where an episode could have ended in training."""
        return place >= (1 if self.label == "every" else self.min_length)

    def cut(self, lengths: Array, tokens: Array, labels: Array, whole: Array | bool = True) -> Played:
        """End each episode at its length (E, 1). `whole` (W,) tells at which places an episode could end."""
        place = np.arange(tokens.shape[1])
        asked = place == lengths - 1
        if self.label == "every":
            asked |= whole
        return Played(tokens, np.where(asked, labels, IGNORE), present=place < lengths)


class StateTrackingTask(GeneratedTask):
    """A task of the tables: `name` in a few words, and episodes whose lengths differ in training and in testing."""

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
        asked = "asked at the last" if c.label == "last" else "asked at every one"
        return f"{self.name}, {lengths}, {asked}; {self.sets()}"
