"""The word problem, compared with an independent implementation."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import factorial

import pytest

from stairwell.tasks.permutations import Permutations, PermutationsConfig


def running_products(factors: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the running products of permutations, given as their images."""
    images = list(range(len(factors[0])))
    products = []
    for factor in factors:
        images = [factor[image] for image in images]
        products.append(tuple(images))
    return products


@pytest.mark.parametrize("elements", [2, 3, 5, 6])
@pytest.mark.parametrize("generators", [False, True])
def test_every_label_is_the_product_of_the_factors_so_far(elements: int, generators: bool) -> None:
    numbered = sorted(permutations(range(elements)))
    identity = list(range(elements))
    factors = [(1, 0, *identity[2:]), (*identity[1:], 0)] if generators else numbered
    task = Permutations(
        PermutationsConfig(elements=elements, generators=generators, length=25, test_length=70, test_episodes=4)
    )
    assert (task.inputs, task.outputs) == (len(factors), factorial(elements))
    for batch, length in ((task.batch_source(range(4), 4, 0).read(100), 25), (next(task.batches("test", 2, 500)), 70)):
        assert batch.start is not None
        for tokens, targets, starts in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
            assert [t for t, start in enumerate(starts) if start] == list(range(0, len(tokens), length))
            for first in range(0, len(tokens), length):
                word = [factors[token] for token in tokens[first : first + length]]
                products = [numbered[target] for target in targets[first : first + length]]
                assert products == running_products(word)


def test_the_first_token_is_applied_first() -> None:
    """The swap and then the cycle: 0 -> 1 -> 2 and 1 -> 0 -> 1."""
    numbered = sorted(permutations(range(5)))
    batch = Permutations(PermutationsConfig(generators=True, length=2)).batch_source(range(1), 1, 0).read(100)
    pairs = list(zip(batch.tokens[0].tolist(), batch.targets[0].tolist()))
    products = {(a, b): numbered[label] for (a, _), (b, label) in zip(pairs[::2], pairs[1::2])}
    assert products[0, 1] == (2, 1, 3, 4, 0)
    assert products[1, 0] == (0, 2, 3, 4, 1)
    assert products[0, 0] == (0, 1, 2, 3, 4)


def test_factors_are_uniform() -> None:
    tokens = (
        Permutations(PermutationsConfig(elements=3)).batch_source(range(64), 64, 0).read(400).tokens.flatten().tolist()
    )
    assert all(abs(tokens.count(number) / len(tokens) - 1 / 6) < 0.01 for number in range(6))


def test_invalid_options_are_rejected() -> None:
    for elements in (1, 7):
        with pytest.raises(ValueError, match=f"elements is {elements}; it must be between 2 and 6"):
            Permutations(PermutationsConfig(elements=elements))
    for name, minimum in (("length", 1), ("test_length", 1), ("valid_length", 0)):
        with pytest.raises(ValueError, match=f"{name} is -1; it must be at least {minimum}"):
            Permutations(replace(PermutationsConfig(), **{name: -1}))
