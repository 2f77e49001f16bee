"""Words over generators of a group: what is the product of these elements of A5 or S5?

Definition (Terzić et al., arXiv 2509.22284, their (G, n)): tokens are n elements that generate the group G, sampled
uniformly, and the label is the product of a word; A5 has 60 elements, S5 120, and neither is solvable. Lengths and
labels follow `stairwell.tasks.state_tracking`.

The paper does not list its elements. Here the first is the swap of 0 and 1 (S5) or the cycle 0 -> 1 -> 2 -> 0 (A5), the
second the cycle i -> i + 1, and these two generate the group. The others are the remaining elements in an order
shuffled by `generator_seed`, the identity last. So a smaller set of generators is always contained in a larger one, and
the largest set is the whole group. The first token is applied first, and permutations are numbered as in the task `s5`:
in lexicographic order of their images, those of A5 among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import factorial
from typing import Literal

import numpy as np

from stairwell.errors import UserError
from stairwell.tasks.state_tracking import StateTrackingConfig, StateTrackingEpisodes, StateTrackingTask

from .generated import Array, check_at_least
from .permutations import even_permutations, permutation_numbers, product_table, running_products

ELEMENTS = 5
SWAP, SMALL_CYCLE, CYCLE = (1, 0, 2, 3, 4), (1, 2, 0, 3, 4), (1, 2, 3, 4, 0)


@dataclass(frozen=True)
class Config(StateTrackingConfig):
    group: Literal["A5", "S5"] = "S5"
    """Alternating or symmetric group of five elements."""
    generators: int = 2
    """Number of generators (the benchmarks: 2 and 12 of A5; 4, 8 and 32 of S5)."""
    generator_seed: int = 0
    """Seed of the choice of generators after the first two."""


@dataclass(frozen=True)
class GroupWordEpisodes(StateTrackingEpisodes):
    group: Literal["A5", "S5"]
    generators: int
    generator_seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.generators <= self.order:
            raise UserError(
                f"generators is {self.generators}; it must be between 2 and {self.order}, the order of {self.group}"
            )
        check_at_least(0, generator_seed=self.generator_seed)

    @property
    def order(self) -> int:
        return len(group_elements(self.group))

    def sample_tokens(self, generator: np.random.Generator, count: int) -> Array:
        return generator.integers(0, self.generators, size=(count, self.max_length), dtype=np.int16)

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        factors = generator_order(self.group, self.generator_seed)[tokens]
        return running_products(group_table(self.group), self.order, factors, carry)


class GroupWords(StateTrackingTask):
    def __init__(self, config: Config) -> None:
        episodes = GroupWordEpisodes(
            config.min_length, config.length, config.label, config.group, config.generators, config.generator_seed
        )
        self.name = f"products in {config.group} of {config.generators} generators"
        super().__init__(config, episodes, inputs=config.generators, outputs=episodes.order)


@cache
def group_elements(group: str) -> Array:
    """Return the group's elements, as numbers of permutations."""
    return even_permutations(ELEMENTS) if group == "A5" else np.arange(factorial(ELEMENTS))


@cache
def group_table(group: str) -> Array:
    """Return the multiplication table, flat (second * order + first): the index of `first` and then `second` among the
    group's elements."""
    elements = group_elements(group)
    products = product_table(ELEMENTS).reshape(factorial(ELEMENTS), -1)
    return np.searchsorted(elements, products[np.ix_(elements, elements)]).ravel()


@cache
def generator_order(group: str, seed: int) -> Array:
    """Return the indices of all elements in the order in which they become generators."""
    elements = group_elements(group)
    pair = np.array([SMALL_CYCLE if group == "A5" else SWAP, CYCLE])
    first = np.searchsorted(elements, permutation_numbers(pair))
    identity = 0
    others = np.setdiff1d(np.arange(len(elements)), [*first, identity])
    return np.array([*first, *np.random.default_rng([seed, len(elements)]).permutation(others), identity])
