"""The Universal Transformer (Dehghani et al., 2018) as the Staircase paper runs it: one stack of layers, N passes deep.

    h^n = Layers(h^{n-1}),  n = 1..N,  the same weights at every pass

No halting and no embedding of the pass. Each pass attends to the inputs of the same pass in the past, as in
Transformer-XL; a pass is only one more layer that happens to share its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from stairwell.configs import check_at_least
from stairwell.cores.core import CoreState
from stairwell.cores.transformer_xl import TransformerXL, TransformerXLConfig, TransformerXLState
from stairwell.layers import Layer


@dataclass(frozen=True, kw_only=True)
class UniversalConfig(TransformerXLConfig):
    layers: int = 1
    "number of layers in the stack that is repeated (L)"
    attend_to_current: bool = True
    "whether a token attends to itself, at distance 0"
    passes: int = 4
    "how often a token goes through the stack (N)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "passes")


@dataclass(frozen=True, eq=False)
class UniversalState(TransformerXLState):
    """memory (B, S + max_crop, N * L, D): the input of every layer at every pass."""


class Universal(TransformerXL):
    state_type: type[CoreState] = UniversalState
    config: UniversalConfig

    def depth(self) -> int:
        return self.config.passes * self.config.layers

    def layer_sequence(self) -> list[Layer]:
        return list(self.layers) * self.config.passes
