"""Any gymnasium environment as a `VectorEnv`: by name, or an existing gymnasium vector environment.

gymnasium has no interface to save an environment's state, so `load_state_dict` starts new episodes.
Letters: B environments.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import EnumType, IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stairwell.errors import MissingPackage, UserError

from .action_masks import INFO as MASK_INFO
from .action_masks import mask_nvec, mask_of, masks_of
from .environments import Array
from .flatten import ACTION_MASK, flatten
from .spaces import GYMNASIUM, Space, from_gymnasium
from .vector_env import BrokenEnvironment, Observations, VectorStep, check_step, describe_exception, package_of

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
except ImportError as missing:
    raise MissingPackage("gymnasium 1.1 or newer is not installed", GYMNASIUM) from missing

MAX_SHOWN = 200  # characters of an observation in an error
# MiniGrid's images have three categories per cell, not colors: object type, object color and object state.
MINIGRID_NVEC = (11, 6, 4)


class GymnasiumVectorEnv:
    """A gymnasium vector environment with any autoreset mode."""

    can_restore = False

    def __init__(
        self, env: gymnasium.vector.VectorEnv[Any, Any, Any], seeds: list[int], action_masks: bool = True
    ) -> None:
        """`seeds`: one per environment. A custom vector environment, which takes one seed for all, gets the first.
        `action_masks`: use the masks that the environment gives."""
        self.env, self.seeds = env, seeds
        self.takes_seed_list = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.autoreset_mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.observation_space, self.ignored_observations = without_text(env.single_observation_space)
        self.action_space = convert_space(env.single_action_space, "the action space")
        self.action_names = action_names(env)
        self.mask_nvec = mask_nvec(self.action_space) if action_masks else ()
        self.masks: Array | None = None  # (B, P); None if the environment has no action masks
        can_render = "rgb_array" in env.metadata.get("render_modes", ())
        self.render_options: Mapping[str, str] = {"render_mode": "rgb_array"} if can_render else {}
        self.resets_next = np.zeros(env.num_envs, dtype=bool)  # NEXT_STEP: environments whose next step is a reset

    @property
    def num_envs(self) -> int:
        return int(self.env.num_envs)

    def reset(self) -> Observations:
        return self._reset_with(self.seeds)

    def _reset_with(self, seeds: list[int]) -> Observations:
        seed: Any = seeds if self.takes_seed_list else seeds[0]
        observations, infos = self._call(lambda: self.env.reset(seed=seed))
        flat = flatten(self.observation_space, observations)
        none = np.zeros(self.num_envs, dtype=bool)
        check_step(self.observation_space, flat, np.zeros(self.num_envs), none, none, self.num_envs)
        self.resets_next = none
        first = masks_of(infos, self.num_envs, self.mask_nvec)
        self.masks = None if first is None else np.ones_like(first[0])
        return self._with_masks(copy_arrays(flat), infos)

    def step(self, actions: Array) -> VectorStep:
        observations, rewards, terminated, truncated, infos = self._call(lambda: self.env.step(actions))
        flat = copy_arrays(flatten(self.observation_space, observations))
        check_step(self.observation_space, flat, rewards, terminated, truncated, self.num_envs)
        terminated, truncated = np.array(terminated), np.array(truncated)
        done, ignored = terminated | truncated, self.resets_next
        flat = self._with_masks(flat, infos)
        final, start = flat, done
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            start, self.resets_next = ignored, done
        elif self.autoreset_mode is AutoresetMode.SAME_STEP and done.any():
            final = self._with_final_observations(flat, infos, done)
        elif done.any():
            first, infos = self._call(lambda: self.env.reset(options={"reset_mask": done}))
            flat = copy_arrays(flatten(self.observation_space, first))
            check_step(self.observation_space, flat, rewards, terminated, truncated, self.num_envs)
            flat = self._with_masks(flat, infos)
        rewards = np.asarray(rewards, dtype=np.float32)
        return VectorStep(flat, final, rewards, terminated, truncated, start.copy(), ignored.copy())

    def _with_masks(self, observations: Observations, infos: Mapping[str, Any]) -> Observations:
        """Return the observations with the newest action masks, if the environment has any."""
        if self.masks is None:
            return observations
        if (newest := masks_of(infos, self.num_envs, self.mask_nvec)) is not None:
            masks, given = newest
            self.masks = np.where(given[:, None], masks, self.masks)
        return {**observations, ACTION_MASK: self.masks.copy()}

    def _with_final_observations(
        self, observations: Observations, infos: Mapping[str, Any], done: Array
    ) -> Observations:
        """Return the observations with the last ones of finished episodes, which SAME_STEP returns in `infos`."""
        final = copy_arrays(observations)
        if "final_obs" not in infos:
            raise BrokenEnvironment("its autoreset mode is SAME_STEP, but `infos` has no `final_obs`")
        for index in np.flatnonzero(done):
            for path, values in flatten(self.observation_space, infos["final_obs"][index]).items():
                final[path][index] = values
        return final

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except BrokenEnvironment:
            raise
        except (Exception, SystemExit) as error:  # external code
            raise BrokenEnvironment(describe_exception(error)) from error

    def state_dict(self) -> dict[str, Array]:
        return {}

    def load_state_dict(self, state: Mapping[str, Array], steps: int) -> Observations:
        """Start new episodes, which were not played before `steps`."""
        return self._reset_with([derive_seed(seed, steps) for seed in self.seeds])

    def render(self, index: int) -> Array | None:
        images: Any = self._call(self.env.render) if self.env.render_mode else None
        return None if images is None or images[index] is None else np.asarray(images[index])

    def close(self) -> None:
        self._call(self.env.close)


class CheckTypes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Check the types of one environment, since a vector environment converts wrong ones silently."""

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self.check(observation)
        return observation, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.check(observation)
        if not isinstance(reward, int | float | np.number | np.bool_) or isinstance(reward, np.complexfloating):
            raise BrokenEnvironment(f"the reward is {reward!r}, not a number")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                raise BrokenEnvironment(f"`{name}` is {flag!r}, not a bool")
        return observation, reward, terminated, truncated, info

    def check(self, observation: Any) -> None:
        if not self.observation_space.contains(observation):
            if contains_nan(observation):
                raise BrokenEnvironment(f"an observation contains NaN: {shorten(observation)}")
            array = isinstance(observation, np.ndarray)
            text = f"{observation.dtype} of shape {observation.shape}" if array else repr(observation)
            if array and observation.dtype.kind in "fiub" and observation.size:
                text += f" with values from {observation.min():.4g} to {observation.max():.4g}"
            raise BrokenEnvironment(f"an observation is not in the space {self.observation_space}: {text}")


