"""Episodes by which an agent is judged: those of each split are its own, and actions are drawn as in training."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from stairwell.rl.episodes import moments, split_seed
from tests.rl.test_rollouts import experiment


def test_every_split_of_every_seed_has_episodes_of_its_own() -> None:
    made = experiment(task__env="maze-navigation", task__length=None, task__side=3, task__targets=2, task__steps=9)
    task = made.make_tasks()[0]
    agent = made.make_model(task)
    opened: dict[tuple[int, str], int] = {}
    for seed in range(3):
        opened[seed, "train"] = task.batch_source(agent, made.train)(range(4), 4, seed).seed
        returns = task.returns(seed, rows=4)
        real = returns.open_rows
        for split in ("valid", "test"):

            def open_rows(count: int, own: int, key: Any = (seed, split), real: Any = real) -> Any:
                opened[key] = own
                return real(count, own)

            returns.open_rows = open_rows
            returns(agent, split)
    assert opened == {(seed, split): split_seed(seed, split) for seed, split in opened}
    assert len(opened) == 9 and len(set(opened.values())) == 9


def test_actions_are_drawn_as_in_training_or_the_likeliest_ones() -> None:
    made = experiment()
    task = made.make_tasks()[0]
    agent = made.make_model(task).eval()
    drawn, likeliest = (
        list(itertools.islice(moments(agent, task.open(range(2), 5), 5, likeliest=asked), 30))
        for asked in (False, True)
    )
    # The agent is new: it chooses among all actions about evenly.
    actions = torch.stack([moment.action for moment in drawn])
    counts = torch.bincount(actions.flatten(), minlength=3)
    assert (counts > 8).all() and len(counts) == 3
    assert all(moment.action.equal(moment.said.policy.argmax(-1, keepdim=True)) for moment in likeliest)
    # The same actions as in training, of the same seed.
    fed = task.batch_source(agent, made.train)(range(2), 2, 0)
    seed = split_seed(0, "train")
    played = list(itertools.islice(moments(agent, task.open(range(2), seed), seed), 6))
    assert torch.stack([moment.action for moment in played], 1).equal(fed.play(6).action)
