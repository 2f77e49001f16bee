"""Even pairs: is the number of adjacent bits that differ odd? A regular language of the Chomsky suite.

Definition (Delétang et al., arXiv 2207.02098): in a string of bits count the pairs 01 and 10; the label is 0 if their
number is even and 1 otherwise. This equals whether the last bit differs from the first, so a model only has to remember
the first bit. Here bits are sampled uniformly. Lengths and labels follow `stairwell.tasks.state_tracking`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stairwell.tasks.state_tracking import BitStringEpisodes, StateTrackingConfig, StateTrackingTask

from .generated import Array


@dataclass(frozen=True)
class EvenPairsEpisodes(BitStringEpisodes):
    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        first = tokens[:, :1] if carry is None else carry
        return tokens ^ first, first


class EvenPairs(StateTrackingTask):
    name = "whether the number of pairs 01 and 10 is odd"

    def __init__(self, config: StateTrackingConfig) -> None:
        super().__init__(config, EvenPairsEpisodes(config.min_length, config.length, config.label), inputs=2, outputs=2)
