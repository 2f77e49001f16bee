"""The environments in gymnasium: its checker is content, and its vectors say what the batched ones say."""

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
from stairwell.rl.gym import Single, Vector

every_environment = pytest.mark.parametrize("name", ENVIRONMENTS)
# Small ones, whose episodes end soon.
SMALL: dict[str, dict[str, Any]] = {
    "stairwell/Corridor-v0": {"length": 3},
    "stairwell/PassiveTMaze-v0": {"length": 3},
    "stairwell/MazeNavigation-v0": {"side": 5, "targets": 3, "steps": 9},
    "stairwell/MazeNavigationEasy-v0": {"side": 5, "targets": 3, "steps": 9},
    "stairwell/WaterMaze-v0": {"side": 4, "steps": 9},
}


@every_environment
def test_gymnasiums_checker_is_content(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode="rgb_array").unwrapped)
        check_env(gymnasium.make(name, **SMALL[name]).unwrapped)


@every_environment
def test_one_row_says_what_row_0_of_the_batched_one_says(name: str) -> None:
    env = gymnasium.make(name, **SMALL[name], render_mode="rgb_array")
    batched = stairwell.rl.make(name, range(1), 5, **SMALL[name])
    seen, _ = env.reset(seed=5)
    assert np.array_equal(seen, batched.reset()[0])
    env.action_space.seed(0)
    for _ in range(60):
        action = env.action_space.sample()
        seen, reward, terminated, truncated, _ = env.step(action)
        expected = batched.step(np.array([action]))
        assert np.array_equal(seen, expected.observations[0])
        assert (reward, terminated, truncated) == tuple(part[0] for part in expected[1:])
        assert np.array_equal(np.asarray(env.render()), batched.render())
        if terminated or truncated:
            assert np.array_equal(env.reset()[0], batched.reset()[0])


def test_without_a_seed_every_environment_is_another() -> None:
    beginnings = [gymnasium.make("stairwell/WaterMaze-v0").reset()[0].tolist() for _ in range(8)]
    assert len({str(beginning) for beginning in beginnings}) > 4


def test_a_step_without_an_episode_is_told() -> None:
    env = Single("stairwell/Corridor-v0", length=1)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    assert env.step(1)[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_another_render_mode_is_told() -> None:
    for kind in (Single, Vector):
        with pytest.raises(ValueError, match="it can be 'rgb_array' or None"):
            kind("stairwell/Corridor-v0", render_mode="sound")


@every_environment
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_says_what_gymnasiums_own_says(name: str, mode: AutoresetMode) -> None:
    """Against gymnasium's SyncVectorEnv of single rows, each of which is made to play the row of its number."""
    B = 5
    ours = gymnasium.make_vec(name, num_envs=B, autoreset_mode=mode, **SMALL[name])
    assert type(ours).__name__ == "Vector" and ours.metadata["autoreset_mode"] is mode
    singles = [Row(name, row, **SMALL[name]) for row in range(B)]
    theirs = gymnasium.vector.SyncVectorEnv([lambda env=env: env for env in singles], autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space

    seen, infos = ours.reset(seed=3)
    assert np.array_equal(seen, theirs.reset(seed=[3] * B)[0]) and infos == {}
    ours.action_space.seed(0)
    ends = 0
    for _ in range(60):
        actions = ours.action_space.sample()
        said, expected = ours.step(actions), theirs.step(actions)
        for part, other in zip(said[:4], expected[:4]):
            assert np.array_equal(part, other) and part.dtype == other.dtype
        assert said[0] in ours.observation_space
        assert same_info(said[4], expected[4])
        over = said[2] | said[3]
        ends += over.sum()
        if mode is AutoresetMode.DISABLED and over.any():
            with pytest.raises(ValueError, match="whose episode is over"):
                ours.step(actions)
            seen, _ = ours.reset(options={"reset_mask": over})
            assert np.array_equal(seen, theirs.reset(options={"reset_mask": over})[0])
    assert ends > 5


class Row(Single):
    """Plays another row than 0, so that rows can be compared one by one."""

    def __init__(self, name: str, row: int, **options: Any) -> None:
        super().__init__(name, **options)
        self.row = row

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._batched = stairwell.rl.make(self.name, range(self.row, self.row + 1), seed, **self.options)
            self._seeded = True
        return self._batched.reset()[0], {}


def same_info(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Equal arrays, of objects too, under equal names."""
    if ours.keys() != theirs.keys():
        return False
    for key, mine in ours.items():
        other = theirs[key]
        if isinstance(mine, dict):
            equal = same_info(mine, other)
        elif mine.dtype == object:
            equal = all(np.array_equal(a, b) if a is not None else b is None for a, b in zip(mine, other))
        else:
            equal = np.array_equal(mine, other)
        if not equal:
            return False
    return True


def test_a_vector_without_an_episode_or_with_a_wrong_action_is_told_and_unharmed() -> None:
    envs = gymnasium.make_vec("stairwell/Corridor-v0", num_envs=2, length=1)
    with pytest.raises(ValueError, match="episode is over"):
        envs.step(np.zeros(2, dtype=int))
    with pytest.raises(ValueError, match="leave out `reset_mask`"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset(seed=0)
    envs.step(np.array([0, 0]))
    assert envs.step(np.array([1, 0]))[2].tolist() == [True, False]
    with pytest.raises(ValueError, match="from 7 to 7"):
        envs.step(np.array([7, 7]))
    # The first row still begins anew.
    seen = envs.step(np.array([0, 0]))[0]
    assert seen[0, 0] > 0 and seen[1, 0] == 0


def test_a_vector_draws_every_row() -> None:
    envs = gymnasium.make_vec("stairwell/WaterMaze-v0", num_envs=3, render_mode="rgb_array")
    envs.reset(seed=0)
    pictures: Any = envs.render()
    assert len(pictures) == 3 and len({picture.tobytes() for picture in pictures}) == 3
    assert gymnasium.make_vec("stairwell/WaterMaze-v0", num_envs=3).render() is None
