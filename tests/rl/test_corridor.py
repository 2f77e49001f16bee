"""Corridor and passive T-maze, checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stairwell.rl.environments.corridor import Corridor, CorridorConfig, PassiveTMaze, TMazeConfig

pytestmark = pytest.mark.quick

WALK, FIRST, SECOND = 0, 1, 2
BLUE, GREEN = 0, 1


def corridor(*colors: int, **options: int) -> Corridor:
    """Return one env per color of the object, at the start, 2 steps from the doors."""
    env = Corridor(CorridorConfig(length=2, **options), range(len(colors)), seed=0)
    env.reset()
    env.color[:] = colors
    return env


def step(env: Corridor, *actions: int) -> tuple[list[list[int]], list[float], list[bool], list[bool]]:
    seen, rewards, terminated, truncated = env.step(np.array(actions))
    return seen.tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist()


def test_the_door_of_the_objects_color_gives_the_reward() -> None:
    env = corridor(BLUE, BLUE, GREEN, GREEN)
    assert env.observe().tolist() == [[1, 0, 0], [1, 0, 0], [2, 0, 0], [2, 0, 0]]
    assert step(env, *[WALK] * 4) == ([[0, 0, 0]] * 4, [0.0] * 4, [False] * 4, [False] * 4)
    assert step(env, *[WALK] * 4) == ([[0, 1, 2]] * 4, [0.0] * 4, [False] * 4, [False] * 4)
    _, rewards, terminated, truncated = step(env, FIRST, SECOND, FIRST, SECOND)
    assert (rewards, terminated, truncated) == ([1.0, 0.0, 0.0, 1.0], [True] * 4, [False] * 4)


def test_doors_can_be_taken_only_at_the_end() -> None:
    env = corridor(BLUE, GREEN)
    assert step(env, FIRST, SECOND) == ([[1, 0, 0], [2, 0, 0]], [0.0] * 2, [False] * 2, [False] * 2)
    for _ in range(4):
        seen, rewards, terminated, _ = step(env, WALK, WALK)
        assert rewards == [0.0] * 2 and terminated == [False] * 2
    assert seen == [[0, 1, 2]] * 2


def test_shuffled_doors_are_observed_in_their_order() -> None:
    env = corridor(BLUE, BLUE, shuffled=True)
    env.doors[:] = [[0, 1], [1, 0]]
    step(env, WALK, WALK)
    assert step(env, WALK, WALK)[0] == [[0, 1, 2], [0, 2, 1]]
    assert step(env, FIRST, FIRST)[1] == [1.0, 0.0]


def test_colors_and_door_orders_are_uniform() -> None:
    env = Corridor(CorridorConfig(colors=3, shuffled=True), range(6000), seed=0)
    env.reset()
    combinations, counts = np.unique(np.c_[env.color, env.doors], axis=0, return_counts=True)
    assert len(combinations) == 18 and counts.min() > 250
    assert (np.sort(env.doors) == np.arange(3)).all()


def test_an_episode_is_truncated_after_max_steps() -> None:
    env = corridor(BLUE, max_steps=3)
    ends = [step(env, SECOND)[2:] for _ in range(3)]
    assert ends == [([False], [False]), ([False], [False]), ([False], [True])]


def test_taking_a_door_in_the_last_step_terminates() -> None:
    env = corridor(BLUE, max_steps=3)
    for _ in range(2):
        step(env, WALK)
    assert step(env, FIRST)[1:] == ([1.0], [True], [False])


def test_the_t_maze_penalizes_agents_that_fall_behind() -> None:
    """Length 4. The first agent always walks: return 1. The second wastes one step: it is behind in steps 1 to 4, with
    a penalty of 1/4 each, and is truncated at the junction. The third never walks."""
    env = PassiveTMaze(TMazeConfig(length=4), range(3), seed=0)
    env.reset()
    env.color[:] = GREEN
    steps = [step(env, *actions) for actions in ((WALK, FIRST, FIRST), *[(WALK, WALK, FIRST)] * 3)]
    assert [rewards for _, rewards, _, _ in steps] == [[0.0, -0.25, -0.25]] * 4
    _, reward, terminated, truncated = step(env, SECOND, WALK, FIRST)
    assert (reward, terminated, truncated) == ([1.0, 0.0, 0.0], [True, False, False], [False, True, True])
