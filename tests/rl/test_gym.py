"""The environments in gymnasium: they pass its checker, and vector environments equal gymnasium's own."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import stairwell.rl
from stairwell.rl import ENVIRONMENTS
from stairwell.rl.gym import StairwellEnv, StairwellVectorEnv

every_environment = pytest.mark.parametrize("name", ENVIRONMENTS)
# Short episodes.
SMALL: dict[str, dict[str, Any]] = {
    "stairwell/Corridor-v0": {"length": 3},
    "stairwell/PassiveTMaze-v0": {"length": 3},
    "stairwell/MazeNavigation-v0": {"side": 5, "targets": 3, "max_steps": 9},
    "stairwell/MazeNavigationEasy-v0": {"side": 5, "targets": 3, "max_steps": 9},
    "stairwell/WaterMaze-v0": {"side": 4, "max_steps": 9},
}


@every_environment
def test_environments_pass_gymnasiums_checker(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode="rgb_array").unwrapped)
        check_env(gymnasium.make(name, **SMALL[name]).unwrapped)


@every_environment
def test_a_single_environment_equals_index_0_of_a_batch(name: str) -> None:
    env = gymnasium.make(name, **SMALL[name], render_mode="rgb_array")
    batched = stairwell.rl.make(name, range(1), 5, **SMALL[name])
    observation, _ = env.reset(seed=5)
    assert np.array_equal(observation, batched.reset()[0])
    env.action_space.seed(0)
    for _ in range(60):
        action = env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        expected = batched.step(np.array([action]))
        assert np.array_equal(observation, expected.observations[0])
        assert (reward, terminated, truncated) == tuple(part[0] for part in expected[1:])
        assert np.array_equal(np.asarray(env.render()), batched.render())
        if terminated or truncated:
            assert np.array_equal(env.reset()[0], batched.reset()[0])


def test_environments_without_a_seed_differ() -> None:
    observations = [gymnasium.make("stairwell/WaterMaze-v0").reset()[0].tolist() for _ in range(8)]
    assert len(set(map(str, observations))) > 4


def test_a_step_before_reset_raises() -> None:
    env = StairwellEnv("stairwell/Corridor-v0", length=1)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    assert env.step(1)[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_an_unknown_render_mode_raises() -> None:
    for env_class in (StairwellEnv, StairwellVectorEnv):
        with pytest.raises(ValueError, match="render_mode 'human' is not supported; use 'rgb_array' or None"):
            env_class("stairwell/Corridor-v0", render_mode="human")


@every_environment
@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_environments_equal_gymnasiums_sync_vector_env(name: str, mode: AutoresetMode) -> None:
    """Of single environments with the same indices."""
    B = 5
    ours = gymnasium.make_vec(name, num_envs=B, autoreset_mode=mode, **SMALL[name])
    assert type(ours).__name__ == "StairwellVectorEnv" and ours.metadata["autoreset_mode"] is mode
    singles = [IndexedEnv(name, index, **SMALL[name]) for index in range(B)]
    theirs = gymnasium.vector.SyncVectorEnv([lambda env=env: env for env in singles], autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space

    observations, infos = ours.reset(seed=3)
    assert np.array_equal(observations, theirs.reset(seed=[3] * B)[0]) and infos == {}
    ours.action_space.seed(0)
    episodes = 0
    for _ in range(60):
        actions = ours.action_space.sample()
        step, expected = ours.step(actions), theirs.step(actions)
        for array, other in zip(step[:4], expected[:4]):
            assert np.array_equal(array, other) and array.dtype == other.dtype
        assert step[0] in ours.observation_space
        assert equal_infos(step[4], expected[4])
        done = step[2] | step[3]
        episodes += done.sum()
        if mode is AutoresetMode.DISABLED and done.any():
            with pytest.raises(ValueError, match="are over; reset them"):
                ours.step(actions)
            observations, _ = ours.reset(options={"reset_mask": done})
            assert np.array_equal(observations, theirs.reset(options={"reset_mask": done})[0])
    assert episodes > 5


class IndexedEnv(StairwellEnv):
    """An environment with an index other than 0."""

    def __init__(self, name: str, index: int, **options: Any) -> None:
        super().__init__(name, **options)
        self.index = index

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._batched_env = stairwell.rl.make(self.name, range(self.index, self.index + 1), seed, **self.options)
            self._seeded = True
        return self._batched_env.reset()[0], {}


def equal_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    if ours.keys() != theirs.keys():
        return False
    for key, mine in ours.items():
        other = theirs[key]
        if isinstance(mine, dict):
            equal = equal_infos(mine, other)
        elif mine.dtype == object:
            equal = all(np.array_equal(a, b) if a is not None else b is None for a, b in zip(mine, other))
        else:
            equal = np.array_equal(mine, other)
        if not equal:
            return False
    return True


def test_an_invalid_step_of_a_vector_environment_raises_and_changes_nothing() -> None:
    envs = gymnasium.make_vec("stairwell/Corridor-v0", num_envs=2, length=1)
    with pytest.raises(ValueError, match="are over; reset them"):
        envs.step(np.zeros(2, dtype=int))
    with pytest.raises(ValueError, match="leave out `reset_mask`"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset(seed=0)
    envs.step(np.array([0, 0]))
    assert envs.step(np.array([1, 0]))[2].tolist() == [True, False]
    with pytest.raises(ValueError, match="from 7 to 7"):
        envs.step(np.array([7, 7]))
    # The first environment is still reset.
    observations = envs.step(np.array([0, 0]))[0]
    assert observations[0, 0] > 0 and observations[1, 0] == 0


def test_a_vector_environment_renders_every_environment() -> None:
    envs = gymnasium.make_vec("stairwell/WaterMaze-v0", num_envs=3, render_mode="rgb_array")
    envs.reset(seed=0)
    images: Any = envs.render()
    assert len(images) == 3 and len({image.tobytes() for image in images}) == 3
    assert gymnasium.make_vec("stairwell/WaterMaze-v0", num_envs=3).render() is None
