"""The environments in gymnasium, as an Env and as a VectorEnv. Importing this module registers them.

import gymnasium, stairwell.rl
env = gymnasium.make("stairwell/MazeNavigation-v0", side=7, render_mode="rgb_array")
envs = gymnasium.make_vec("stairwell/MazeNavigation-v0", num_envs=256)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .environments import ENVIRONMENTS, Array, make
from .spaces import MISSING_GYMNASIUM, to_gymnasium

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as missing:
    raise ImportError(MISSING_GYMNASIUM) from missing

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}


class StairwellEnv(gymnasium.Env[Array, Any]):
    """Environment 0 of a batched environment. `reset(seed=s)` starts the first episode of seed s, `reset()` the
    next."""

    metadata = METADATA

    def __init__(self, name: str, render_mode: str | None = None, **options: Any) -> None:
        _check_render_mode(render_mode)
        self.render_mode, self.name, self.options = render_mode, name, options
        self._batched_env = make(name, range(1), 0, **options)
        self._seeded = False
        self.observation_space = to_gymnasium(self._batched_env.observation_space)
        self.action_space = to_gymnasium(self._batched_env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._batched_env = make(self.name, range(1), _seed(seed, self.np_random), **self.options)
            self._seeded = True
        return self._batched_env.reset()[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._batched_env.done[0]:
            raise gymnasium.error.ResetNeeded("there is no running episode; call reset() before step()")
        observations, rewards, terminated, truncated = self._batched_env.step(np.array([action]))
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Array | None:
        return self._batched_env.render() if self.render_mode else None


class StairwellVectorEnv(VectorEnv[Array, Array, Array]):
    """A batched environment with all of gymnasium's autoreset modes."""

    def __init__(
        self,
        name: str,
        num_envs: int = 1,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **options: Any,
    ) -> None:
        _check_render_mode(render_mode)
        self.render_mode, self.name, self.options, self.num_envs = render_mode, name, options, num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode}
        self._batched_env = make(name, range(num_envs), 0, **options)
        self._seeded = False
        self.single_observation_space = to_gymnasium(self._batched_env.observation_space)
        self.single_action_space = to_gymnasium(self._batched_env.action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`. One seed gives each environment its own
        episodes."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        if seed is not None or not self._seeded:
            if mask is not None and not np.all(mask):
                raise ValueError(
                    "the first reset and a reset with a seed apply to all environments; leave out `reset_mask`"
                )
            self._batched_env = make(self.name, range(self.num_envs), _seed(seed, self.np_random), **self.options)
            self._seeded = True
        return self._batched_env.reset(mask), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._seeded:
            return *self._step_or_reset(actions), {}
        observations, rewards, terminated, truncated = self._batched_env.step(actions)
        done = terminated | truncated
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and done.any():
            final_obs = np.full(self.num_envs, None, dtype=object)
            for index in np.flatnonzero(done):
                final_obs[index] = observations[index]
            infos = {"final_obs": final_obs, "_final_obs": done, "final_info": {}, "_final_info": done.copy()}
            observations = self._batched_env.reset(done)
        return observations, rewards.astype(np.float64), terminated, truncated, infos

    def _step_or_reset(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """Reset the environments that are done, with a reward of 0, and step the others."""
        done = self._batched_env.done
        # All environments step. For those that are done this has no effect, because the reset overwrites their state.
        self._batched_env.done = np.zeros_like(done)
        try:
            observations, rewards, terminated, truncated = self._batched_env.step(actions)
        except ValueError:
            self._batched_env.done = done
            raise
        if done.any():
            observations = self._batched_env.reset(done)
        return observations, np.where(done, 0.0, rewards.astype(np.float64)), terminated & ~done, truncated & ~done

    def render(self) -> tuple[Array, ...] | None:
        return tuple(self._batched_env.render(i) for i in range(self.num_envs)) if self.render_mode else None


def _check_render_mode(mode: str | None) -> None:
    if mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode '{mode}' is not supported; use 'rgb_array' or None")


def _seed(seed: int | None, generator: np.random.Generator) -> int:
    """Return the seed, or a random one from gymnasium's generator if there is none."""
    return int(generator.integers(2**63)) if seed is None else seed


for _name in ENVIRONMENTS:
    if _name not in gymnasium.registry:
        gymnasium.register(
            _name,
            entry_point="stairwell.rl.gym:StairwellEnv",
            vector_entry_point="stairwell.rl.gym:StairwellVectorEnv",
            kwargs={"name": _name},
        )
