"""Words over generators of a group: what is the product of these elements of A5, S5 or another group?

Definition (Terzić et al., arXiv 2509.22284, their (G, n)): tokens are n elements that generate the group G, sampled
uniformly, and the label is the product of a word. They use A5, with 60 elements, and S5, with 120; neither is solvable.
Lengths and labels follow `stairwell.tasks.state_tracking`; groups are named as in `stairwell.tasks.groups`.

The paper does not list its elements. Here the first generators are those of `groups.generators`, such as the swap of 0
and 1 and the cycle i -> i + 1 for S5. The additional ones are the remaining elements of the group in an order shuffled
by `generator_seed`, with the identity last. So a smaller set of generators is always contained in a larger one, and the
largest set is the whole group. The first token is applied first, and S5's elements are numbered as in the task `s5`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from stairwell.errors import UserError
from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from . import groups
from .generated import Array, check_at_least
from .permutations import running_products


@dataclass(frozen=True)
class GroupWordsConfig(StateTrackingConfig):
    group: str = "S5"
    """Group: S5, A5, Z7, D6, a product such as A5xZ2, or generators such as "(0 1)(2 3), (0 1 2 3 4)"."""
    generators: int = 2
    """Number of generators (the benchmarks: 2 and 12 of A5; 4, 8 and 32 of S5)."""
    generator_seed: int = 0
    """Seed for choosing the additional generators."""


@dataclass(frozen=True)
class GroupWordEpisodes(StateTrackingEpisodes):
    """Words of uniformly sampled generators."""

    group: str
    generators: int
    generator_seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        min_generators = max(2, len(groups.generators(self.group)))
        if not min_generators <= self.generators <= self.order:
            raise UserError(
                f"generators is {self.generators}; it must be between {min_generators} and {self.order}, the order of "
                f"{self.group}"
            )
        check_at_least(0, generator_seed=self.generator_seed)

    @property
    def order(self) -> int:
        return len(groups.elements(self.group))

    def sample_tokens(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, self.generators, size=(count, self.max_length), dtype=np.int16)

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        factors = token_elements(self.group, self.generator_seed)[tokens]
        return running_products(groups.multiplication_table(self.group), self.order, factors, carry)


class GroupWords(StateTrackingTask):
    """The task `group-words`."""

    config: GroupWordsConfig
    config_type = GroupWordsConfig

    def __init__(self, config: GroupWordsConfig) -> None:
        episodes = GroupWordEpisodes(
            config.min_length, config.length, config.label, config.group, config.generators, config.generator_seed
        )
        self.name = f"products in {config.group} of {config.generators} generators"
        super().__init__(config, episodes, inputs=config.generators, outputs=episodes.order)

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the tokens and of the labels. An element is written as the images of 0, 1, 2, ...: 10234
        swaps the first two of five points. In groups of more than ten points, elements are numbered."""
        c = self.config
        elements = groups.elements(c.group)
        if len(elements[0]) > 10:
            labels = [str(number) for number in range(self.outputs)]
        else:
            labels = ["".join(map(str, images)) for images in elements]
        return [labels[element] for element in token_elements(c.group, c.generator_seed)[: self.inputs]], labels


@cache
def token_elements(group: str, seed: int) -> Array:
    """Return the index of the group element of each token id. Further elements follow, which are not tokens."""
    indices = groups.indices(group)
    first = [indices[element] for element in groups.generators(group)]
    identity = 0
    others = np.setdiff1d(np.arange(len(indices)), [*first, identity])
    return np.array([*first, *np.random.default_rng([seed, len(indices)]).permutation(others), identity])
