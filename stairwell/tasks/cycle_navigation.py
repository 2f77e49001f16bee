"""Cycle navigation: where on a cycle of five positions does a walk end? A regular language of the Chomsky suite.

Definition (Delétang et al., arXiv 2207.02098): a walk starts at position 0, each action moves one position back, stays,
or moves one position forward, and the label is the position modulo 5. Here actions are sampled uniformly and numbered
-1, 0, +1 -> token 0, 1, 2; the number of positions is an option. Lengths and labels follow
`stairwell.tasks.state_tracking`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from .generated import Array, check_at_least


@dataclass(frozen=True)
class CycleNavigationConfig(StateTrackingConfig):
    positions: int = 5
    """Positions on the cycle (the benchmark: 5)."""


@dataclass(frozen=True)
class CycleEpisodes(StateTrackingEpisodes):
    positions: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(2, positions=self.positions)

    def sample_tokens(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 3, size=(count, self.max_length), dtype=np.int8)

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        steps = np.cumsum(tokens - 1, axis=1, dtype=np.int64)
        position = (steps if carry is None else carry + steps) % self.positions
        return position, position[:, -1:]


class CycleNavigation(StateTrackingTask):
    config: CycleNavigationConfig
    config_type = CycleNavigationConfig
    name = "where a walk on a cycle ends"

    def __init__(self, config: CycleNavigationConfig) -> None:
        episodes = CycleEpisodes(config.min_length, config.length, config.label, config.positions)
        super().__init__(config, episodes, inputs=3, outputs=config.positions)
