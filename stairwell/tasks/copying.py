"""Copy and reverse: say a sequence of digits again, forwards or backwards (Kaiser & Sutskever, 2015; Fan et al., arXiv
2002.09402, 4.1.1). Trained on 40 digits, tested on 400.

A sequence of L digits drawn uniformly is the document `d_1 .. d_L SEP o_1 .. o_L END`, where o is d or d backwards.
The label at `SEP` is o_1 and the label at o_i is o_{i+1}: L labels, the digits of the answer, each asked after the
true ones before it. Nothing is asked at d_1 .. d_L, o_L and `END`, which closes the line for a reader and is no label:
the paper scores characters, not when to stop. Tokens 0..9 are the digits. Each sequence begins with a start flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stairwell import configs

from .base import IGNORE
from .generated import Array, LengthTask, Played, check_at_least

DIGITS = 10
SEP, END = DIGITS, DIGITS + 1


@dataclass(frozen=True)
class Config(configs.Config):
    reverse: bool = False
    """answer with the digits backwards"""
    length: int = 40
    """digits in a training sequence"""
    valid_length: int = 0
    """digits in a validation sequence; 0: as many as in training"""
    test_length: int = 400
    """digits in a test sequence"""
    min_length: int = 0
    """digits in the shortest sequence of a split; lengths are uniform from there on; 0: all have the full length"""
    train_episodes: int = 0
    """size of the training set, which repeats; 0 draws new sequences without end"""
    valid_episodes: int = 200
    """fresh sequences in the validation split"""
    test_episodes: int = 1000
    """fresh sequences in the test split"""


@dataclass(frozen=True)
class Lines:
    length: int
    reverse: bool
    min_length: int = 0
    adjustable: ClassVar[tuple[str, ...]] = ("length",)
    documents: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)
        check_at_least(0, min_length=self.min_length)

    @property
    def shortest(self) -> int:
        return min(self.min_length or self.length, self.length)

    @property
    def size(self) -> int:
        return self.shortest + self.length + 2  # on average

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Digits (count, length), in front of them each sequence's length if lengths differ."""
        if not self.min_length:
            return rng.integers(0, DIGITS, size=(count, self.length), dtype=np.int8)
        lengths = rng.integers(self.shortest, self.length, size=(count, 1), endpoint=True)
        return np.concatenate([lengths, rng.integers(0, DIGITS, size=(count, self.length))], axis=1)

    def play(self, draws: Array) -> Played:
        return self.play_lengths(draws[:, :1], draws[:, 1:]) if self.min_length else self.play_full(draws)

    def play_lengths(self, n: Array, digits: Array) -> Played:
        """Sequences of n (E, 1) of the digits (E, length) each."""
        place = np.arange(2 * self.length + 2)[None]
        answer = place - n  # which digit of the answer is asked at a token
        digit = np.take_along_axis(digits, np.where(place < n, place, 0), axis=1)
        order = n - 1 - answer if self.reverse else answer
        asked = (answer >= 0) & (answer < n)
        answers = np.take_along_axis(digits, np.where(asked, order, 0), axis=1)
        # The answer is read one token after it was asked for.
        given = np.concatenate([np.zeros_like(answers[:, :1]), answers[:, :-1]], axis=1)
        tokens = np.where(place < n, digit, np.where(place == n, SEP, np.where(place <= 2 * n, given, END)))
        return Played(tokens, np.where(asked, answers, IGNORE), present=place <= 2 * n + 1)

    def play_full(self, draws: Array) -> Played:
        L = self.length
        answers = draws[:, ::-1] if self.reverse else draws
        tokens = np.full((len(draws), self.size), END, dtype=np.int8)
        tokens[:, :L], tokens[:, L], tokens[:, L + 1 : -1] = draws, SEP, answers
        targets = np.full(tokens.shape, IGNORE, dtype=np.int8)
        targets[:, L : 2 * L] = answers
        return Played(tokens, targets)


class Copying(LengthTask):
    def __init__(self, config: Config) -> None:
        lines = Lines(config.length, config.reverse, config.min_length)
        super().__init__(config, lines, inputs=DIGITS + 2, outputs=DIGITS)

    def describe(self) -> str:
        c = self.config
        shortest = f"{c.min_length} to " if c.min_length else ""
        lengths = f"{shortest}{c.length} digits, tested on {shortest}{c.test_length}"
        return f"{'reverse' if c.reverse else 'copy'} {lengths}; {self.sets()}"


def format_lines(tokens: Iterable[int]) -> str:
    """The sequences as text, one a line: `31337 -> 31337`."""
    symbols = {SEP: " -> ", END: "\n"}
    return "".join(symbols.get(token, str(token)) for token in tokens)
