"""Words over generators of A5 and S5: the tables, compared with permutations composed one by one."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from stairwell.tasks.group_words import Config, GroupWords, generator_order, group_elements, group_table

Permutation = tuple[int, ...]


def is_even(permutation: Permutation) -> bool:
    """Return whether sorting a permutation takes an even number of swaps."""
    images, swaps = list(permutation), 0
    for i in range(5):
        while images[i] != i:
            j = images[i]
            images[i], images[j] = images[j], images[i]
            swaps += 1
    return swaps % 2 == 0


ALL = sorted(permutations(range(5)))
ELEMENTS: dict[str, list[Permutation]] = {"S5": ALL, "A5": [element for element in ALL if is_even(element)]}
S5_FIRST = [24, 33, 112, 45, 31, 32, 3, 110]
A5_FIRST = [15, 16, 31, 1, 46, 38, 42, 29, 50, 24, 28, 32]
both = pytest.mark.parametrize("group", ["A5", "S5"])


def compose(first: Permutation, second: Permutation) -> Permutation:
    return tuple(second[first[i]] for i in range(5))


def generated(factors: list[Permutation]) -> set[Permutation]:
    """Return all products of these elements."""
    reached, new = {(0, 1, 2, 3, 4)}, [(0, 1, 2, 3, 4)]
    while new:
        new = [product for element in new for product in {compose(element, factor) for factor in factors} - reached]
        reached.update(new)
    return reached


@both
def test_the_multiplication_table_is_correct(group: str) -> None:
    elements = ELEMENTS[group]
    assert [ALL[number] for number in group_elements(group)] == elements
    products = group_table(group).reshape(len(elements), len(elements))
    for second in range(len(elements)):
        for first in range(len(elements)):
            assert elements[products[second, first]] == compose(elements[first], elements[second])


@both
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_number_of_generators_generates_the_group(group: str, seed: int) -> None:
    elements = [ELEMENTS[group][number] for number in generator_order(group, seed)]
    assert sorted(elements) == ELEMENTS[group]  # each once
    assert elements[-1] == (0, 1, 2, 3, 4)
    for count in (2, 4, 8, 12, 32):
        assert generated(elements[:count]) == set(ELEMENTS[group])


def test_the_generators_do_not_change() -> None:
    """Other elements would be another task under the same name."""
    assert generator_order("S5", 0)[:8].tolist() == S5_FIRST
    assert generator_order("A5", 0)[:12].tolist() == A5_FIRST
    assert generator_order("S5", 1)[:2].tolist() == S5_FIRST[:2] and generator_order("S5", 1)[:8].tolist() != S5_FIRST
    assert [ALL[number] for number in S5_FIRST[:2]] == [(1, 0, 2, 3, 4), (1, 2, 3, 4, 0)]
    assert [ELEMENTS["A5"][number] for number in A5_FIRST[:2]] == [(1, 2, 0, 3, 4), (1, 2, 3, 4, 0)]


@both
@pytest.mark.parametrize("generators", [2, 4, 8, 12, 32, 60])
def test_every_label_is_the_product_of_the_word(group: Any, generators: int) -> None:
    task = GroupWords(Config(group=group, generators=generators, label="every", min_length=1, length=30))
    elements = ELEMENTS[group]
    assert (task.inputs, task.outputs) == (generators, len(elements))
    factors = [elements[number] for number in generator_order(group, 0)]
    batch = task.batch_source(range(8), 8, 0).read(300)
    assert batch.start is not None and set(batch.tokens.flatten().tolist()) == set(range(generators))
    for tokens, targets, starts in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
        product = ALL[0]
        for token, target, start in zip(tokens, targets, starts):
            product = compose(ALL[0] if start else product, factors[token])
            assert elements[target] == product


def test_invalid_options_are_refused() -> None:
    for options, message in (
        ({"group": "A6"}, "group must be 'A5' or 'S5', not 'A6'"),
        ({"generators": 1}, "generators is 1; it must be between 2 and 120, the order of S5"),
        ({"group": "A5", "generators": 61}, "it must be between 2 and 60, the order of A5"),
        ({"generator_seed": -1}, "generator_seed is -1; it must be at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            GroupWords(Config(**options))  # type: ignore[arg-type]
