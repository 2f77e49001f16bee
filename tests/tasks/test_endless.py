"""Streams without end: their labels are those of the whole word at once, however they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stairwell.errors import UserError
from stairwell.tasks import TASKS, task_type
from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.endless import BLOCK, StreamName, endless_batches
from stairwell.tasks.generated import ENDLESS
from stairwell.tasks.random_walk import trajectory

OPTIONS: dict[str, dict[str, Any]] = {
    "parity-check": {"label": "every"},
    "even-pairs": {"label": "every"},
    "cycle-navigation": {"label": "every"},
    "modular-arithmetic": {"label": "every"},
    "group-words": {"label": "every", "generators": 8},
    "s5": {"generators": True},
}
each = pytest.mark.parametrize("name", ENDLESS)


def make(name: str, **options: Any) -> Any:
    config, task = task_type(name)
    return task(config(**{**OPTIONS.get(name, {}), **options}))


def whole(name: str, streams: list[StreamName], tokens: int, segment: int) -> Batch:
    batches = list(endless_batches(make(name).endless(), streams, tokens, segment))
    assert all(batch.start is None and batch.tokens.shape[1] <= segment for batch in batches)
    return Batch(torch.cat([b.tokens for b in batches], 1), torch.cat([b.targets for b in batches], 1))


@each
def test_how_a_stream_is_read_changes_nothing(name: str) -> None:
    """Neither the size of the segments, nor what is read beside it, nor how far it goes."""
    streams = [StreamName(0, 0), StreamName(0, 1), StreamName(7, 1)]
    at_once = whole(name, streams, 2 * BLOCK + 10, 10**6)
    assert at_once.tokens.shape == (3, 2 * BLOCK + 10)
    in_bites = whole(name, streams[::-1], 2 * BLOCK + 3, 100)
    assert in_bites.tokens.flip(0).equal(at_once.tokens[:, :-7])
    assert in_bites.targets.flip(0).equal(at_once.targets[:, :-7])
    assert len({tuple(row) for row in at_once.tokens.tolist()}) == 3


@each
def test_a_stream_never_repeats_itself_or_another(name: str) -> None:
    """No 64 tokens in a row come twice, within a block, across blocks or in another stream."""
    streams = [StreamName(0, 0), StreamName(0, 1), StreamName(1, 0)]
    found = [row[1:].tolist() for row in whole(name, streams, 3 * BLOCK, 10**6).tokens]
    windows = [tuple(row[i : i + 64]) for row in found for i in range(len(row) - 63)]
    assert len(set(windows)) == len(windows)


@each
def test_labels_are_those_of_the_word_at_once(name: str) -> None:
    """Worked out for a whole stream at once; the stream goes over the edges of blocks."""
    task, tokens = make(name), 2 * BLOCK + 500
    found = whole(name, [StreamName(3, 5)], tokens, 999)
    opening = len(task.endless().opening)
    if name == "random-walk":
        cells, _ = trajectory(found.tokens[0].tolist(), task.config.grid)
        assert found.targets[0, 1:].tolist() == cells[1:] and found.targets[0, 0] == IGNORE
        return
    labels, _ = task.train.follow(found.tokens[:, opening:].numpy(), None)
    asked = found.targets[0] != IGNORE
    assert asked.sum() == (tokens // 2 if name == "modular-arithmetic" else tokens)
    assert found.targets[0][asked].tolist() == labels[0][asked.numpy()].tolist()


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1000, 4096])
def test_long_words_are_multiplied_as_short_ones(length: int) -> None:
    """Pieces side by side give what one factor after the other gives, from any element on."""
    words, rng = make("group-words").train, np.random.default_rng(0)
    tokens, before = rng.integers(0, 8, (3, length)), rng.integers(0, 120, (3, 1))
    labels, after = words.follow(tokens, before)
    carried = before
    for t in range(length):
        one, carried = words.follow(tokens[:, t : t + 1], carried)
        assert (one[:, 0] == labels[:, t]).all()
    assert (carried == after).all()


def test_a_model_that_was_asked_at_the_end_is_asked_where_an_episode_could_end() -> None:
    task = make("cycle-navigation", label="last", min_length=3)
    batch = next(endless_batches(task.endless(), [StreamName(0, 0)], 10, 10))
    assert (batch.targets[0] != IGNORE).tolist() == [False, False, *[True] * 8]


def test_tasks_without_such_a_stream_say_so() -> None:
    generated = [name for name, (_, _, _) in TASKS.items() if hasattr(task_type(name)[1], "endless")]
    for name in generated:
        if name in ENDLESS:
            make(name).endless()
            continue
        with pytest.raises(UserError, match=r"episodes of this task must end; .* parity, s5"):
            make(name).endless()
    with pytest.raises(UserError, match=r"has no =, .* train one with --task.label every"):
        make("modular-arithmetic", label="last").endless()
