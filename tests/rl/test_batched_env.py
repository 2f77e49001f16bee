"""Batched environments: they equal the reference, are independent of each other, and can be saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stairwell.rl import ENVIRONMENTS, BatchedEnv, make
from stairwell.rl.environments.batched_env import random_integers
from tests.rl.reference_environments import (
    RandomNumbers,
    ReferenceCorridor,
    ReferenceEnv,
    ReferenceMaze,
    ReferenceWaterMaze,
)

CORRIDOR: dict[str, Any] = {"length": 5, "colors": 2, "shuffled": False, "max_steps": 24, "penalty": 0.0}
MANY_DOORS: dict[str, Any] = {"length": 2, "colors": 4, "shuffled": True, "max_steps": 9, "penalty": 0.5}
T_MAZE: dict[str, Any] = {**CORRIDOR, "max_steps": 6, "penalty": 1.0}
# Name, options, reference, options of the reference.
CASES: dict[str, tuple[str, dict[str, Any], type[ReferenceEnv], dict[str, Any]]] = {
    "corridor": ("Corridor", {"length": 5}, ReferenceCorridor, CORRIDOR),
    "many doors": ("Corridor", MANY_DOORS, ReferenceCorridor, MANY_DOORS),
    "t-maze": ("PassiveTMaze", {"length": 5}, ReferenceCorridor, T_MAZE),
    "maze": ("MazeNavigation", {}, ReferenceMaze, {"side": 9, "targets": 8, "max_steps": 200, "easy": False}),
    "small maze": (
        "MazeNavigation", {"side": 5, "targets": 3, "max_steps": 30},
        ReferenceMaze, {"side": 5, "targets": 3, "max_steps": 30, "easy": False},
    ),
    "easy maze": ("MazeNavigationEasy", {}, ReferenceMaze, {"side": 9, "targets": 8, "max_steps": 200, "easy": True}),
    "smallest maze": (
        "MazeNavigationEasy", {"side": 3, "targets": 2, "max_steps": 20},
        ReferenceMaze, {"side": 3, "targets": 2, "max_steps": 20, "easy": True},
    ),
    "water maze": ("WaterMaze", {}, ReferenceWaterMaze, {"side": 15, "max_steps": 200}),
    "small water maze": ("WaterMaze", {"side": 3, "max_steps": 25}, ReferenceWaterMaze, {"side": 3, "max_steps": 25}),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES)


def make_case(case: str, indices: range, seed: int = 7) -> BatchedEnv:
    name, options, _, _ = CASES[case]
    return make(f"stairwell/{name}-v0", indices, seed, **options)


def random_actions(env: BatchedEnv, steps: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random actions, half of them action 0, so that agents reach the end of a corridor."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, env.action_space.n, (steps, env.num_envs))
    return np.where(rng.random(actions.shape) < 0.5, actions, 0)


def run(env: BatchedEnv, actions: np.ndarray[Any, Any]) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Return the results of all steps, each with the observations after the reset."""
    results = []
    for action in actions:
        step = env.step(action)
        results.append((*step, env.reset(step.terminated | step.truncated)))
    return results


def equal(one: Any, other: Any, envs: slice = slice(None)) -> bool:
    return all(np.array_equal(a[envs], b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right))


@every_case
def test_every_environment_equals_its_reference(case: str) -> None:
    _, _, reference, options = CASES[case]
    indices, seed = range(3, 8), 11
    env = make_case(case, indices, seed)
    references = [reference(seed, index, **options) for index in indices]
    assert env.reset().tolist() == [reference.reset() for reference in references]
    total_reward, episodes = 0.0, 0
    for action in random_actions(env, 450):
        observations, reward, terminated, truncated = env.step(action)
        expected = [reference.step(int(a)) for reference, a in zip(references, action)]
        assert observations.tolist() == [step[0] for step in expected]
        assert reward == pytest.approx([step[1] for step in expected])
        assert terminated.tolist() == [step[2] for step in expected]
        assert truncated.tolist() == [step[3] for step in expected]
        done = terminated | truncated
        first = env.reset(done)
        for i in np.flatnonzero(done):
            assert first[i].tolist() == references[i].reset()
        total_reward, episodes = total_reward + abs(reward).sum(), episodes + done.sum()
    assert total_reward > 0 and episodes >= 10  # otherwise the test compares little


@every_case
def test_observations_are_in_the_space(case: str) -> None:
    env = make_case(case, range(50))
    nvec = np.array(env.observation_space.nvec)
    for observations in [env.reset(), *(step[0] for step in run(env, random_actions(env, 100)))]:
        assert observations.dtype == np.int64 and observations.shape == (50, len(nvec))
        assert (observations >= 0).all() and (observations < nvec).all()


