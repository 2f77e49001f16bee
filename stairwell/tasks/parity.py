"""Parity: is the number of ones so far odd? The plainest task that needs a state, and a yardstick of how a model does
beyond the lengths it was trained on.

A sequence is a document of bits drawn uniformly; the label of each bit is the sum of the bits up to and including it,
modulo 2. Each sequence begins with a start flag.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell import configs

from .generated import Array, LengthTask, Sequences


@dataclass(frozen=True)
class Config(configs.Config):
    length: int = 40
    """bits in a training sequence"""
    valid_length: int = 0
    """bits in a validation sequence; 0: as many as in training"""
    test_length: int = 400
    """bits in a test sequence"""
    train_episodes: int = 0
    """size of the training set, which repeats; 0 draws new sequences without end"""
    valid_episodes: int = 200
    """fresh sequences in the validation split"""
    test_episodes: int = 1000
    """fresh sequences in the test split"""


class Bits(Sequences):
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 2, size=(count, self.length), dtype=np.int8)

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        return running_parity(tokens, before)


class Parity(LengthTask):
    def __init__(self, config: Config) -> None:
        super().__init__(config, Bits(config.length), inputs=2, outputs=2)

    def describe(self) -> str:
        c = self.config
        return f"running parity of {c.length} bits, tested on {c.test_length}; {self.sets()}"


def running_parity(bits: Array, before: Array | None) -> tuple[Array, Array]:
    """bits (B, T) -> whether the ones up to each are odd in number, and the last of that (B, 1), to go on from."""
    odd = np.bitwise_xor.accumulate(bits, axis=1)
    if before is not None:
        odd ^= before
    return odd, odd[:, -1:]
