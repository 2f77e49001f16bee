"""Parity: is the number of ones so far odd? The simplest task that needs a state, and a baseline for generalization
beyond the training length.

A sequence is an episode of uniformly sampled bits; the label of each bit is the sum of the bits up to and including it,
modulo 2. The state is reset at each sequence.
"""

from __future__ import annotations

import numpy as np

from .generated import Array, FixedLengthEpisodes, LengthConfig, LengthTask


class ParityEpisodes(FixedLengthEpisodes):
    def sample(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 2, size=(count, self.length), dtype=np.int8)

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        return running_parity(tokens, carry)


class Parity(LengthTask):
    config_type = LengthConfig

    def __init__(self, config: LengthConfig) -> None:
        super().__init__(config, ParityEpisodes(config.length), inputs=2, outputs=2)

    def names(self) -> tuple[list[str], list[str]]:
        return ["0", "1"], ["even", "odd"]

    def describe(self) -> str:
        c = self.config
        return f"running parity of {c.length} bits, tested on {c.test_length}; {self.describe_splits()}"


def running_parity(bits: Array, carry: Array | None) -> tuple[Array, Array]:
    """Return the parity of the ones up to each bit (B, T), and the last one (B, 1) to carry on."""
    odd = np.bitwise_xor.accumulate(bits, axis=1)
    if carry is not None:
        odd ^= carry
    return odd, odd[:, -1:]
