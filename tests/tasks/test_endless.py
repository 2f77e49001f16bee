"""Endless streams: their labels do not depend on blocks and segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stairwell.errors import UserError
from stairwell.tasks import TASKS, task_type
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.endless import BLOCK, StreamId, endless_batches
from stairwell.tasks.generated import ENDLESS_TASKS
from stairwell.tasks.random_walk import trajectory

OPTIONS: dict[str, dict[str, Any]] = {
    "parity-check": {"label": "every"},
    "even-pairs": {"label": "every"},
    "cycle-navigation": {"label": "every"},
    "modular-arithmetic": {"label": "every"},
    "group-words": {"label": "every", "generators": 8},
    "s5": {"generators": True},
}
each = pytest.mark.parametrize("name", ENDLESS_TASKS)


def make(name: str, **options: Any) -> Any:
    config, task = task_type(name)
    return task(config(**{**OPTIONS.get(name, {}), **options}))


def read(name: str, streams: list[StreamId], tokens: int, segment: int) -> TokenBatch:
    batches = list(endless_batches(make(name).endless_stream(), streams, tokens, segment))
    assert all(batch.start is None and batch.tokens.shape[1] <= segment for batch in batches)
    return TokenBatch(torch.cat([b.tokens for b in batches], 1), torch.cat([b.targets for b in batches], 1))


@each
def test_a_stream_does_not_depend_on_segments_batch_and_length(name: str) -> None:
    streams = [StreamId(0, 0), StreamId(0, 1), StreamId(7, 1)]
    at_once = read(name, streams, 2 * BLOCK + 10, 10**6)
    assert at_once.tokens.shape == (3, 2 * BLOCK + 10)
    in_segments = read(name, streams[::-1], 2 * BLOCK + 3, 100)
    assert in_segments.tokens.flip(0).equal(at_once.tokens[:, :-7])
    assert in_segments.targets.flip(0).equal(at_once.targets[:, :-7])
    assert len({tuple(stream) for stream in at_once.tokens.tolist()}) == 3


@each
def test_streams_never_repeat(name: str) -> None:
    """No 64 consecutive tokens occur twice, within a block, across blocks or in another stream."""
    streams = [StreamId(0, 0), StreamId(0, 1), StreamId(1, 0)]
    tokens = [stream[1:].tolist() for stream in read(name, streams, 3 * BLOCK, 10**6).tokens]
    windows = [tuple(stream[i : i + 64]) for stream in tokens for i in range(len(stream) - 63)]
    assert len(set(windows)) == len(windows)


@each
def test_labels_equal_those_of_the_whole_stream(name: str) -> None:
    task, tokens = make(name), 2 * BLOCK + 500
    batch = read(name, [StreamId(3, 5)], tokens, 999)
    prefix = len(task.endless_stream().prefix)
    if name == "random-walk":
        cells, _ = trajectory(batch.tokens[0].tolist(), task.config.grid)
        assert batch.targets[0, 1:].tolist() == cells[1:] and batch.targets[0, 0] == IGNORE_INDEX
        return
    labels, _ = task.train.labels(batch.tokens[:, prefix:].numpy(), None)
    scored = batch.targets[0] != IGNORE_INDEX
    assert scored.sum() == (tokens // 2 if name == "modular-arithmetic" else tokens)
    assert batch.targets[0][scored].tolist() == labels[0][scored.numpy()].tolist()


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1000, 4096])
def test_splitting_long_words_does_not_change_products(length: int) -> None:
    episodes, generator = make("group-words").train, np.random.default_rng(0)
    tokens, first = generator.integers(0, 8, (3, length)), generator.integers(0, 120, (3, 1))
    labels, last = episodes.labels(tokens, first)
    carry = first
    for t in range(length):
        label, carry = episodes.labels(tokens[:, t : t + 1], carry)
        assert (label[:, 0] == labels[:, t]).all()
    assert (carry == last).all()


def test_with_labels_at_the_end_positions_before_the_minimum_length_are_not_scored() -> None:
    task = make("cycle-navigation", label="last", min_length=3)
    batch = next(endless_batches(task.endless_stream(), [StreamId(0, 0)], 10, 10))
    assert (batch.targets[0] != IGNORE_INDEX).tolist() == [False, False, *[True] * 8]


def test_tasks_without_endless_streams_raise_an_error() -> None:
    generated = [name for name, (_, _, _) in TASKS.items() if hasattr(task_type(name)[1], "endless_stream")]
    for name in generated:
        if name in ENDLESS_TASKS:
            make(name).endless_stream()
            continue
        with pytest.raises(UserError, match=r"this task has no endless streams; .* parity, s5"):
            make(name).endless_stream()
    with pytest.raises(UserError, match=r"has no =, .* train a model with --task.label every"):
        make("modular-arithmetic", label="last").endless_stream()
