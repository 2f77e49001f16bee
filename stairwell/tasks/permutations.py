"""The word problem of the symmetric group S5: multiply permutations, one token at a time. It is complete for NC1, so
that no transformer of fixed depth solves it at every length unless TC0 = NC1: today's yardstick of state tracking.

A sequence is a document of permutations of `elements` things, drawn uniformly. The label of its t-th token g_t is the
number of the running product p_t, in which the first token is applied first: `p_t(i) = g_t(p_{t-1}(i))`. Permutations
are numbered in the lexicographic order of their images (p(0), p(1), ..), so that 0 is the identity. With `generators`
the only tokens are the swap of 0 and 1 (token 0) and the cycle i -> i + 1 (token 1), which together make up every
permutation; the labels stay the same. Each sequence begins with a start flag.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import factorial, isqrt

import numpy as np

from stairwell import configs
from stairwell.errors import UserError

from .generated import Array, LengthTask, Sequences

MOST_ELEMENTS = 6  # the table of all products has factorial(elements) squared entries
SHORT = 256  # factors of a word that is multiplied in one piece


@dataclass(frozen=True)
class Config(configs.Config):
    elements: int = 5
    """how many things are permuted (the yardstick: 5)"""
    generators: bool = False
    """draw only a swap and a cycle instead of every permutation"""
    length: int = 40
    """permutations in a training sequence"""
    valid_length: int = 0
    """permutations in a validation sequence; 0: as many as in training"""
    test_length: int = 400
    """permutations in a test sequence"""
    train_episodes: int = 0
    """size of the training set, which repeats; 0 draws new sequences without end"""
    valid_episodes: int = 200
    """fresh sequences in the validation split"""
    test_episodes: int = 1000
    """fresh sequences in the test split"""


@dataclass(frozen=True)
class Words(Sequences):
    elements: int
    generators: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.elements <= MOST_ELEMENTS:
            raise UserError(f"elements is {self.elements}; it must be between 2 and {MOST_ELEMENTS}")

    @property
    def symbols(self) -> int:
        return 2 if self.generators else factorial(self.elements)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, self.symbols, size=(count, self.length), dtype=np.int16)

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        factors = generators(self.elements)[tokens] if self.generators else tokens
        return running_products(products(self.elements), factorial(self.elements), factors, before)


class Permutations(LengthTask):
    def __init__(self, config: Config) -> None:
        words = Words(config.length, config.elements, config.generators)
        super().__init__(config, words, inputs=words.symbols, outputs=factorial(config.elements))

    def describe(self) -> str:
        c = self.config
        factors = "a swap and a cycle" if c.generators else "all permutations"
        what = f"word problem of S{c.elements} over {factors}, {c.length} factors, tested on {c.test_length}"
        return f"{what}; {self.sets()}"


@cache
def images(elements: int) -> Array:
    """(number, i): where the permutation of this number takes thing i."""
    return np.array(list(permutations(range(elements))))


@cache
def products(elements: int) -> Array:
    """Flat (second * count + first): the number of the permutation that applies `first` and then `second`."""
    first = images(elements)
    composed = first[:, first]  # (second, first, i): second[first[i]]
    return numbers(composed).ravel()


def running_products(table: Array, order: int, factors: Array, before: Array | None = None) -> tuple[Array, Array]:
    """(E, L) -> (E, L), the products of each word so far, and the last of them (E, 1), which a word goes on from.
    `table` is a group's, flat; element 0 is the identity.

    A loop in Python takes as long for one word as for hundreds, so long words are cut into pieces that are multiplied
    side by side, each as if it came first."""
    E, L = factors.shape
    first = np.zeros(E, dtype=np.intp) if before is None else before[:, 0]
    if L <= SHORT:
        running = _multiply(table, order, factors.astype(np.intp), first)[1:].T
        return running, running[:, -1:]
    size = isqrt(L)
    padded = np.zeros((E, -(-L // size) * size), dtype=np.intp)
    padded[:, :L] = factors
    alone = _multiply(table, order, padded.reshape(-1, size), np.zeros(padded.size // size, dtype=np.intp))
    inside = alone[1:].T.reshape(E, -1, size)  # (E, pieces, size)
    ahead = _multiply(table, order, inside[:, :, -1], first)[:-1].T  # (E, pieces): the product of all pieces before
    running = table[inside * order + ahead[:, :, None]].reshape(E, -1)[:, :L]
    return running, running[:, -1:]


def _multiply(table: Array, order: int, factors: Array, first: Array) -> Array:
    """(E, L), (E,) -> (1 + L, E): `first`, and then each product; time first, for speed."""
    running = np.empty((factors.shape[1] + 1, len(factors)), dtype=np.intp)
    running[0] = first
    for t, factor in enumerate(np.ascontiguousarray(factors.T)):
        np.take(table, factor * order + running[t], out=running[t + 1])
    return running


@cache
def even(elements: int) -> Array:
    """The numbers of the even permutations, which swap an even number of pairs: the alternating group."""
    i, j = np.triu_indices(elements, 1)
    inversions = (images(elements)[:, i] > images(elements)[:, j]).sum(axis=1)
    return np.flatnonzero(inversions % 2 == 0)


@cache
def generators(elements: int) -> Array:
    """The numbers of the swap of 0 and 1 and of the cycle i -> i + 1."""
    things = list(range(elements))
    return numbers(np.array([[1, 0, *things[2:]], [*things[1:], 0]]))


def numbers(permuted: Array) -> Array:
    """(..., i) -> (...): the number of each permutation. Read as digits, permutations sort as their numbers do."""
    elements = permuted.shape[-1]
    digits = elements ** np.arange(elements)[::-1]
    return np.searchsorted(images(elements) @ digits, permuted @ digits)
