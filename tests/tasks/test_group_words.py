"""Words over generators of groups: the tables, compared with permutations composed one by one."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import pytest

from stairwell.errors import UserError
from stairwell.tasks import groups
from stairwell.tasks.endless import BLOCK, StreamId, endless_batches
from stairwell.tasks.group_words import GroupWords, GroupWordsConfig, token_elements

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
    assert list(groups.elements(group)) == elements
    products = groups.multiplication_table(group).reshape(len(elements), len(elements))
    for second in range(len(elements)):
        for first in range(len(elements)):
            assert elements[products[second, first]] == compose(elements[first], elements[second])


@both
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_number_of_generators_generates_the_group(group: str, seed: int) -> None:
    elements = [ELEMENTS[group][number] for number in token_elements(group, seed)]
    assert sorted(elements) == ELEMENTS[group]  # each once
    assert elements[-1] == (0, 1, 2, 3, 4)
    for count in (2, 4, 8, 12, 32):
        assert generated(elements[:count]) == set(ELEMENTS[group])


def test_the_generators_do_not_change() -> None:
    """Other elements would be another task under the same name."""
    assert token_elements("S5", 0)[:8].tolist() == S5_FIRST
    assert token_elements("A5", 0)[:12].tolist() == A5_FIRST
    assert token_elements("S5", 1)[:2].tolist() == S5_FIRST[:2] and token_elements("S5", 1)[:8].tolist() != S5_FIRST
    assert [ALL[number] for number in S5_FIRST[:2]] == [(1, 0, 2, 3, 4), (1, 2, 3, 4, 0)]
    assert [ELEMENTS["A5"][number] for number in A5_FIRST[:2]] == [(1, 2, 0, 3, 4), (1, 2, 3, 4, 0)]


@both
@pytest.mark.parametrize("generators", [2, 4, 8, 12, 32, 60])
def test_every_label_is_the_product_of_the_word(group: Any, generators: int) -> None:
    task = GroupWords(GroupWordsConfig(group=group, generators=generators, label="every", min_length=1, length=30))
    elements = ELEMENTS[group]
    assert (task.inputs, task.outputs) == (generators, len(elements))
    factors = [elements[number] for number in token_elements(group, 0)]
    batch = task.batch_source(range(8), 8, 0).read(300)
    assert batch.start is not None and set(batch.tokens.flatten().tolist()) == set(range(generators))
    for tokens, targets, starts in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
        product = ALL[0]
        for token, target, start in zip(tokens, targets, starts):
            product = compose(ALL[0] if start else product, factors[token])
            assert elements[target] == product


@pytest.mark.parametrize("group", ["S5", "D6", "S3xZ4"])
def test_names_are_the_images_of_the_points(group: str) -> None:
    task = GroupWords(GroupWordsConfig(group=group, generators=4, label="every"))
    tokens, labels = task.names()
    batch = next(iter(task.batches("test", 1, 40)))  # the shortest episode
    product: Any = range(len(labels[0]))
    for token, label in zip(batch.tokens[0].tolist(), batch.targets[0].tolist()):
        product = groups.compose(product, [int(image) for image in tokens[token]])
        assert "".join(map(str, product)) == labels[label]


def test_elements_of_groups_of_many_points_are_numbers() -> None:
    tokens, labels = GroupWords(GroupWordsConfig(group="Z12", generators=2)).names()
    assert labels == [str(number) for number in range(12)] and tokens[0] == "1"


@pytest.mark.parametrize("group", ["Z7", "D6", "S3xD4xZ5", "(0 1)(2 3), (0 1 2 3 4)"])
def test_endless_streams_are_products_in_every_kind_of_group(group: str) -> None:
    """Beyond the block in which a stream is generated: the product is carried over."""
    count = len(groups.generators(group)) + 1
    task = GroupWords(GroupWordsConfig(group=group, generators=count, label="every"))
    elements = list(groups.elements(group))
    factors = [elements[number] for number in token_elements(group, 0)]
    product, tokens = elements[0], 0
    for batch in endless_batches(task.endless_stream(), [StreamId(0, 0)], BLOCK + 100, BLOCK):
        for token, target in zip(batch.tokens[0].tolist(), batch.targets[0].tolist(), strict=True):
            product, tokens = tuple(factors[token][point] for point in product), tokens + 1
            assert elements[target] == product
    assert tokens == BLOCK + 100


def test_invalid_options_are_rejected() -> None:
    for options, message in (
        ({"group": "A2"}, "group is 'A2'; it must be a group such as S5, A5, Z7 or D6"),
        ({"group": "S7"}, "group is 'S7', which has more than 2,048 elements"),
        ({"group": "Z999999999"}, "more than 2,048 elements"),
        ({"group": "A5x"}, "it must be a group such as"),
        ({"group": "(0 1"}, "it must be a group such as"),
        ({"group": "(0 1)(1 2)"}, "must not share points"),
        ({"group": "(0), (1)"}, "has only the identity"),
        ({"group": "(0 99999)"}, "points must be below 2,048"),
        ({"group": "A5xZ2"}, "generators is 2; it must be between 3 and 120, the order of A5xZ2"),
        ({"generators": 1}, "generators is 1; it must be between 2 and 120, the order of S5"),
        ({"group": "A5", "generators": 61}, "it must be between 2 and 60, the order of A5"),
        ({"generator_seed": -1}, "generator_seed is -1; it must be at least 0"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            GroupWords(GroupWordsConfig(**options))  # type: ignore[arg-type]


ORDERS = {
    "S2": 2, "S3": 6, "S6": 720, "A3": 3, "A4": 12, "A6": 360, "Z2": 2, "Z7": 7, "D3": 6, "D6": 12,
    "Z2xZ2": 4, "Z2xZ3": 6, "A5xZ2": 120, "S3xD4xZ5": 240,
    "(0 1)": 2, "(0 1)(2 3), (0 1 2 3 4)": 60, "(0 1 2 3)(4 5 6 7), (0 4 2 6)(1 7 3 5)": 8,
}  # fmt: skip


@pytest.mark.parametrize("group", ORDERS)
def test_every_group_is_closed_under_its_multiplication(group: str) -> None:
    elements, order = groups.elements(group), ORDERS[group]
    assert len(elements) == order and elements[0] == tuple(range(len(elements[0])))
    table = groups.multiplication_table(group).reshape(order, order)
    for second in range(0, order, 1 + order // 20):
        for first in range(0, order, 1 + order // 20):
            assert elements[table[second, first]] == tuple(elements[second][image] for image in elements[first])
    assert (table[0] == range(order)).all() and all(len(set(row)) == order for row in table.tolist())
    fewest = len(groups.generators(group))
    assert [elements[number] for number in token_elements(group, 0)[:fewest]] == list(groups.generators(group))


def test_properties_of_small_groups() -> None:
    def orders(group: str) -> list[int]:
        """Return the sorted orders of all elements."""
        table = groups.multiplication_table(group).reshape(ORDERS[group], -1)
        sizes = []
        for element in range(ORDERS[group]):
            power, size = element, 1
            while power:
                power, size = table[element, power], size + 1
            sizes.append(size)
        return sorted(sizes)

    assert orders("Z2xZ2") == [1, 2, 2, 2] and orders("Z2xZ3") == [1, 2, 3, 3, 6, 6]
    assert orders("D3") == orders("S3") == [1, 2, 2, 2, 3, 3]
    assert orders("(0 1 2 3)(4 5 6 7), (0 4 2 6)(1 7 3 5)") == [1, 2, 4, 4, 4, 4, 4, 4]  # quaternions


def test_words_over_the_cyclic_group_of_two_are_parity() -> None:
    task = GroupWords(GroupWordsConfig(group="Z2", label="every", min_length=1, length=30))
    batch = task.batch_source(range(4), 4, 0).read(200)
    assert batch.start is not None
    for tokens, targets, starts in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
        parity = 0
        for token, target, start in zip(tokens, targets, starts):
            parity = (0 if start else parity) ^ (token == 0)  # token 1 is the identity
            assert target == parity


def test_the_generators_of_the_groups_are_permutations() -> None:
    for group in ("S5", "A5", "A6", "Z7", "D6", "A5xZ2"):
        for generator in groups.generators(group):
            assert sorted(generator) == list(range(len(generator)))
