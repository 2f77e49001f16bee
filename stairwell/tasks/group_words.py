"""Words over generators of a group: what is the product of these elements of A5 or S5?

The definition (Terzić et al., arXiv 2509.22284, their (G, n)): tokens are n elements that generate the group G, drawn
uniformly, and the label is the product of a word; A5 has 60 elements, S5 120, neither is solvable. Lengths and labels
follow `stairwell.tasks.state_tracking`.

Ours, since which elements the paper took is not known to us: the first is the swap of 0 and 1 (S5) or the cycle
0 -> 1 -> 2 -> 0 (A5), the second the cycle i -> i + 1, and these two generate the group by themselves. The others are
the remaining elements in an order shuffled by `generator_seed`, the identity last of all. So fewer generators are
always the beginning of more, and as many as the group has elements are all of it. The first token is applied first and
permutations are numbered as in the task `s5`: in lexicographic order of their images, those of A5 among themselves.
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
from .permutations import even, numbers, products, running_products

ELEMENTS = 5
SWAP, SMALL_CYCLE, CYCLE = (1, 0, 2, 3, 4), (1, 2, 0, 3, 4), (1, 2, 3, 4, 0)


@dataclass(frozen=True)
class Config(StateTrackingConfig):
    group: Literal["A5", "S5"] = "S5"
    """the alternating or the symmetric group of five things"""
    generators: int = 2
    """elements that a word is made of (the tables: 2 and 12 of A5; 4, 8 and 32 of S5)"""
    generator_seed: int = 0
    """which elements they are, but for the first two"""


@dataclass(frozen=True)
class GroupWords(StateTrackingEpisodes):
    group: Literal["A5", "S5"]
    generators: int
    generator_seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.generators <= self.order:
            raise UserError(
                f"generators is {self.generators}; it must be between 2 and {self.order}, the elements of {self.group}"
            )
        check_at_least(0, generator_seed=self.generator_seed)

    @property
    def order(self) -> int:
        return len(members(self.group))

    def draw_tokens(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, self.generators, size=(count, self.longest), dtype=np.int16)

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        factors = generating(self.group, self.generator_seed)[tokens]
        return running_products(table(self.group), self.order, factors, before)


class Words(StateTrackingTask):
    def __init__(self, config: Config) -> None:
        words = GroupWords(
            config.min_length, config.length, config.label, config.group, config.generators, config.generator_seed
        )
        self.name = f"products in {config.group} of {config.generators} generators"
        super().__init__(config, words, inputs=config.generators, outputs=words.order)


@cache
def members(group: str) -> Array:
    """The group's elements, as numbers of permutations."""
    return even(ELEMENTS) if group == "A5" else np.arange(factorial(ELEMENTS))


@cache
def table(group: str) -> Array:
    """Flat (second * order + first): the place among the members of `first` and then `second`."""
    inside = members(group)
    whole = products(ELEMENTS).reshape(factorial(ELEMENTS), -1)
    return np.searchsorted(inside, whole[np.ix_(inside, inside)]).ravel()


@cache
def generating(group: str, seed: int) -> Array:
    """All elements by their place among the members, in the order in which they become generators."""
    inside = members(group)
    pair = np.array([SMALL_CYCLE if group == "A5" else SWAP, CYCLE])
    chosen = np.searchsorted(inside, numbers(pair))
    identity = 0
    others = np.setdiff1d(np.arange(len(inside)), [*chosen, identity])
    return np.array([*chosen, *np.random.default_rng([seed, len(inside)]).permutation(others), identity])
