"""Copy and reverse: repeat a sequence of digits, forward or in reverse (Kaiser & Sutskever, 2015; Fan et al., arXiv
2002.09402, 4.1.1). Trained on 40 digits, tested on 400.

A sequence of L uniformly sampled digits is the episode `d_1 .. d_L SEP o_1 .. o_L END`, where o is d or d in reverse.
The label at `SEP` is o_1 and the label at o_i is o_{i+1}: L labels, each predicted from the correct digits before it.
Nothing is scored at d_1 .. d_L, o_L and `END`, which ends the line in printouts and is not a label: the paper scores
characters, not when to stop. Tokens 0..9 are the digits. The state is reset at each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .base import IGNORE_INDEX
from .generated import Array, EpisodeArrays, LengthConfig, LengthTask, check_at_least, numbers

DIGITS = 10
SEP, END = DIGITS, DIGITS + 1


@dataclass(frozen=True)
class CopyingConfig(LengthConfig):
    reverse: bool = False
    """Whether the digits are repeated in reverse."""
    min_length: int = 0
    """Digits of the shortest sequence; lengths are uniform from there on; 0: all sequences have the full length."""


@dataclass(frozen=True)
class CopyEpisodes:
    length: int
    reverse: bool
    min_length: int = 0
    curriculum_options: ClassVar[tuple[str, ...]] = ("length",)
    reset: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)
        check_at_least(0, min_length=self.min_length)

    @property
    def shortest(self) -> int:
        return min(self.min_length or self.length, self.length)

    @property
    def size(self) -> int:
        return self.shortest + self.length + 2  # on average

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Return digits (count, length), preceded by the length of each sequence if lengths differ."""
        if not self.min_length:
            return rng.integers(0, DIGITS, size=(count, self.length), dtype=np.int8)
        lengths = rng.integers(self.shortest, self.length, size=(count, 1), endpoint=True)
        return np.concatenate([lengths, rng.integers(0, DIGITS, size=(count, self.length))], axis=1)

    def build(self, samples: Array) -> EpisodeArrays:
        return self.build_varying(samples[:, :1], samples[:, 1:]) if self.min_length else self.build_full(samples)

    def build_varying(self, n: Array, digits: Array) -> EpisodeArrays:
        """Return sequences of the first n (E, 1) of the digits (E, length)."""
        position = np.arange(2 * self.length + 2)[None]
        output = position - n  # index of the output digit that is predicted at a token
        digit = np.take_along_axis(digits, np.where(position < n, position, 0), axis=1)
        order = n - 1 - output if self.reverse else output
        scored = (output >= 0) & (output < n)
        labels = np.take_along_axis(digits, np.where(scored, order, 0), axis=1)
        # An output digit is read one token after it was predicted.
        outputs = np.concatenate([np.zeros_like(labels[:, :1]), labels[:, :-1]], axis=1)
        after = np.where(position == n, SEP, np.where(position <= 2 * n, outputs, END))
        tokens = np.where(position < n, digit, after)
        return EpisodeArrays(tokens, np.where(scored, labels, IGNORE_INDEX), present=position <= 2 * n + 1)

    def build_full(self, digits: Array) -> EpisodeArrays:
        L = self.length
        outputs = digits[:, ::-1] if self.reverse else digits
        tokens = np.full((len(digits), self.size), END, dtype=np.int8)
        tokens[:, :L], tokens[:, L], tokens[:, L + 1 : -1] = digits, SEP, outputs
        targets = np.full(tokens.shape, IGNORE_INDEX, dtype=np.int8)
        targets[:, L : 2 * L] = outputs
        return EpisodeArrays(tokens, targets)


class Copying(LengthTask):
    config: CopyingConfig
    config_type = CopyingConfig

    def __init__(self, config: CopyingConfig) -> None:
        episodes = CopyEpisodes(config.length, config.reverse, config.min_length)
        super().__init__(config, episodes, inputs=DIGITS + 2, outputs=DIGITS)

    def names(self) -> tuple[list[str], list[str]]:
        digits = numbers(DIGITS)
        return [*digits, "SEP", "END"], digits

    def describe(self) -> str:
        c = self.config
        shortest = f"{c.min_length} to " if c.min_length else ""
        lengths = f"{shortest}{c.length} digits, tested on {shortest}{c.test_length}"
        return f"{'reverse' if c.reverse else 'copy'} {lengths}; {self.describe_splits()}"