def contains_nan(observation: Any) -> bool:
    """Return whether there is NaN in an observation, which may be nested."""
    if isinstance(observation, Mapping):
        return any(map(contains_nan, observation.values()))
    if isinstance(observation, tuple | list):
        return any(map(contains_nan, observation))
    values = np.asarray(observation)
    return values.dtype.kind in "fc" and bool(np.isnan(values).any())


def shorten(observation: Any) -> str:
    text = " ".join(str(observation).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts the checked mask of one environment into its infos, (P,) bool."""

    def __init__(self, env: gymnasium.Env[Any, Any], nvec: tuple[int, ...]) -> None:
        super().__init__(env)
        self.nvec = nvec

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        return observation, self.with_mask(info, done=False)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self.with_mask(info, bool(terminated or truncated))

    def with_mask(self, info: Any, done: bool) -> Any:
        mask = mask_of(self.env, info, self.nvec, done)
        return info if mask is None else {**info, MASK_INFO: mask}


class MiniGridCategories(gymnasium.ObservationWrapper[Any, Any, Any]):
    """MiniGrid's image as MultiDiscrete: three categories per cell."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        inner = env.observation_space
        assert isinstance(inner, spaces.Dict)
        shape: Any = inner["image"].shape
        nvec = np.broadcast_to(np.array(MINIGRID_NVEC), shape)
        self.observation_space = spaces.Dict([*inner.spaces.items(), ("image", spaces.MultiDiscrete(nvec))])

    def observation(self, observation: Any) -> Any:
        return {**observation, "image": observation["image"].astype(np.int64)}


def is_minigrid(env: gymnasium.Env[Any, Any]) -> bool:
    space = env.observation_space
    return (
        isinstance(space, spaces.Dict)
        and {"image", "direction"} <= set(space.spaces)
        and type(env.unwrapped).__module__.startswith("minigrid")
    )


def wrap(env: gymnasium.Env[Any, Any], action_masks: bool) -> gymnasium.Wrapper[Any, Any, Any, Any]:
    checked: gymnasium.Wrapper[Any, Any, Any, Any] = CheckTypes(env)
    if action_masks and (nvec := mask_nvec(convert_space(env.action_space, "the action space"))):
        checked = ActionMasks(checked, nvec)
    return MiniGridCategories(checked) if is_minigrid(env) else checked


def make_gymnasium_env(
    name: str, options: Mapping[str, Any], indices: range, seed: int, action_masks: bool = True
) -> GymnasiumVectorEnv:
    """Return one environment per index by name, each with its own seed."""
    import_environment(name)
    try:
        env = gymnasium.make_vec(
            name,
            num_envs=len(indices),
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            wrappers=[partial(wrap, action_masks=action_masks)],
            **options,
        )
    except gymnasium.error.UnregisteredEnv as error:
        reason = describe_registered(name) or f"{str(error).rstrip('.')}; {describe_own(name)}"
        raise UserError(f"environment '{name}': {reason}") from None
    except gymnasium.error.Error as error:
        raise UserError(f"environment '{name}': {error}") from None
    except TypeError as error:
        raise UserError(f"environment '{name}' cannot be made with {dict(options)}: {error}") from None
    except (Exception, SystemExit) as error:  # external code
        raise UserError(f"environment '{name}' cannot be made: {describe_exception(error)}") from error
    return GymnasiumVectorEnv(env, [derive_seed(seed, index) for index in indices], action_masks)


def import_environment(name: str) -> None:
    """Import what registers an environment: the module of `module:Name-v0`, which may be in the current directory, or
    the package of a known prefix."""
    module, colon, env_id = name.partition(":")
    if not colon:
        module = package_of(name)
        if not module:
            return
    elif not module or not env_id:
        raise UserError(f"--task.env '{name}': expected module:Name-v0, for example my_module:MyEnv-v0")
    folder = os.getcwd()
    if colon and folder not in sys.path:
        sys.path.append(folder)  # last, so that its files do not shadow installed packages
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise import_error(name, module, error) from error
        if not colon:
            raise MissingPackage(f"environment '{name}' needs a package that is not installed", module) from None
        advice = (
            f"write {module[:-3]}:{env_id}" if module.endswith(".py") else "run this in its directory, or install it"
        )
        raise UserError(
            f"environment '{name}': there is no module '{module}' in the current directory ({folder}) or among the "
            f"installed packages; {advice}"
        ) from None
    except (Exception, SystemExit) as error:
        raise import_error(name, module, error) from error


def import_error(name: str, module: str, error: BaseException) -> UserError:
    return UserError(f"environment '{name}': importing the module '{module}' failed: {describe_exception(error)}")


def describe_registered(name: str) -> str:
    """Return which environments the module of `module:Name-v0` registers, for an error; empty without a module."""
    module, colon, env_id = name.partition(":")
    if not colon:
        return ""
    entry_points = {id: spec.entry_point for id, spec in gymnasium.registry.items()}
    modules = {
        id: entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
        for id, entry in entry_points.items()
    }
    registered = [id for id, owner in modules.items() if owner == module]
    advice = f"it registers {', '.join(registered)}" if registered else "call gymnasium.register in it"
    file = getattr(sys.modules.get(module), "__file__", None) or "built in"
    return f"the module '{module}' ({file}) does not register '{env_id}'; {advice}"


def describe_own(name: str) -> str:
    """Return how to name an environment of one's own, for an error: by its module, if a file of the current directory
    registers it."""
    registered = re.compile(rf"""["']({re.escape(name.partition("-v")[0])}-v\d+)["']""")
    for file in sorted(Path.cwd().glob("*.py")):
        if match := registered.search(file.read_text(encoding="utf-8", errors="replace")):
            return f"for that of {file.name} write --task.env {file.stem}:{match[1]}"
    return "an environment of your own is named module:Name-v0"


def derive_seed(seed: int, number: int) -> int:
    """Return an independent seed for a number: an environment's index, or a number of steps."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint32)[0] >> 1)


def action_names(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> Sequence[str]:
    """Return the names in MiniGrid's `actions` enumeration; gymnasium itself has no action names."""
    vector, space = env.unwrapped, env.single_action_space
    actions = getattr(vector.envs[0].unwrapped, "actions", None) if isinstance(vector, SyncVectorEnv) else None
    if not (isinstance(actions, EnumType) and issubclass(actions, IntEnum) and isinstance(space, spaces.Discrete)):
        return ()
    names = {int(action): action.name for action in actions}
    return [names.get(number, str(number)) for number in range(int(space.n))]


def convert_space(space: Any, path: str) -> Space:
    try:
        return from_gymnasium(space, path)
    except ValueError as error:
        raise UserError(str(error)) from None


def without_text(space: Any) -> tuple[Space, list[str]]:
    """Return an observation space without the text in a Dict, and the names of what was removed."""
    removed: list[str] = []
    if isinstance(space, spaces.Dict):
        removed = [name for name, child in space.spaces.items() if is_text(child)]
        rest = [(name, child) for name, child in space.spaces.items() if name not in removed]
        if removed and rest:
            space = spaces.Dict(rest)
    return convert_space(space, "the observation space"), removed


def is_text(space: Any) -> bool:
    """Return whether a space is Text or MiniGrid's MissionSpace."""
    return isinstance(space, spaces.Text) or type(space).__name__ == "MissionSpace"


def copy_arrays(arrays: Observations) -> Observations:
    """Return copies, because vector environments reuse their arrays."""
    return {path: np.array(values) for path, values in arrays.items()}
