"""Finite groups as groups of permutations.

    S5                        symmetric group: all permutations of 5 points
    A5                        alternating group: the even permutations
    Z7                        cyclic group
    D6                        dihedral group: the 12 symmetries of a hexagon
    A5xZ2                     direct product
    (0 1)(2 3), (0 1 2 3 4)   the group that these permutations generate, in cycle notation

A permutation is the tuple of its images. Elements are numbered in the lexicographic order of their images, so the
identity is 0. In a product, the first factor is applied first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from stairwell.errors import UserError

from .generated import Array

Permutation = tuple[int, ...]

MAX_ORDER = 2048  # the multiplication table has the square of this many entries
NAMED = re.compile(r"([SAZD])(\d{1,9})")
CYCLE = re.compile(r"\(([\d\s]+)\)")
SMALLEST = {"S": 2, "A": 3, "Z": 2, "D": 3}


@cache
def generators(group: str) -> tuple[Permutation, ...]:
    """Return permutations that generate the group."""
    if "(" in group:
        return tuple(dict.fromkeys(in_cycles(group)))
    factors = [named(group, factor) for factor in group.split("x")]
    points = sum(len(factor[0]) for factor in factors)
    embedded = []
    offset = 0
    for factor in factors:
        for images in factor:
            after = range(offset + len(images), points)
            embedded.append((*range(offset), *(offset + image for image in images), *after))
        offset += len(factor[0])
    return tuple(dict.fromkeys(embedded))


def named(group: str, name: str) -> list[Permutation]:
    """Return generators of a symmetric, alternating, cyclic or dihedral group."""
    match = NAMED.fullmatch(name)
    if not match or int(match[2]) < SMALLEST[match[1]]:
        raise unknown(group)
    letter, n = match[1], int(match[2])
    if n > MAX_ORDER:
        raise too_large(group)
    cycle = (*range(1, n), 0)
    if letter == "S":
        return [(1, 0, *range(2, n)), cycle]
    if letter == "A":  # an n-cycle is even if n is odd
        return [(1, 2, 0, *range(3, n)), cycle if n % 2 else (0, *range(2, n), 1)]
    return [cycle] if letter == "Z" else [cycle, tuple(range(n))[::-1]]


def in_cycles(group: str) -> list[Permutation]:
    """Return permutations given in cycle notation, separated by commas."""
    parts = [part.strip() for part in group.split(",")]
    if not all(re.fullmatch(rf"({CYCLE.pattern}\s*)+", part) for part in parts):
        raise unknown(group)
    cycles = [[[int(point) for point in cycle.split()] for cycle in CYCLE.findall(part)] for part in parts]
    points = 1 + max((point for part in cycles for cycle in part for point in cycle), default=0)
    if points > MAX_ORDER:
        raise UserError(f"group is {group!r}; points must be below {MAX_ORDER:,}")
    permutations = []
    for part in cycles:
        images = list(range(points))
        moved = [point for cycle in part for point in cycle]
        if len(set(moved)) < len(moved) or not moved:
            raise UserError(f"group is {group!r}; the cycles of a permutation must not share points")
        for cycle in part:
            for point, image in zip(cycle, [*cycle[1:], cycle[0]]):
                images[point] = image
        permutations.append(tuple(images))
    if all(images == tuple(range(points)) for images in permutations):
        raise UserError(f"group is {group!r}, which has only the identity")
    return permutations


def compose(first: Sequence[int], second: Sequence[int]) -> Permutation:
    """Return the permutation that applies `first` and then `second`."""
    return tuple(second[image] for image in first)


@cache
def elements(group: str) -> tuple[Permutation, ...]:
    """Return all elements of the group in order: every product of its generators."""
    chosen = generators(group)
    identity = tuple(range(len(chosen[0])))
    reached, new = {identity}, [identity]
    while new:
        products = {compose(element, generator) for element in new for generator in chosen}
        new = list(products - reached)
        reached |= products
        if len(reached) > MAX_ORDER:
            raise too_large(group)
    return tuple(sorted(reached))


@cache
def indices(group: str) -> dict[Permutation, int]:
    """Return the number of each element."""
    return {element: number for number, element in enumerate(elements(group))}


@cache
def multiplication_table(group: str) -> Array:
    """Return the multiplication table, flat (second * order + first): the number of `first` and then `second`."""
    images = np.array(elements(group))
    # Each element gets a random key, so that products are looked up as numbers. All keys are different.
    weights = np.random.default_rng(0).integers(1 << 62, size=images.shape[1], dtype=np.int64)
    keys = images @ weights  # modulo 2^64
    order = np.argsort(keys)
    assert (np.diff(keys[order]) != 0).all()
    table = [order[np.searchsorted(keys, second[images] @ weights, sorter=order)] for second in images]
    return np.concatenate(table)


def unknown(group: str) -> UserError:
    return UserError(
        f"group is {group!r}; it must be a group such as S5, A5, Z7 or D6, a product such as A5xZ2, or permutations "
        "such as '(0 1)(2 3), (0 1 2 3 4)'"
    )


def too_large(group: str) -> UserError:
    return UserError(f"group is {group!r}, which has more than {MAX_ORDER:,} elements; choose a smaller one")
