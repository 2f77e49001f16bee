"""What every environment promises: the rules row by row, rows that depend on nothing else, states that can be saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stairwell.rl import ENVIRONMENTS, Batched, make
from stairwell.rl.environments.batched import below
from tests.rl.slow import Numbers, Slow, SlowCorridor, SlowMaze, SlowWaterMaze

CORRIDOR: dict[str, Any] = {"length": 5, "colors": 2, "shuffled": False, "limit": 24, "penalty": 0.0}
MANY: dict[str, Any] = {"length": 2, "colors": 4, "shuffled": True, "limit": 9, "penalty": 0.5}
T_MAZE: dict[str, Any] = {**CORRIDOR, "limit": 6, "penalty": 1.0}
# Name, options, the slow one, its options.
CASES: dict[str, tuple[str, dict[str, Any], type[Slow], dict[str, Any]]] = {
    "corridor": ("Corridor", {"length": 5}, SlowCorridor, CORRIDOR),
    "many doors": ("Corridor", MANY, SlowCorridor, MANY),
    "t-maze": ("PassiveTMaze", {"length": 5}, SlowCorridor, T_MAZE),
    "maze": ("MazeNavigation", {}, SlowMaze, {"side": 9, "targets": 8, "limit": 200, "easy": False}),
    "small maze": (
        "MazeNavigation", {"side": 5, "targets": 3, "steps": 30},
        SlowMaze, {"side": 5, "targets": 3, "limit": 30, "easy": False},
    ),
    "easy maze": ("MazeNavigationEasy", {}, SlowMaze, {"side": 9, "targets": 8, "limit": 200, "easy": True}),
    "smallest maze": (
        "MazeNavigationEasy", {"side": 3, "targets": 2, "steps": 20},
        SlowMaze, {"side": 3, "targets": 2, "limit": 20, "easy": True},
    ),
    "water maze": ("WaterMaze", {}, SlowWaterMaze, {"side": 15, "limit": 200}),
    "puddle": ("WaterMaze", {"side": 3, "steps": 25}, SlowWaterMaze, {"side": 3, "limit": 25}),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES)


def build(case: str, rows: range, seed: int = 7) -> Batched:
    name, options, _, _ = CASES[case]
    return make(f"stairwell/{name}-v0", rows, seed, **options)


def actions_of(environment: Batched, steps: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Like random ones, but half of them the first action, so that corridors are walked to their end."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, environment.action_space.n, (steps, environment.B))
    return np.where(rng.random(actions.shape) < 0.5, actions, 0)


def play(environment: Batched, actions: np.ndarray[Any, Any]) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """What is seen and said at each step, the beginnings of new episodes included."""
    said = []
    for action in actions:
        step = environment.step(action)
        said.append((*step, environment.reset(step.terminated | step.truncated)))
    return said


def same(one: Any, other: Any, rows: slice = slice(None)) -> bool:
    return all(np.array_equal(a[rows], b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right))


@every_case
def test_every_row_follows_the_rules(case: str) -> None:
    _, _, slow, options = CASES[case]
    rows, seed = range(3, 8), 11
    environment = build(case, rows, seed)
    references = [slow(seed, row, **options) for row in rows]
    assert environment.reset().tolist() == [reference.reset() for reference in references]
    rewards, ends = 0.0, 0
    for action in actions_of(environment, 450):
        seen, reward, terminated, truncated = environment.step(action)
        expected = [reference.step(int(a)) for reference, a in zip(references, action)]
        assert seen.tolist() == [moment[0] for moment in expected]
        assert reward == pytest.approx([moment[1] for moment in expected])
        assert terminated.tolist() == [moment[2] for moment in expected]
        assert truncated.tolist() == [moment[3] for moment in expected]
        over = terminated | truncated
        begun = environment.reset(over)
        for row in np.flatnonzero(over):
            assert begun[row].tolist() == references[row].reset()
        rewards, ends = rewards + abs(reward).sum(), ends + over.sum()
    assert rewards > 0 and ends >= 10  # otherwise little was compared


@every_case
def test_observations_lie_in_their_space(case: str) -> None:
    environment = build(case, range(50))
    sizes = np.array(environment.observation_space.sizes)
    seen = [environment.reset(), *(moment[0] for moment in play(environment, actions_of(environment, 100)))]
    for observations in seen:
        assert observations.dtype == np.int64 and observations.shape == (50, len(sizes))
        assert (observations >= 0).all() and (observations < sizes).all()


@every_case
def test_a_row_does_not_depend_on_the_other_rows(case: str) -> None:
    whole, part = build(case, range(9)), build(case, range(4, 6))
    actions = actions_of(whole, 250)
    assert np.array_equal(whole.reset()[4:6], part.reset())
    assert same(play(whole, actions), play(part, actions[:, 4:6]), slice(4, 6))


@every_case
def test_episodes_are_the_same_whenever_they_begin(case: str) -> None:
    """Beginnings are made in advance. Here they never are, because each row is alone."""
    together = build(case, range(4))
    together.reset()
    for steps in range(1, 40):
        mask = np.array([steps % 2 == 0, steps % 3 == 0, True, steps == 20])
        seen = together.reset(mask)
    for row in range(4):
        alone = build(case, range(row, row + 1))
        for _ in range(together.episode[row] + 1):
            begun = alone.reset()
        assert np.array_equal(seen[row], begun[0])
        assert all(
            np.array_equal(alone.position()[name][0], together.position()[name][row]) for name in together.arrays
        )


@every_case
def test_seeds_rows_and_episodes_differ(case: str) -> None:
    environment, other = build(case, range(64), seed=1), build(case, range(64), seed=2)

    def beginning(rows: Any = slice(None), environment: Batched = environment) -> str:
        state = environment.position()
        return str([state[name][rows].tolist() for name in environment.arrays if name not in Batched.arrays])

    environment.reset()
    other.reset()
    first = beginning()
    assert first != beginning(environment=other)
    assert beginning([0] * 64) != first
    environment.reset()
    assert beginning() != first


@every_case
def test_a_saved_state_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    environment = build(case, range(6))
    environment.reset()
    actions = actions_of(environment, 300)
    play(environment, actions[:117])
    position = environment.position()
    save_file(position, tmp_path / "position.safetensors")
    as_json = json.dumps({name: array.tolist() for name, array in position.items()})
    expected, end = play(environment, actions[117:]), environment.position()

    restored = load_file(tmp_path / "position.safetensors")
    listed = {name: np.array(numbers, dtype=position[name].dtype) for name, numbers in json.loads(as_json).items()}
    used = build(case, range(6), seed=99)
    used.reset()
    for later, at in ((environment, position), (build(case, range(6), seed=3), restored), (used, listed)):
        later.seek(at)
        assert same(play(later, actions[117:]), expected)
        assert all(np.array_equal(later.position()[name], end[name]) for name in end)


@every_case
def test_what_was_made_in_advance_is_forgotten_when_a_state_is_restored(case: str) -> None:
    first = np.arange(20) == 0
    one, other = build(case, range(20), seed=1), build(case, range(20), seed=2)
    for environment in (one, other):
        environment.reset()
        environment.reset(first)  # makes the second episode of all the others too
    other.seek(one.position())
    one.reset()
    other.reset()
    assert all(np.array_equal(one.position()[name], other.position()[name]) for name in one.arrays)


def test_beginnings_are_made_for_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = build("maze", range(40))
    made = []
    beginning = environment.beginning
    monkeypatch.setattr(environment, "beginning", lambda numbers: made.append(len(numbers)) or beginning(numbers))
    environment.reset()
    for _ in range(3):
        for row in range(40):
            environment.reset(np.arange(40) == row)
    # Never one by one: with the first row that needs its next episode, all the others' are made.
    assert made == [40, 40, 40, 40]


@every_case
def test_arrays_are_not_shared_with_the_caller(case: str) -> None:
    """What was given out may be kept, and written over, without harm to either side."""
    environment, untouched = build(case, range(5)), build(case, range(5))
    given: list[Any] = [environment.reset(), *environment.position().values()]
    untouched.reset()
    actions = actions_of(environment, 60)
    kept = [array.copy() for array in given]
    for action in actions:
        step = environment.step(action.copy())
        given += [*step, environment.reset(step.terminated | step.truncated)]
        kept += [array.copy() for array in given[-5:]]
    assert all(np.array_equal(array, copy) for array, copy in zip(given, kept))
    environment.seek(position := environment.position())
    for array in (*given, *position.values()):
        array[...] = 0
    play(untouched, actions)
    further = actions_of(environment, 60, seed=1)
    assert same(play(environment, further), play(untouched, further))


@every_case
def test_a_picture_changes_when_the_row_does_and_only_then(case: str) -> None:
    environment = build(case, range(4))
    environment.reset()
    parts = [name for name in environment.arrays if name not in Batched.arrays]
    pictures: dict[str, bytes] = {}
    for action in actions_of(environment, 12):
        for row in range(4):
            picture = environment.render(row)
            assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
            state = str([getattr(environment, name)[row].tolist() for name in parts])
            assert pictures.setdefault(state, picture.tobytes()) == picture.tobytes()
        step = environment.step(action)
        environment.reset(step.terminated | step.truncated)
    assert len(set(pictures.values())) == len(pictures) > 4


def test_random_numbers_are_those_of_a_slow_generator() -> None:
    environment = make("stairwell/WaterMaze-v0", range(2, 5), 2**64 - 1, side=2)
    environment.reset()
    environment.reset(np.array([False, True, False]))
    slow = [Numbers(2**64 - 1, row, episode) for row, episode in ((2, 0), (3, 1), (4, 0))]
    drawn = np.concatenate([environment.random(np.arange(3), count) for count in (3, 1)], axis=1)
    for numbers, row in zip(slow, drawn):
        for _ in range(environment.numbers_to_begin):
            numbers.next()
        assert [numbers.next() for _ in range(4)] == row.tolist()


def test_random_numbers_are_even_and_do_not_repeat() -> None:
    environment = make("stairwell/Corridor-v0", range(64), 0)
    drawn = []
    for _ in range(50):
        environment.reset()
        drawn.append(environment.random(np.arange(64), 50))
    numbers = np.stack(drawn)  # (episodes, rows, numbers)
    assert len(np.unique(numbers)) == numbers.size
    for size in (2, 7, 225):
        counts = np.bincount(below(numbers.ravel(), size), minlength=size)
        expected = numbers.size / size
        # Chi-squared: its mean is size - 1, its deviation sqrt(2 (size - 1)).
        assert ((counts - expected) ** 2 / expected).sum() < size + 6 * (2 * size) ** 0.5
    unit = numbers / 2.0**64 - 0.5
    for axis in range(3):
        along = np.moveaxis(unit, axis, 0)
        assert abs((along[1:] * along[:-1]).mean()) * 12 < 5 / numbers.size**0.5


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_mistakes_are_told(name: str) -> None:
    environment = make(name, range(3), 0)
    actions = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match=r"rows whose episode is over \(0, 1, 2"):
        environment.step(actions)
    environment.reset()
    for wrong, told in (
        (actions[:2], r"shape \(2,\); they must be whole, \(3,\)"),
        (actions.astype(np.float32), "actions of float32"),
        (actions - 1, "from -1 to -1; they must be from 0 to"),
        (actions + 9, "from 9 to 9"),
    ):
        with pytest.raises(ValueError, match=told):
            environment.step(wrong)
    with pytest.raises(ValueError, match=r"a mask of int64 in shape \(3,\); it must be bool"):
        environment.reset(actions)
    position = environment.position()
    with pytest.raises(ValueError, match="this environment has int64 in shape"):
        make(name, range(4), 0).seek(position)
    with pytest.raises(ValueError, match="a position of"):
        environment.seek({**position, "extra": actions})
    with pytest.raises(ValueError, match="has no option 'sied'; it has: "):
        make(name, range(1), 0, sied=3)
    with pytest.raises(ValueError, match="seed -1; a seed must be"):
        make(name, range(1), -1)
    with pytest.raises(ValueError, match="there must be some"):
        make(name, range(0), 0)


@pytest.mark.parametrize(
    "name, options, told",
    [
        ("Corridor", {"length": 0}, "length is 0; it must be at least 1"),
        ("Corridor", {"colors": 1}, "colors is 1; it must be at least 2"),
        ("Corridor", {"colors": 13}, "colors is 13; there are 12"),
        ("PassiveTMaze", {"length": 0}, "length is 0"),
        ("MazeNavigation", {"side": 8}, "side is 8; it must be odd"),
        ("MazeNavigation", {"side": 3, "targets": 7}, "targets is 7; a maze of side 3 has room for 6"),
        ("MazeNavigationEasy", {"targets": 1}, "targets is 1; it must be at least 2"),
        ("WaterMaze", {"steps": 0}, "steps is 0"),
        ("WaterMaze", {"side": 1}, "side is 1"),
    ],
)
def test_sizes_that_cannot_be_are_told(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make(f"stairwell/{name}-v0", range(1), 0, **options)


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(ValueError, match="did you mean 'stairwell/WaterMaze-v0'"):
        make("WaterMaze", range(1), 0)