@every_case
def test_an_environment_does_not_depend_on_the_others(case: str) -> None:
    whole, part = make_case(case, range(9)), make_case(case, range(4, 6))
    actions = random_actions(whole, 250)
    assert np.array_equal(whole.reset()[4:6], part.reset())
    assert equal(run(whole, actions), run(part, actions[:, 4:6]), slice(4, 6))


@every_case
def test_an_episode_does_not_depend_on_when_it_starts(case: str) -> None:
    """Initial states are precomputed for all environments. A single environment never precomputes."""
    together = make_case(case, range(4))
    together.reset()
    for step in range(1, 40):
        mask = np.array([step % 2 == 0, step % 3 == 0, True, step == 20])
        observations = together.reset(mask)
    for index in range(4):
        alone = make_case(case, range(index, index + 1))
        for _ in range(together.episode[index] + 1):
            first = alone.reset()
        assert np.array_equal(observations[index], first[0])
        alone_state, state = alone.state_dict(), together.state_dict()
        assert all(np.array_equal(alone_state[name][0], state[name][index]) for name in state)


@every_case
def test_seeds_indices_and_episodes_differ(case: str) -> None:
    env, other = make_case(case, range(64), seed=1), make_case(case, range(64), seed=2)

    def initial_state(envs: Any = slice(None), env: BatchedEnv = env) -> str:
        state = env.state_dict()
        return str([state[name][envs].tolist() for name in state if name not in BatchedEnv.state_names])

    env.reset()
    other.reset()
    first = initial_state()
    assert first != initial_state(env=other)
    assert initial_state([0] * 64) != first
    env.reset()
    assert initial_state() != first


@every_case
def test_a_saved_state_continues_bit_for_bit(case: str, tmp_path: Path) -> None:
    env = make_case(case, range(6))
    env.reset()
    actions = random_actions(env, 300)
    run(env, actions[:117])
    state = env.state_dict()
    save_file(state, tmp_path / "state.safetensors")
    as_json = json.dumps({name: array.tolist() for name, array in state.items()})
    expected, end = run(env, actions[117:]), env.state_dict()

    from_file = load_file(tmp_path / "state.safetensors")
    from_json = {name: np.array(numbers, dtype=state[name].dtype) for name, numbers in json.loads(as_json).items()}
    used = make_case(case, range(6), seed=99)
    used.reset()
    for restored, saved in ((env, state), (make_case(case, range(6), seed=3), from_file), (used, from_json)):
        restored.load_state_dict(saved)
        assert equal(run(restored, actions[117:]), expected)
        assert all(np.array_equal(restored.state_dict()[name], end[name]) for name in end)


@every_case
def test_loading_a_state_discards_precomputed_initial_states(case: str) -> None:
    first = np.arange(20) == 0
    one, other = make_case(case, range(20), seed=1), make_case(case, range(20), seed=2)
    for env in (one, other):
        env.reset()
        env.reset(first)  # precomputes the second episode of all others
    other.load_state_dict(one.state_dict())
    one.reset()
    other.reset()
    assert all(np.array_equal(one.state_dict()[name], other.state_dict()[name]) for name in one.state_names)


def test_initial_states_are_computed_for_all_environments_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_case("maze", range(40))
    sizes = []
    original = env.initial_states
    monkeypatch.setattr(env, "initial_states", lambda random: sizes.append(len(random)) or original(random))
    env.reset()
    for _ in range(3):
        for i in range(40):
            env.reset(np.arange(40) == i)
    assert sizes == [40, 40, 40, 40]


@every_case
def test_arrays_are_not_shared_with_the_caller(case: str) -> None:
    """Returned arrays do not change later, and writing to them does not change the environment."""
    env, untouched = make_case(case, range(5)), make_case(case, range(5))
    returned: list[Any] = [env.reset(), *env.state_dict().values()]
    untouched.reset()
    actions = random_actions(env, 60)
    copies = [array.copy() for array in returned]
    for action in actions:
        step = env.step(action.copy())
        returned += [*step, env.reset(step.terminated | step.truncated)]
        copies += [array.copy() for array in returned[-5:]]
    assert all(np.array_equal(array, copy) for array, copy in zip(returned, copies))
    env.load_state_dict(state := env.state_dict())
    for array in (*returned, *state.values()):
        array[...] = 0
    run(untouched, actions)
    more_actions = random_actions(env, 60, seed=1)
    assert equal(run(env, more_actions), run(untouched, more_actions))


