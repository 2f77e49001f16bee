"""The corridor worked through by hand."""

from __future__ import annotations

import numpy as np

from stairwell.rl.environments.corridor import Config, Corridor, PassiveTMaze, TMazeConfig

WALK, FIRST, SECOND = 0, 1, 2
BLUE, GREEN = 0, 1


def corridor(*colors: int, **options: int) -> Corridor:
    """Rows that begin before objects of these colors, 2 steps from the doors."""
    environment = Corridor(Config(length=2, **options), range(len(colors)), seed=0)
    environment.reset()
    environment.color[:] = colors
    return environment


def step(environment: Corridor, *actions: int) -> tuple[list[list[int]], list[float], list[bool], list[bool]]:
    seen, rewards, terminated, truncated = environment.step(np.array(actions))
    return seen.tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist()


def test_the_right_door_is_the_one_of_the_objects_color() -> None:
    environment = corridor(BLUE, BLUE, GREEN, GREEN)
    assert environment.observe().tolist() == [[1, 0, 0], [1, 0, 0], [2, 0, 0], [2, 0, 0]]
    assert step(environment, *[WALK] * 4) == ([[0, 0, 0]] * 4, [0.0] * 4, [False] * 4, [False] * 4)
    assert step(environment, *[WALK] * 4) == ([[0, 1, 2]] * 4, [0.0] * 4, [False] * 4, [False] * 4)
    _, rewards, terminated, truncated = step(environment, FIRST, SECOND, FIRST, SECOND)
    assert (rewards, terminated, truncated) == ([1.0, 0.0, 0.0, 1.0], [True] * 4, [False] * 4)


def test_doors_are_out_of_reach_in_the_hallway_and_there_is_no_way_past_them() -> None:
    environment = corridor(BLUE, GREEN)
    assert step(environment, FIRST, SECOND) == ([[1, 0, 0], [2, 0, 0]], [0.0] * 2, [False] * 2, [False] * 2)
    for _ in range(4):
        seen, rewards, terminated, _ = step(environment, WALK, WALK)
        assert rewards == [0.0] * 2 and terminated == [False] * 2
    assert seen == [[0, 1, 2]] * 2


def test_doors_that_change_places_are_told_by_their_color() -> None:
    environment = corridor(BLUE, BLUE, shuffled=True)
    environment.doors[:] = [[0, 1], [1, 0]]
    step(environment, WALK, WALK)
    assert step(environment, WALK, WALK)[0] == [[0, 1, 2], [0, 2, 1]]
    assert step(environment, FIRST, FIRST)[1] == [1.0, 0.0]


def test_every_arrangement_and_color_turns_up_evenly() -> None:
    environment = Corridor(Config(colors=3, shuffled=True), range(6000), seed=0)
    environment.reset()
    found, counts = np.unique(np.c_[environment.color, environment.doors], axis=0, return_counts=True)
    assert len(found) == 18 and counts.min() > 250
    assert (np.sort(environment.doors) == np.arange(3)).all()


def test_an_agent_that_never_arrives_is_cut_short() -> None:
    environment = corridor(BLUE, limit=3)
    ends = [step(environment, SECOND)[2:] for _ in range(3)]
    assert ends == [([False], [False]), ([False], [False]), ([False], [True])]


def test_the_last_step_through_a_door_is_no_cut() -> None:
    environment = corridor(BLUE, limit=3)
    for _ in range(2):
        step(environment, WALK)
    assert step(environment, FIRST)[1:] == ([1.0], [True], [False])


def test_the_t_maze_takes_from_those_who_fall_behind() -> None:
    """Length 4. The first only walks: 1 in all. The second loses a step and is behind at the steps 1 to 4, a quarter
    each, and the clock stops it at the junction. The third never walks."""
    environment = PassiveTMaze(TMazeConfig(length=4), range(3), seed=0)
    environment.reset()
    environment.color[:] = GREEN
    rewards = [step(environment, *actions) for actions in ((WALK, FIRST, FIRST), *[(WALK, WALK, FIRST)] * 3)]
    assert [moment[1] for moment in rewards] == [[0.0, -0.25, -0.25]] * 4
    _, reward, terminated, truncated = step(environment, SECOND, WALK, FIRST)
    assert (reward, terminated, truncated) == ([1.0, 0.0, 0.0], [True, False, False], [False, True, True])
