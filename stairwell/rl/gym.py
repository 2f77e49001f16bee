"""The environments in gymnasium: one row as an Env, many as a VectorEnv. Importing this registers them.

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


class Single(gymnasium.Env[Array, Any]):
    """Row 0 of an environment. `reset(seed=s)` begins the first episode of seed s, `reset()` the following one."""

    metadata = METADATA

    def __init__(self, name: str, render_mode: str | None = None, **options: Any) -> None:
        _check_render_mode(render_mode)
        self.render_mode, self.name, self.options = render_mode, name, options
        self._batched = make(name, range(1), 0, **options)
        self._seeded = False
        self.observation_space = to_gymnasium(self._batched.observation_space)
        self.action_space = to_gymnasium(self._batched.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._batched = make(self.name, range(1), _seed(seed, self.np_random), **self.options)
            self._seeded = True
        return self._batched.reset()[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._batched.over[0]:
            raise gymnasium.error.ResetNeeded("a step without an episode; call reset() first")
        observations, rewards, terminated, truncated = self._batched.step(np.array([action]))
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Array | None:
        return self._batched.render() if self.render_mode else None


class Vector(VectorEnv[Array, Array, Array]):
    """All rows of an environment, with each of gymnasium's ways to go on after an end of episode."""

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
        self._batched = make(name, range(num_envs), 0, **options)
        self._seeded = False
        self.single_observation_space = to_gymnasium(self._batched.observation_space)
        self.single_action_space = to_gymnasium(self._batched.action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """All rows, or those of `options["reset_mask"]`. A seed gives each row its own numbers."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        if seed is not None or not self._seeded:
            if mask is not None and not np.all(mask):
                raise ValueError("a first reset, or one with a seed, is for all rows; leave out `reset_mask`")
            self._batched = make(self.name, range(self.num_envs), _seed(seed, self.np_random), **self.options)
            self._seeded = True
        return self._batched.reset(mask), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._seeded:
            return *self._step_or_begin(actions), {}
        observations, rewards, terminated, truncated = self._batched.step(actions)
        over = terminated | truncated
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and over.any():
            last = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(over):
                last[row] = observations[row]
            infos = {"final_obs": last, "_final_obs": over, "final_info": {}, "_final_info": over.copy()}
            observations = self._batched.reset(over)
        return observations, rewards.astype(np.float64), terminated, truncated, infos

    def _step_or_begin(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """Rows whose episode is over begin a new one in place of a step, which earns nothing."""
        ended = self._batched.over
        # They take a step too, which counts for nothing because all that it changes is set anew.
        self._batched.over = np.zeros_like(ended)
        try:
            observations, rewards, terminated, truncated = self._batched.step(actions)
        except ValueError:
            self._batched.over = ended
            raise
        if ended.any():
            observations = self._batched.reset(ended)
        return observations, np.where(ended, 0.0, rewards.astype(np.float64)), terminated & ~ended, truncated & ~ended

    def render(self) -> tuple[Array, ...] | None:
        return tuple(self._batched.render(row) for row in range(self.num_envs)) if self.render_mode else None


def _check_render_mode(mode: str | None) -> None:
    if mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is '{mode}'; it can be 'rgb_array' or None")


def _seed(seed: int | None, generator: np.random.Generator) -> int:
    """The seed as it is, or one from gymnasium's generator, which nobody seeded."""
    return int(generator.integers(2**63)) if seed is None else seed


for _name in ENVIRONMENTS:
    if _name not in gymnasium.registry:
        gymnasium.register(
            _name,
            entry_point="stairwell.rl.gym:Single",
            vector_entry_point="stairwell.rl.gym:Vector",
            kwargs={"name": _name},
        )
