"""Parity check: is the number of ones odd? A regular language of the Chomsky suite.

Definition (Delétang et al., arXiv 2207.02098): the label of a string of bits is the number of its ones modulo 2. Here
bits are sampled uniformly. Lengths and labels follow `stairwell.tasks.state_tracking`; the task `parity` is the same
with one length and a label at every bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from stairwell.tasks.state_tracking import BitStringEpisodes, StateTrackingConfig, StateTrackingTask

from .generated import Array
from .parity import running_parity


@dataclass(frozen=True)
class ParityCheckEpisodes(BitStringEpisodes):
    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        return running_parity(tokens, carry)


class ParityCheck(StateTrackingTask):
    name = "whether the number of ones is odd"

    def __init__(self, config: StateTrackingConfig) -> None:
        episodes = ParityCheckEpisodes(config.min_length, config.length, config.label)
        super().__init__(config, episodes, inputs=2, outputs=2)
