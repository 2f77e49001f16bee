"""Even pairs: is the number of neighbors that differ odd? A regular language of the Chomsky suite.

The definition (Delétang et al., arXiv 2207.02098): in a string of bits count the pairs 01 and 10; the label is 0 if
there is an even number of them and 1 otherwise. So it is whether the last bit differs from the first, and a model needs
no more than to remember that one. Ours: bits are drawn uniformly. Lengths and labels follow `stairwell.tasks.state_tracking`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from .generated import Array

Config = StateTrackingConfig


@dataclass(frozen=True)
class Strings(StateTrackingEpisodes):
    def draw_tokens(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 2, size=(count, self.longest), dtype=np.int8)

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        first = tokens[:, :1] if before is None else before
        return tokens ^ first, first


class EvenPairs(StateTrackingTask):
    name = "whether the number of pairs 01 and 10 is odd"

    def __init__(self, config: Config) -> None:
        super().__init__(config, Strings(config.min_length, config.length, config.label), inputs=2, outputs=2)
