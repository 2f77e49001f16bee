"""Parity: is the number of ones so far odd? The simplest task that needs a state, and a baseline for generalization
beyond the training length.

A sequence is an episode of uniformly sampled bits; the label of each bit is the sum of the bits up to and including it,
modulo 2. The state is reset at each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell import configs

from .generated import Array, FixedLengthEpisodes, LengthTask


@dataclass(frozen=True)
class ParityConfig(configs.Config):
    length: int = 40
    """Bits of a training sequence."""
    valid_length: int = 0
    """Bits of a validation sequence; 0: as in training."""
    test_length: int = 400
    """Bits of a test sequence."""
    train_episodes: int = 0
    """Size of the training set, which repeats; 0: endless."""
    valid_episodes: int = 200
    """Sequences of the validation split."""
    test_episodes: int = 1000
    """Sequences of the test split."""


class ParityEpisodes(FixedLengthEpisodes):
    def sample(self, generator: np.random.Generator, count: int) -> Array:
        return generator.integers(0, 2, size=(count, self.length), dtype=np.int8)

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        return running_parity(tokens, carry)


class Parity(LengthTask):
    config_type = ParityConfig

    def __init__(self, config: ParityConfig) -> None:
        super().__init__(config, ParityEpisodes(config.length), inputs=2, outputs=2)

    def describe(self) -> str:
        c = self.config
        return f"running parity of {c.length} bits, tested on {c.test_length}; {self.describe_splits()}"


def running_parity(bits: Array, carry: Array | None) -> tuple[Array, Array]:
    """Return the parity of the ones up to each bit (B, T), and the last one (B, 1) to carry on."""
    odd = np.bitwise_xor.accumulate(bits, axis=1)
    if carry is not None:
        odd ^= carry
    return odd, odd[:, -1:]
