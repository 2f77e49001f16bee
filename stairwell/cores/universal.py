"""The Universal Transformer (Dehghani et al., 2018) as in the Staircase paper: one stack of layers, applied N times.

    h^n = Layers(h^{n-1}),  n = 1..N,  the same parameters at every pass

Without halting and without an embedding of the pass. Each pass attends to the past inputs of the same pass, as a layer
of Transformer-XL does.
"""

from __future__ import annotations

from dataclasses import dataclass

from stairwell.configs import check_at_least
from stairwell.cores.step import StepDescription
from stairwell.cores.transformer_xl import TransformerXL, TransformerXLConfig, TransformerXLState
from stairwell.layers import Layer


@dataclass(frozen=True, kw_only=True)
class UniversalConfig(TransformerXLConfig):
    layers: int = 1
    "Number of layers in the stack that is repeated (L)."
    attend_to_current: bool = True
    "Whether a token attends to itself, at distance 0."
    passes: int = 4
    "Number of passes through the stack (N)."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "passes")


@dataclass(frozen=True, eq=False)
class UniversalState(TransformerXLState):
    """memory (B, S + max_crop, N * L, D): the input of every layer at every pass."""


class Universal(TransformerXL):
    state_type = UniversalState
    config: UniversalConfig

    def depth(self) -> int:
        return self.config.passes * self.config.layers

    def layer_sequence(self) -> list[Layer]:
        return list(self.layers) * self.config.passes

    def describe_step(self) -> StepDescription:
        return super().describe_step()  # it follows `layer_sequence`
