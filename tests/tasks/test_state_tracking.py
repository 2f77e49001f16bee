"""State-tracking benchmarks: their common protocol, and every label compared with plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from stairwell.runs.presets import preset
from stairwell.tasks import task_type
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch

Episode = tuple[list[int], list[int]]  # tokens, targets


def end_of_walk(tokens: list[int]) -> int:
    position = 0
    for token in tokens:
        position = {0: (4, 0, 1, 2, 3), 1: (0, 1, 2, 3, 4), 2: (1, 2, 3, 4, 0)}[token][position]
    return position


def parity_of_pairs(tokens: list[int]) -> int:
    return sum((a, b) in ((0, 1), (1, 0)) for a, b in pairwise(tokens)) % 2


def value_of(tokens: list[int]) -> int:
    text = "".join("01234+-*="[token] for token in tokens).rstrip("+-*=")
    return eval(text) % 5


def product_of(tokens: list[int]) -> int:
    """Return the number, in lexicographic order, of a product of swaps of 0 and 1 and of cycles."""
    images = [0, 1, 2, 3, 4]
    for token in tokens:
        images = [{0: 1, 1: 0}.get(image, image) if token == 0 else (image + 1) % 5 for image in images]
    number = 0
    for i, image in enumerate(images):
        number = number * (5 - i) + sum(later < image for later in images[i + 1 :])
    return number


EXPECTED: dict[str, Callable[[list[int]], int]] = {
    "parity-check": lambda tokens: tokens.count(1) % 2,
    "even-pairs": parity_of_pairs,
    "cycle-navigation": end_of_walk,
    "modular-arithmetic": value_of,
    "group-words": product_of,
}
NAMES = list(EXPECTED)
each = pytest.mark.parametrize("name", NAMES)


def make(name: str, **options: Any) -> Any:
    config, task = task_type(name)
    return task(config(**options))


def episodes_of(batch: TokenBatch, with_last: bool = False) -> list[Episode]:
    """Return the episodes of a batch; the last one of each stream, which may be truncated, only if `with_last`."""
    episodes = []
    assert batch.start is not None and batch.start[:, 0].all()
    for tokens, targets, starts in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.start.tolist()):
        edges = [t for t, start in enumerate(starts) if start] + [len(tokens)] * with_last
        episodes += [(tokens[first:last], targets[first:last]) for first, last in pairwise(edges)]
    return episodes


def split(task: Any, name: Any) -> list[Episode]:
    """Return all episodes of a split, read as one stream without padding."""
    (batch,) = task.batches(name, 1, 10**7)
    return episodes_of(batch, with_last=True)


@each
def test_only_the_last_token_has_a_label_and_it_is_correct(name: str) -> None:
    task = make(name, test_episodes=200)
    for tokens, targets in episodes_of(task.batch_source(range(32), 32, 0).read(400)) + split(task, "test"):
        assert targets == [IGNORE_INDEX] * (len(tokens) - 1) + [EXPECTED[name](tokens)]
        assert min(tokens) >= 0 and max(tokens) < task.inputs and targets[-1] < task.outputs


@each
def test_the_label_of_every_token_is_that_of_an_episode_ending_there(name: str) -> None:
    task = make(name, label="every")
    for tokens, targets in episodes_of(task.batch_source(range(16), 16, 0).read(200)):
        for t, target in enumerate(targets):
            operator = name == "modular-arithmetic" and 5 <= tokens[t] <= 7
            assert target == (IGNORE_INDEX if operator else EXPECTED[name](tokens[: t + 1]))


@each
def test_labels_at_every_token_do_not_change_the_tokens(name: str) -> None:
    last, every = (make(name, label=label).batch_source(range(4), 4, 0).read(200) for label in ("last", "every"))
    assert torch.equal(last.tokens, every.tokens)
    scored = last.targets != IGNORE_INDEX
    assert (
        torch.equal(last.targets[scored], every.targets[scored])
        and (every.targets != IGNORE_INDEX).sum() > scored.sum()
    )


@each
def test_lengths_are_uniform(name: str) -> None:
    """In 3..40 and, in testing, in 40..256; modular arithmetic adds one to odd lengths."""
    task = make(name, valid_episodes=9500, test_episodes=10850)
    for name_of_split, shortest, longest in (("valid", 3, 40), ("test", 40, 256)):
        counts = Counter(len(tokens) for tokens, _ in split(task, name_of_split))
        expected = Counter(range(shortest, longest + 1))
        if name == "modular-arithmetic":
            expected = Counter(length + length % 2 for length in range(shortest, longest + 1))
        assert set(counts) == set(expected)
        average = sum(counts.values()) / sum(expected.values())  # 250 and 50
        assert all(
            abs(counts[length] - average * expected[length]) < 6 * (average * expected[length]) ** 0.5
            for length in counts
        )


@each
def test_training_has_the_same_lengths_as_validation(name: str) -> None:
    lengths = [len(tokens) for tokens, _ in episodes_of(make(name).batch_source(range(50), 50, 0).read(2000))]
    assert min(lengths) == (4 if name == "modular-arithmetic" else 3) and max(lengths) == 40
    assert abs(sum(lengths) / len(lengths) - 21.5) < 1


@each
def test_tokens_and_labels_are_uniform(name: str) -> None:
    task = make(name, min_length=30)
    episodes = episodes_of(task.batch_source(range(64), 64, 0).read(2000))
    labels = Counter(targets[-1] for _, targets in episodes)
    tokens = Counter(token for tokens, _ in episodes for token in tokens)
    for counter, size in ((labels, task.outputs), (tokens, task.inputs)):
        if name == "modular-arithmetic":  # zeros are more frequent among products, = is less frequent among tokens
            assert set(counter) == set(range(size))
            continue
        average = sum(counter.values()) / size
        assert set(counter) == set(range(size))
        assert all(abs(count - average) < 6 * average**0.5 for count in counter.values())


@each
def test_a_stream_depends_on_its_index_and_the_seed_only(name: str) -> None:
    task = make(name)
    together = task.batch_source(range(6), 6, 3).read(150)
    alone = task.batch_source(range(4, 5), 50, 3).read(150)
    again = task.batch_source(range(6), 6, 3)
    other = task.batch_source(range(6), 6, 4).read(150)
    assert torch.equal(together.tokens[4], alone.tokens[0]) and torch.equal(together.targets[4], alone.targets[0])
    assert torch.equal(together.tokens, torch.cat([again.read(70).tokens, again.read(80).tokens], 1))
    assert not torch.equal(together.tokens, other.tokens)


@each
def test_a_split_is_the_same_at_any_batch_size(name: str) -> None:
    task = make(name, test_episodes=40)
    parts = [split(task, "test"), episodes_of(next(task.batches("test", 40, 300)), with_last=True)]
    # Streams that are shorter than the longest are padded.
    unpadded = [
        (tokens[: len(first)], targets[: len(first)]) for (first, _), (tokens, targets) in zip(*parts, strict=True)
    ]
    assert unpadded == parts[0]


@each
def test_a_curriculum_changes_the_maximum_length(name: str) -> None:
    stream = make(name).batch_source(range(20), 20, 0)
    stream.read(7)
    stream.change(length=6)
    assert {len(tokens) for tokens, _ in episodes_of(stream.read(400))} == (
        {4, 6} if "arithmetic" in name else {3, 4, 5, 6}
    )
    with pytest.raises(ValueError, match="length is 2; it must be at least the shortest length, which is 3"):
        stream.change(length=2)


@each
def test_validation_can_have_the_published_lengths(name: str) -> None:
    lengths = [len(tokens) for tokens, _ in split(make(name, valid_min_length=40, valid_length=256), "valid")]
    assert min(lengths) >= 40 and max(lengths) > 200


@each
def test_invalid_lengths_are_rejected(name: str) -> None:
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
def test_the_description_has_the_lengths(name: str) -> None:
    description = make(name).describe()
    assert "3 to 40 tokens, tested on 40 to 256, scored at the last;" in description
    assert preset(f"{name}/feedback").train.segment == 40


def test_a_cycle_can_have_other_sizes() -> None:
    task = make("cycle-navigation", positions=3)
    for tokens, targets in episodes_of(task.batch_source(range(4), 4, 0).read(300)):
        assert targets[-1] == (tokens.count(2) - tokens.count(0)) % 3
    with pytest.raises(ValueError, match="positions is 1"):
        make("cycle-navigation", positions=1)


def test_an_odd_maximum_length_of_expressions_is_rounded_up() -> None:
    stream = make("modular-arithmetic", min_length=1, length=5).batch_source(range(9), 9, 0)
    assert {len(tokens) for tokens, _ in episodes_of(stream.read(200))} == {2, 4, 6}


def test_the_examples_of_the_chomsky_suite() -> None:
    assert [end_of_walk(tokens) for tokens in ([2, 0, 1, 0, 0], [2, 2, 2, 0])] == [3, 2]
    assert [parity_of_pairs([int(bit) for bit in bits]) for bits in ("001110", "0101001")] == [0, 1]
    expressions = ("1+2*3=", "1-1-1=", "0*1+4*3-2=")
    assert [value_of(["01234+-*=".index(c) for c in text]) for text in expressions] == [2, 4, 0]
