"""The tasks of the tables of state tracking: the protocol they share, and every label worked out in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from stairwell.runs.presets import RECIPES
from stairwell.tasks import task_type
from stairwell.tasks.base import IGNORE, Batch

Episode = tuple[list[int], list[int]]  # tokens, targets


def walked(tokens: list[int]) -> int:
    place = 0
    for token in tokens:
        place = {0: (4, 0, 1, 2, 3), 1: (0, 1, 2, 3, 4), 2: (1, 2, 3, 4, 0)}[token][place]
    return place


def odd_pairs(tokens: list[int]) -> int:
    return sum((a, b) in ((0, 1), (1, 0)) for a, b in pairwise(tokens)) % 2


def evaluated(tokens: list[int]) -> int:
    text = "".join("01234+-*="[token] for token in tokens).rstrip("+-*=")
    return eval(text) % 5


def multiplied(tokens: list[int]) -> int:
    """Things are moved about by the swap of 0 and 1 and by the cycle; arrangements are counted in dictionary order."""
    at = [0, 1, 2, 3, 4]
    for token in tokens:
        at = [{0: 1, 1: 0}.get(place, place) if token == 0 else (place + 1) % 5 for place in at]
    number = 0
    for i, place in enumerate(at):
        number = number * (5 - i) + sum(later < place for later in at[i + 1 :])
    return number


BY_HAND: dict[str, Callable[[list[int]], int]] = {
    "parity-check": lambda tokens: tokens.count(1) % 2,
    "even-pairs": odd_pairs,
    "cycle-navigation": walked,
    "modular-arithmetic": evaluated,
    "group-words": multiplied,
}
NAMES = list(BY_HAND)
each = pytest.mark.parametrize("name", NAMES)


def make(name: str, **options: Any) -> Any:
    config, task = task_type(name)
    return task(config(**options))


def whole(batch: Batch, rows_end: bool = False) -> list[Episode]:
    """The episodes of a batch; those that the end of a read cuts off only where rows end with their episodes."""
    found = []
    assert batch.start is not None and batch.start[:, 0].all()
    for tokens, targets, starts in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
        edges = [t for t, start in enumerate(starts) if start] + [len(tokens)] * rows_end
        found += [(tokens[first:last], targets[first:last]) for first, last in pairwise(edges)]
    return found


def split(task: Any, which: Any) -> list[Episode]:
    """All episodes of a split, read as one row: nothing is filled up."""
    (batch,) = task.batches(which, 1, 10**7)
    return whole(batch, rows_end=True)


@each
def test_every_label_is_right_and_at_the_last_token_only(name: str) -> None:
    task = make(name, test_episodes=200)
    for tokens, targets in whole(task.batch_source(range(32), 32, 0).read(400)) + split(task, "test"):
        assert targets == [IGNORE] * (len(tokens) - 1) + [BY_HAND[name](tokens)]
        assert min(tokens) >= 0 and max(tokens) < task.inputs and targets[-1] < task.outputs


@each
def test_a_label_at_every_token_is_that_of_an_episode_that_ends_there(name: str) -> None:
    task = make(name, label="every")
    for tokens, targets in whole(task.batch_source(range(16), 16, 0).read(200)):
        for t, target in enumerate(targets):
            operator = name == "modular-arithmetic" and 5 <= tokens[t] <= 7
            assert target == (IGNORE if operator else BY_HAND[name](tokens[: t + 1]))


@each
def test_asking_more_often_changes_no_token(name: str) -> None:
    last, every = (make(name, label=label).batch_source(range(4), 4, 0).read(200) for label in ("last", "every"))
    assert torch.equal(last.tokens, every.tokens)
    asked = last.targets != IGNORE
    assert torch.equal(last.targets[asked], every.targets[asked]) and (every.targets != IGNORE).sum() > asked.sum()


@each
def test_lengths_are_drawn_uniformly(name: str) -> None:
    """In 3..40 and, in testing, in 40..256; modular arithmetic makes an odd length longer by one."""
    task = make(name, valid_episodes=9500, test_episodes=10850)
    for which, least, most in (("valid", 3, 40), ("test", 40, 256)):
        found = Counter(len(tokens) for tokens, _ in split(task, which))
        expected = Counter(range(least, most + 1))
        if name == "modular-arithmetic":
            expected = Counter(length + length % 2 for length in range(least, most + 1))
        assert set(found) == set(expected)
        average = sum(found.values()) / sum(expected.values())  # 250 and 50
        assert all(
            abs(found[length] - average * expected[length]) < 6 * (average * expected[length]) ** 0.5
            for length in found
        )


@each
def test_training_has_the_same_lengths_as_validation(name: str) -> None:
    lengths = [len(tokens) for tokens, _ in whole(make(name).batch_source(range(50), 50, 0).read(2000))]
    assert min(lengths) == (4 if name == "modular-arithmetic" else 3) and max(lengths) == 40
    assert abs(sum(lengths) / len(lengths) - 21.5) < 1


@each
def test_tokens_and_labels_are_drawn_evenly(name: str) -> None:
    task = make(name, min_length=30)
    played = whole(task.batch_source(range(64), 64, 0).read(2000))
    labels = Counter(targets[-1] for _, targets in played)
    tokens = Counter(token for tokens, _ in played for token in tokens)
    for counter, symbols in ((labels, task.outputs), (tokens, task.inputs)):
        if name == "modular-arithmetic":  # zeros are more frequent among products, = among symbols less
            assert set(counter) == set(range(symbols))
            continue
        average = sum(counter.values()) / symbols
        assert set(counter) == set(range(symbols))
        assert all(abs(count - average) < 6 * average**0.5 for count in counter.values())


@each
def test_a_row_depends_on_its_number_and_the_seed_alone(name: str) -> None:
    task = make(name)
    together = task.batch_source(range(6), 6, 3).read(150)
    alone = task.batch_source(range(4, 5), 50, 3).read(150)
    again = task.batch_source(range(6), 6, 3)
    other = task.batch_source(range(6), 6, 4).read(150)
    assert torch.equal(together.tokens[4], alone.tokens[0]) and torch.equal(together.targets[4], alone.targets[0])
    assert torch.equal(together.tokens, torch.cat([again.read(70).tokens, again.read(80).tokens], 1))
    assert not torch.equal(together.tokens, other.tokens)


@each
def test_a_split_is_the_same_in_any_number_of_rows(name: str) -> None:
    task = make(name, test_episodes=40)
    parts = [split(task, "test"), whole(next(task.batches("test", 40, 300)), rows_end=True)]
    # Rows that are shorter than the longest are filled up behind their episode.
    ends = [(tokens[: len(first)], targets[: len(first)]) for (first, _), (tokens, targets) in zip(*parts, strict=True)]
    assert ends == parts[0]


@each
def test_a_curriculum_changes_the_longest(name: str) -> None:
    stream = make(name).batch_source(range(20), 20, 0)
    stream.read(7)
    stream.change(length=6)
    assert {len(tokens) for tokens, _ in whole(stream.read(400))} == ({4, 6} if "arithmetic" in name else {3, 4, 5, 6})
    with pytest.raises(ValueError, match="length is 2; it must be at least the shortest length, which is 3"):
        stream.change(length=2)


@each
def test_the_published_validation_can_be_asked_for(name: str) -> None:
    lengths = [len(tokens) for tokens, _ in split(make(name, valid_min_length=40, valid_length=256), "valid")]
    assert min(lengths) >= 40 and max(lengths) > 200


@each
def test_lengths_that_make_no_sense_are_refused(name: str) -> None:
    for options, message in (
        ({"min_length": 0}, "min_length is 0; it must be at least 1"),
        ({"length": 2}, "length is 2; it must be at least the shortest length, which is 3"),
        ({"test_length": 39}, "length is 39; it must be at least the shortest length, which is 40"),
        ({"valid_length": -1}, "valid_length is -1; it must be at least 0"),
        ({"label": "first"}, "label must be 'last' or 'every', not 'first'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(name, **options)


@each
def test_a_task_says_what_it_is(name: str) -> None:
    said = make(name).describe()
    assert "3 to 40 tokens, tested on 40 to 256, asked at the last;" in said and RECIPES[name].train.segment == 40


def test_a_circle_can_have_other_sizes() -> None:
    task = make("cycle-navigation", places=3)
    for tokens, targets in whole(task.batch_source(range(4), 4, 0).read(300)):
        assert targets[-1] == (tokens.count(2) - tokens.count(0)) % 3
    with pytest.raises(ValueError, match="places is 1"):
        make("cycle-navigation", places=1)


def test_an_odd_longest_expression_is_longer_by_one() -> None:
    stream = make("modular-arithmetic", min_length=1, length=5).batch_source(range(9), 9, 0)
    assert {len(tokens) for tokens, _ in whole(stream.read(200))} == {2, 4, 6}


def test_the_examples_of_the_suite() -> None:
    """What the Chomsky suite prints beside its definitions."""
    assert [walked(tokens) for tokens in ([2, 0, 1, 0, 0], [2, 2, 2, 0])] == [3, 2]
    assert [odd_pairs([int(bit) for bit in bits]) for bits in ("001110", "0101001")] == [0, 1]
    expressions = ("1+2*3=", "1-1-1=", "0*1+4*3-2=")
    assert [evaluated(["01234+-*=".index(c) for c in text]) for text in expressions] == [2, 4, 0]
