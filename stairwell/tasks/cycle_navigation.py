"""Cycle navigation: where on a circle of five places does a walk end? A regular language of the Chomsky suite.

The definition (Delétang et al., arXiv 2207.02098): a walk begins at place 0, each action goes one place back, stays, or
goes one place on, and the label is the place modulo 5. Ours: actions are drawn uniformly and numbered -1, 0, +1 ->
token 0, 1, 2; the number of places is an option. Lengths and labels follow `stairwell.tasks.state_tracking`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from .generated import Array, check_at_least


@dataclass(frozen=True)
class Config(StateTrackingConfig):
    places: int = 5
    """places on the circle (the tables: 5)"""


@dataclass(frozen=True)
class Walks(StateTrackingEpisodes):
    places: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(2, places=self.places)

    def draw_tokens(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 3, size=(count, self.longest), dtype=np.int8)

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        steps = np.cumsum(tokens - 1, axis=1, dtype=np.int64)
        place = (steps if before is None else before + steps) % self.places
        return place, place[:, -1:]


class CycleNavigation(StateTrackingTask):
    name = "where a walk on a circle ends"

    def __init__(self, config: Config) -> None:
        walks = Walks(config.min_length, config.length, config.label, config.places)
        super().__init__(config, walks, inputs=3, outputs=config.places)
