"""The labels of the random walk, compared with an independent implementation."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from stairwell.tasks.base import TokenBatch
from stairwell.tasks.random_walk import (
    ACTIONS,
    FORWARD,
    HEADINGS,
    LEFT,
    RIGHT,
    RandomWalk,
    RandomWalkConfig,
    trajectory,
)


def walk(words: list[str], grid: int) -> tuple[list[int], list[str]]:
    """Return the cells and headings of an agent in the complex plane, with north up."""
    names = {1: "east", 1j: "north", -1: "west", -1j: "south"}
    cells, headings = [], []
    position, heading = complex(0), complex(1)
    for word in words:
        match word:
            case "reset":
                position, heading = complex(0), complex(1)
            case "left":
                heading *= 1j
            case "right":
                heading /= 1j
            case "forward":
                ahead = position + heading
                if 0 <= ahead.real < grid and -grid < ahead.imag <= 0:
                    position = ahead
        cells.append(int(-position.imag) * grid + int(position.real))
        headings.append(names[heading])
    return cells, headings


@pytest.mark.parametrize("length, grid", [(100, 8), (400, 8), (30, 2), (50, 5)])
def test_every_label_is_the_cell_after_the_action(length: int, grid: int) -> None:
    task = RandomWalk(RandomWalkConfig(length=length, grid=grid, test_episodes=6))
    batches = [task.batch_source(range(8), 8, 1).read(6 * (length + 1)), *task.batches("test", 1, 10_000)]
    assert task.inputs == 4 and task.outputs == grid * grid
    for batch in batches:
        assert batch.start is None
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist()):
            words = [ACTIONS[token] for token in tokens]
            assert [t for t, word in enumerate(words) if word == "reset"] == list(range(0, len(words), length + 1))
            assert targets == walk(words, grid)[0]


def test_an_example_walk() -> None:
    tokens = [3, 0, 0, 2, 0, 1, 1, 1, 0, 3, 1, 0]
    cells, headings = trajectory(tokens)
    assert cells == [0, 1, 2, 2, 10, 10, 10, 10, 9, 0, 0, 0]
    assert "".join(HEADINGS[heading][0] for heading in headings) == "eeessenwwenn"


def test_a_trajectory_has_the_cells_and_headings_of_a_walk() -> None:
    task = RandomWalk(RandomWalkConfig(length=60, grid=3))
    batch = task.batch_source(range(1), 1, 0).read(500)
    cells, headings = trajectory(batch.tokens[0].tolist(), grid=3)
    expected = walk([ACTIONS[token] for token in batch.tokens[0].tolist()], 3)
    assert (cells, [HEADINGS[heading] for heading in headings]) == expected
    assert cells == batch.targets[0].tolist()


def test_actions_are_uniform() -> None:
    counts = Counter(RandomWalk(RandomWalkConfig()).batch_source(range(64), 64, 0).read(505).tokens.flatten().tolist())
    assert counts[3] == 64 * 5
    assert all(abs(counts[action] / 32_000 - 1 / 3) < 0.01 for action in range(3))


def test_only_actions_are_scored() -> None:
    task = RandomWalk(RandomWalkConfig(length=9, valid_episodes=4))
    score = task.score()
    for batch in task.batches("valid", 3, 7):
        predictions = torch.where(batch.tokens == 3, -1, batch.targets)  # wrong at resets, correct at actions
        score.add(batch, torch.where(batch.tokens == 3, 100.0, 1.0), predictions)
    assert score.result() == {"loss": 1.0, "scored": 36, "accuracy": 100.0, "error": 0.0}


def test_a_curriculum_may_start_with_shorter_walks() -> None:
    stream = RandomWalk(RandomWalkConfig()).batch_source(range(2), 2, 0)
    stream.read(150)
    stream.change(length=4)
    batch: TokenBatch = stream.read(15)
    assert (batch.tokens == 3).int().tolist() == [[1, 0, 0, 0, 0] * 3] * 2


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="length is 0; it must be at least 1"):
        RandomWalk(RandomWalkConfig(length=0))
    with pytest.raises(ValueError, match="grid is 1; it must be at least 2"):
        RandomWalk(RandomWalkConfig(grid=1))


def test_a_walk_starts_in_the_first_cell_facing_east() -> None:
    assert trajectory([FORWARD, LEFT, RIGHT, RIGHT, FORWARD], grid=8) == ([1, 1, 1, 1, 9], [0, 1, 0, 3, 3])
