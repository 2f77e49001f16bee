"""Evaluation: each split has its own episodes, and actions are sampled as in training."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from stairwell.rl.evaluation import Episode, EpisodeStats, iterate_transitions, split_seed
from tests.rl.small_runs import run_config


def test_every_split_of_every_seed_has_its_own_episodes() -> None:
    config = run_config(
        task__env="maze-navigation", task__length=None, task__side=3, task__targets=2, task__max_steps=9
    )
    task = config.make_tasks()[0]
    agent = config.make_model(task)
    seeds: dict[tuple[int, str], int] = {}
    for seed in range(3):
        seeds[seed, "train"] = task.batch_source(agent, config.train)(range(4), 4, seed).seed
        validation = task.validation(seed, num_envs=4)
        original = validation.make_env
        for split in ("valid", "test"):

            def make_env(count: int, env_seed: int, key: Any = (seed, split), original: Any = original) -> Any:
                seeds[key] = env_seed
                return original(count, env_seed)

            validation.make_env = make_env
            validation(agent, split)
    assert seeds == {(seed, split): split_seed(seed, split) for seed, split in seeds}
    assert len(seeds) == 9 and len(set(seeds.values())) == 9


def test_actions_are_sampled_as_in_training_or_the_mode() -> None:
    config = run_config()
    task = config.make_tasks()[0]
    agent = config.make_model(task).eval()
    sampled, deterministic = (
        list(itertools.islice(iterate_transitions(agent, task.make_env(range(2), 5), 5, deterministic=choice), 30))
        for choice in (False, True)
    )
    # A new agent has a nearly uniform policy.
    counts = torch.bincount(torch.stack([transition.action for transition in sampled]).flatten(), minlength=3)
    assert (counts > 8).all() and len(counts) == 3
    for transition in deterministic:
        assert transition.action.equal(transition.output.policy.argmax(-1, keepdim=True))
    source = task.batch_source(agent, config.train)(range(2), 2, 0)
    seed = split_seed(0, "train")
    transitions = list(itertools.islice(iterate_transitions(agent, task.make_env(range(2), seed), seed), 6))
    assert torch.stack([transition.action for transition in transitions], 1).equal(source.collect(6).action)


def episode(*rewards: float) -> Episode:
    episode = Episode()
    for reward in rewards:
        episode.add(reward, ignored=False)
    return episode


@pytest.mark.parametrize(
    ("episodes", "success"),
    [
        ([(0, 0, 1), (0,), (0, -1), (0, 0.5)], 0.5),  # a reward at the end, as in Corridor
        ([(-0.1, -0.1, 1), (-0.1, 0), (-0.1,), (1,)], 0.5),  # and a penalty per step, as in a T-maze
        ([(0, 0), (0, 0, 0)], 0.0),  # no success
        ([(1, 1, 1), (1,)], None),  # a reward per step, as in CartPole
        ([(0, 1, 0, 0), (0, 0)], None),  # rewards before the end, as in a maze
        ([(-1, -1), (-1, -16)], None),  # penalties only, as in Pendulum
    ],
)
def test_success_is_omitted_where_rewards_do_not_indicate_it(episodes: list[Any], success: float | None) -> None:
    scores = EpisodeStats([episode(*rewards) for rewards in episodes]).scores()
    assert scores.get("success") == success
    assert scores["return"] == pytest.approx(sum(map(sum, episodes)) / len(episodes))
    assert scores["length"] == pytest.approx(sum(map(len, episodes)) / len(episodes))