@every_case
def test_images_differ_exactly_when_states_differ(case: str) -> None:
    env = make_case(case, range(4))
    env.reset()
    names = [name for name in env.state_names if name not in BatchedEnv.state_names]
    images: dict[str, bytes] = {}
    for action in random_actions(env, 12):
        for i in range(4):
            image = env.render(i)
            assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
            state = str([getattr(env, name)[i].tolist() for name in names])
            assert images.setdefault(state, image.tobytes()) == image.tobytes()
        step = env.step(action)
        env.reset(step.terminated | step.truncated)
    assert len(set(images.values())) == len(images) > 4


def test_random_numbers_equal_the_reference() -> None:
    env = make("stairwell/WaterMaze-v0", range(2, 5), 2**64 - 1, side=2)
    env.reset()
    env.reset(np.array([False, True, False]))
    references = [RandomNumbers(2**64 - 1, index, episode) for index, episode in ((2, 0), (3, 1), (4, 0))]
    numbers = np.concatenate([env.random(np.arange(3), count) for count in (3, 1)], axis=1)
    for reference, own in zip(references, numbers):
        for _ in range(env.reset_random_count):
            reference.next()
        assert [reference.next() for _ in range(4)] == own.tolist()


def test_random_numbers_are_uniform_and_do_not_repeat() -> None:
    env = make("stairwell/Corridor-v0", range(64), 0)
    episodes = []
    for _ in range(50):
        env.reset()
        episodes.append(env.random(np.arange(64), 50))
    numbers = np.stack(episodes)  # (episodes, environments, numbers)
    assert len(np.unique(numbers)) == numbers.size
    for size in (2, 7, 225):
        counts = np.bincount(random_integers(numbers.ravel(), size), minlength=size)
        expected = numbers.size / size
        # Chi-squared has mean size - 1 and standard deviation sqrt(2 (size - 1)).
        assert ((counts - expected) ** 2 / expected).sum() < size + 6 * (2 * size) ** 0.5
    centered = numbers / 2.0**64 - 0.5
    for axis in range(3):
        moved = np.moveaxis(centered, axis, 0)
        assert abs((moved[1:] * moved[:-1]).mean()) * 12 < 5 / numbers.size**0.5


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_invalid_arguments_raise(name: str) -> None:
    env = make(name, range(3), 0)
    actions = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match=r"the episodes of environments 0, 1, 2, ... are over"):
        env.step(actions)
    env.reset()
    for invalid, message in (
        (actions[:2], r"shape \(2,\); they must be integers \(3,\)"),
        (actions.astype(np.float32), "actions are float32"),
        (actions - 1, "from -1 to -1 must be from 0 to"),
        (actions + 9, "from 9 to 9"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(invalid)
    with pytest.raises(ValueError, match=r"the reset mask is int64 of shape \(3,\); it must be bool"):
        env.reset(actions)
    state = env.state_dict()
    with pytest.raises(ValueError, match="this environment needs int64 of shape"):
        make(name, range(4), 0).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has"):
        env.load_state_dict({**state, "extra": actions})
    with pytest.raises(ValueError, match="has no option 'sied'; its options are "):
        make(name, range(1), 0, sied=3)
    with pytest.raises(ValueError, match="seed -1 must be from 0"):
        make(name, range(1), -1)
    with pytest.raises(ValueError, match="must be a non-empty range"):
        make(name, range(0), 0)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("Corridor", {"length": 0}, "length is 0; it must be at least 1"),
        ("Corridor", {"colors": 1}, "colors is 1; it must be at least 2"),
        ("Corridor", {"colors": 13}, "colors is 13; it must be at most 12"),
        ("PassiveTMaze", {"length": 0}, "length is 0"),
        ("MazeNavigation", {"side": 8}, "side is 8; it must be odd"),
        ("MazeNavigation", {"side": 3, "targets": 7}, "targets is 7; a maze of side 3 holds at most 6"),
        ("MazeNavigationEasy", {"targets": 1}, "targets is 1; it must be at least 2"),
        ("WaterMaze", {"max_steps": 0}, "max_steps is 0"),
        ("WaterMaze", {"side": 1}, "side is 1"),
    ],
)
def test_invalid_options_raise(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(f"stairwell/{name}-v0", range(1), 0, **options)


def test_an_unknown_name_raises_with_the_closest_match() -> None:
    with pytest.raises(ValueError, match="did you mean 'stairwell/WaterMaze-v0'"):
        make("WaterMaze", range(1), 0)
