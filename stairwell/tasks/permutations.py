"""The word problem of the symmetric group S5: multiply permutations, one token at a time. It is complete for NC1, so no
transformer of fixed depth solves it at every length unless TC0 = NC1. A standard benchmark of state tracking.

A sequence is an episode of uniformly sampled permutations of `elements` elements. The label of token g_t is the number
of the running product p_t, in which the first token is applied first: `p_t(i) = g_t(p_{t-1}(i))`. Permutations are
numbered in the lexicographic order of their images (p(0), p(1), ..), so 0 is the identity. With `generators` the only
tokens are the swap of 0 and 1 (token 0) and the cycle i -> i + 1 (token 1), which generate the group; the labels are
the same. The state is reset at each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import factorial, isqrt

import numpy as np

from stairwell.errors import UserError

from .generated import Array, FixedLengthEpisodes, LengthConfig, LengthTask

MAX_ELEMENTS = 6  # the table of all products has factorial(elements) squared entries
MAX_SERIAL = 256  # factors of a word that is multiplied without splitting it


@dataclass(frozen=True)
class PermutationsConfig(LengthConfig):
    elements: int = 5
    """Number of permuted elements (the benchmark: 5)."""
    generators: bool = False
    """Whether tokens are only a swap and a cycle, instead of all permutations."""


@dataclass(frozen=True)
class PermutationEpisodes(FixedLengthEpisodes):
    elements: int
    generators: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.elements <= MAX_ELEMENTS:
            raise UserError(f"elements is {self.elements}; it must be between 2 and {MAX_ELEMENTS}")

    @property
    def vocabulary_size(self) -> int:
        return 2 if self.generators else factorial(self.elements)

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, self.vocabulary_size, size=(count, self.length), dtype=np.int16)

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        factors = generators(self.elements)[tokens] if self.generators else tokens
        return running_products(product_table(self.elements), factorial(self.elements), factors, carry)


class Permutations(LengthTask):
    config: PermutationsConfig
    config_type = PermutationsConfig

    def __init__(self, config: PermutationsConfig) -> None:
        episodes = PermutationEpisodes(config.length, config.elements, config.generators)
        super().__init__(config, episodes, inputs=episodes.vocabulary_size, outputs=factorial(config.elements))

    def names(self) -> tuple[list[str], list[str]]:
        """Return names in which permutations are their images: 10234 swaps the first two of five elements."""
        labels = ["".join(map(str, image)) for image in images(self.config.elements)]
        return ["swap", "cycle"] if self.config.generators else labels, labels

    def describe(self) -> str:
        c = self.config
        factors = "a swap and a cycle" if c.generators else "all permutations"
        task = f"word problem of S{c.elements} over {factors}, {c.length} factors, tested on {c.test_length}"
        return f"{task}; {self.describe_splits()}"


@cache
def images(elements: int) -> Array:
    """Return the images of all permutations: (number, i) is where the permutation takes element i."""
    return np.array(list(permutations(range(elements))))


@cache
def product_table(elements: int) -> Array:
    """Return the multiplication table, flat (second * order + first): the permutation that applies `first` and then
    `second`."""
    first = images(elements)
    composed = first[:, first]  # (second, first, i): second[first[i]]
    return permutation_numbers(composed).ravel()


def running_products(table: Array, order: int, factors: Array, carry: Array | None = None) -> tuple[Array, Array]:
    """Return the products of each word so far (E, L), and the last of them (E, 1) to carry on. `table` is the flat
    multiplication table of a group of `order` elements; element 0 is the identity. factors (E, L)

    A loop in Python takes as long for one word as for hundreds, so long words are split into segments that are
    multiplied in parallel, each as if it were the first."""
    E, L = factors.shape
    first = np.zeros(E, dtype=np.intp) if carry is None else carry[:, 0]
    if L <= MAX_SERIAL:
        running = _multiply(table, order, factors.astype(np.intp), first)[1:].T
        return running, running[:, -1:]
    size = isqrt(L)
    padded = np.zeros((E, -(-L // size) * size), dtype=np.intp)
    padded[:, :L] = factors
    alone = _multiply(table, order, padded.reshape(-1, size), np.zeros(padded.size // size, dtype=np.intp))
    within = alone[1:].T.reshape(E, -1, size)  # (E, segments, size)
    before = _multiply(table, order, within[:, :, -1], first)[:-1].T  # (E, segments): product of all segments before
    running = table[within * order + before[:, :, None]].reshape(E, -1)[:, :L]
    return running, running[:, -1:]


def _multiply(table: Array, order: int, factors: Array, first: Array) -> Array:
    """Return `first` (E,) and then each product with the factors (E, L): (1 + L, E), time first for speed."""
    running = np.empty((factors.shape[1] + 1, len(factors)), dtype=np.intp)
    running[0] = first
    for t, factor in enumerate(np.ascontiguousarray(factors.T)):
        np.take(table, factor * order + running[t], out=running[t + 1])
    return running


@cache
def generators(elements: int) -> Array:
    """Return the numbers of the swap of 0 and 1 and of the cycle i -> i + 1."""
    identity = list(range(elements))
    return permutation_numbers(np.array([[1, 0, *identity[2:]], [*identity[1:], 0]]))


def permutation_numbers(permuted: Array) -> Array:
    """Return the number of each permutation: (..., i) -> (...). Read as digits, permutations are sorted like their
    numbers."""
    elements = permuted.shape[-1]
    digits = elements ** np.arange(elements)[::-1]
    return np.searchsorted(images(elements) @ digits, permuted @ digits)
