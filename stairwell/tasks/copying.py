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

from .base import IGNORE
from .generated import Array, LengthTask, Played, check_at_least

DIGITS = 10
SEP, END = DIGITS, DIGITS + 1


@dataclass(frozen=True)
class Config:
    reverse: bool = False
    """answer with the digits backwards"""
    length: int = 40
    """digits in a training sequence"""
    valid_length: int = 0
    """digits in a validation sequence; 0: as many as in training"""
    test_length: int = 400
    """digits in a test sequence"""
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
    adjustable: ClassVar[tuple[str, ...]] = ("length",)
    documents: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    @property
    def size(self) -> int:
        return 2 * self.length + 2

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, DIGITS, size=(count, self.length), dtype=np.int8)

    def play(self, draws: Array) -> Played:
        L = self.length
        answers = draws[:, ::-1] if self.reverse else draws
        tokens = np.full((len(draws), self.size), END, dtype=np.int8)
        tokens[:, :L], tokens[:, L], tokens[:, L + 1 : -1] = draws, SEP, answers
        targets = np.full(tokens.shape, IGNORE, dtype=np.int8)
        targets[:, L : 2 * L] = answers
        return Played(tokens, targets)


class Copying(LengthTask):
    def __init__(self, config: Config) -> None:
        super().__init__(config, Lines(config.length, config.reverse), inputs=DIGITS + 2, outputs=DIGITS)

    def describe(self) -> str:
        c = self.config
        return f"{'reverse' if c.reverse else 'copy'} {c.length} digits, tested on {c.test_length}; {self.sets()}"


def format_lines(tokens: Iterable[int]) -> str:
    """The sequences as text, one a line: `31337 -> 31337`."""
    symbols = {SEP: " -> ", END: "\n"}
    return "".join(symbols.get(token, str(token)) for token in tokens)
