"""Parity check: is the number of ones odd? A regular language of the Chomsky suite.

The definition (Delétang et al., arXiv 2207.02098): the label of a string of bits is the number of its ones modulo 2.
Ours: bits are drawn uniformly. Lengths and labels follow `stairwell.tasks.state_tracking`; the task `parity` is the same with
one length for all and a label at every bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from .generated import Array
from .parity import running_parity

Config = StateTrackingConfig


@dataclass(frozen=True)
class Strings(StateTrackingEpisodes):
    def draw_tokens(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 2, size=(count, self.longest), dtype=np.int8)

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        return running_parity(tokens, before)


class ParityCheck(StateTrackingTask):
    name = "whether the number of ones is odd"

    def __init__(self, config: Config) -> None:
        super().__init__(config, Strings(config.min_length, config.length, config.label), inputs=2, outputs=2)
