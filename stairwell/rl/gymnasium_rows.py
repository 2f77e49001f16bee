"""Any environment of gymnasium as rows: by name, or a vector environment that someone has made.

Nothing in gymnasium says how to save an environment, so that `seek` begins new episodes. Letters: B rows.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import EnumType, IntEnum
from typing import Any

import numpy as np

from stairwell.errors import UserError

from .environments import Array
from .leaves import flatten
from .rows import BrokenEnvironment, Frame, Observations, check_frame, told
from .spaces import MISSING_GYMNASIUM, Space, from_gymnasium

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
except ImportError as missing:
    raise UserError(MISSING_GYMNASIUM) from missing

# What MiniGrid's pictures hold of each cell: the kind of object, its color, its state. They are names, not brightness.
MINIGRID = (11, 6, 4)
# Environments whose package must be imported first; of others gymnasium takes `package:Name-v0`.
PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "popgym-": "popgym"}


class GymnasiumRows:
    """The rows of a vector environment, in any of the three ways to go on after an end of episode."""

    resumes = False

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: list[int]) -> None:
        """`seed`: one a row. A vector environment of its own kind, which takes one for all, gets the first."""
        self.env, self.seed = env, seed
        self.takes_seeds = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.observation_space, self.left_out = without_text(env.single_observation_space)
        self.action_space = supported(env.single_action_space, "the action space")
        self.action_names = action_names(env)
        draws = "rgb_array" in env.metadata.get("render_modes", ())
        self.drawn_with: Mapping[str, str] = {"render_mode": "rgb_array"} if draws else {}
        self.over = np.zeros(env.num_envs, dtype=bool)  # next step: rows whose next step is none

    @property
    def B(self) -> int:
        return int(self.env.num_envs)

    def begin(self) -> Observations:
        return self.begin_from(self.seed)

    def begin_from(self, seeds: list[int]) -> Observations:
        seed: Any = seeds if self.takes_seeds else seeds[0]
        observations, _ = self.guarded(lambda: self.env.reset(seed=seed))
        named = flatten(self.observation_space, observations)
        nothing = np.zeros(self.B, dtype=bool)
        check_frame(self.observation_space, named, np.zeros(self.B), (nothing, nothing), self.B)
        self.over = nothing
        return copied(named)

    def step(self, actions: Array) -> Frame:
        observations, rewards, terminated, truncated, infos = self.guarded(lambda: self.env.step(actions))
        now = copied(flatten(self.observation_space, observations))
        check_frame(self.observation_space, now, rewards, (terminated, truncated), self.B)
        terminated, truncated = np.array(terminated), np.array(truncated)
        ended, idle = terminated | truncated, self.over
        last, start = now, ended
        if self.mode is AutoresetMode.NEXT_STEP:
            start, self.over = idle, ended
        elif self.mode is AutoresetMode.SAME_STEP and ended.any():
            last = self.with_last(now, infos, ended)
        elif ended.any():
            begun, _ = self.guarded(lambda: self.env.reset(options={"reset_mask": ended}))
            now = copied(flatten(self.observation_space, begun))
            check_frame(self.observation_space, now, rewards, (terminated, truncated), self.B)
        rewards = np.asarray(rewards, dtype=np.float32)
        return Frame(now, last, rewards, terminated, truncated, start.copy(), idle.copy())

    def with_last(self, now: Observations, infos: Mapping[str, Any], ended: Array) -> Observations:
        """With the last observations of the rows that have ended, which this mode hands over beside the new ones."""
        last = copied(now)
        if "final_obs" not in infos:
            raise BrokenEnvironment("its episodes begin in the same step, but it gives no `final_obs`")
        for row in np.flatnonzero(ended):
            for path, values in flatten(self.observation_space, infos["final_obs"][row]).items():
                last[path][row] = values
        return last

    def guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BrokenEnvironment:
            raise
        except (Exception, SystemExit) as error:  # of someone else's code
            raise BrokenEnvironment(told(error)) from error

    def position(self) -> dict[str, Array]:
        return {}

    def seek(self, position: Mapping[str, Array], time: int) -> Observations:
        """New episodes, which were not played before `time`."""
        return self.begin_from([seed_of(seed, time) for seed in self.seed])

    def render(self, row: int) -> Array | None:
        pictures: Any = self.guarded(self.env.render) if self.env.render_mode else None
        return None if pictures is None or pictures[row] is None else np.asarray(pictures[row])

    def close(self) -> None:
        self.guarded(self.env.close)


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment, looked at before many are put together, which would turn wrong types into right ones."""

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
                raise BrokenEnvironment(f"`{name}` is {flag!r}, not true or false")
        return observation, reward, terminated, truncated, info

    def check(self, observation: Any) -> None:
        if not self.observation_space.contains(observation):
            shown = f"{observation.dtype} of shape {observation.shape}" if isinstance(observation, np.ndarray) else ""
            raise BrokenEnvironment(
                f"an observation is not in the space {self.observation_space}: {shown or repr(observation)}"
            )


class Categories(gymnasium.ObservationWrapper[Any, Any, Any]):
    """MiniGrid's pictures as what they are, three whole numbers a cell, each with its own range."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        inner = env.observation_space
        assert isinstance(inner, spaces.Dict)
        shape: Any = inner["image"].shape
        sizes = np.broadcast_to(np.array(MINIGRID), shape)
        self.observation_space = spaces.Dict([*inner.spaces.items(), ("image", spaces.MultiDiscrete(sizes))])

    def observation(self, observation: Any) -> Any:
        return {**observation, "image": observation["image"].astype(np.int64)}


def is_minigrid(env: gymnasium.Env[Any, Any]) -> bool:
    space = env.observation_space
    return (
        isinstance(space, spaces.Dict)
        and {"image", "direction"} <= set(space.spaces)
        and type(env.unwrapped).__module__.startswith("minigrid")
    )


def prepared(env: gymnasium.Env[Any, Any]) -> gymnasium.Wrapper[Any, Any, Any, Any]:
    checked = Checked(env)
    return Categories(checked) if is_minigrid(env) else checked


def open_gymnasium(name: str, options: Mapping[str, Any], rows: range, seed: int) -> GymnasiumRows:
    """`rows` environments by name, each with a seed of its own."""
    import_environment(name)
    try:
        env = gymnasium.make_vec(
            name,
            num_envs=len(rows),
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            wrappers=[prepared],
            **options,
        )
    except gymnasium.error.UnregisteredEnv as error:
        raise UserError(f"environment '{name}': {registered_by(name) or error}") from None
    except gymnasium.error.Error as error:
        raise UserError(f"environment '{name}': {error}") from None
    except TypeError as error:
        raise UserError(f"environment '{name}' cannot be made with {dict(options)}: {error}") from None
    except (Exception, SystemExit) as error:  # of someone else's code
        raise UserError(f"environment '{name}' cannot be made: {told(error)}") from error
    return GymnasiumRows(env, [seed_of(seed, row) for row in rows])


def import_environment(name: str) -> None:
    """Import what registers an environment: the module of `module:Name-v0`, also from the current folder, or a package
    whose names have a prefix of their own."""
    module, colon, own = name.partition(":")
    if not colon:
        module = next((package for prefix, package in PACKAGES.items() if name.startswith(prefix)), "")
        if not module:
            return
    elif not module or not own:
        raise UserError(f"--task.env '{name}': expected module:Name-v0, such as my_module:MyEnv-v0")
    folder = os.getcwd()
    if colon and folder not in sys.path:
        sys.path.append(folder)  # last, so that no file in it hides an installed package
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise cannot_import(name, module, error) from error
        if not colon:
            raise UserError(
                f"environment '{name}' needs a package that is not installed: pip install {module}"
            ) from None
        advice = (
            f"write {module[:-3]}:{own}" if module.endswith(".py") else "run this where the module is, or install it"
        )
        raise UserError(
            f"environment '{name}': there is no module '{module}' in the current folder ({folder}) or among the "
            f"installed packages; {advice}"
        ) from None
    except (Exception, SystemExit) as error:
        raise cannot_import(name, module, error) from error


def cannot_import(name: str, module: str, error: BaseException) -> UserError:
    return UserError(f"environment '{name}': importing the module '{module}' failed: {told(error)}")


def registered_by(name: str) -> str:
    """What a module that was named registers, for someone who asked for something else; empty without a module."""
    module, colon, own = name.partition(":")
    if not colon:
        return ""
    entries = {id: spec.entry_point for id, spec in gymnasium.registry.items()}
    owners = {
        id: entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
        for id, entry in entries.items()
    }
    known = [id for id, owner in owners.items() if owner == module]
    there = f"it registers {', '.join(known)}" if known else "call gymnasium.register in it"
    file = getattr(sys.modules.get(module), "__file__", None) or "built in"
    return f"the module '{module}' ({file}) registers no environment '{own}'; {there}"


def seed_of(seed: int, number: int) -> int:
    """A seed for each number, of a row or of a time, far from those of others."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint32)[0] >> 1)


def action_names(env: VectorEnv[Any, Any, Any]) -> Sequence[str]:
    """As MiniGrid names them; gymnasium itself has no names."""
    vector, space = env.unwrapped, env.single_action_space
    named = getattr(vector.envs[0].unwrapped, "actions", None) if isinstance(vector, SyncVectorEnv) else None
    if not (isinstance(named, EnumType) and issubclass(named, IntEnum) and isinstance(space, spaces.Discrete)):
        return ()
    words = {int(action): action.name for action in named}
    return [words.get(number, str(number)) for number in range(int(space.n))]


def supported(space: Any, place: str) -> Space:
    try:
        return from_gymnasium(space, place)
    except ValueError as error:
        raise UserError(str(error)) from None


def without_text(space: Any) -> tuple[Space, list[str]]:
    """Our form of an observation space, and the named parts that are text, which are left out of it."""
    left: list[str] = []
    if isinstance(space, spaces.Dict):
        left = [name for name, part in space.spaces.items() if is_text(part)]
        kept = [(name, part) for name, part in space.spaces.items() if name not in left]
        if left and kept:
            space = spaces.Dict(kept)
    return supported(space, "the observation space"), left


def is_text(space: Any) -> bool:
    """Text, or MiniGrid's own space of missions."""
    return isinstance(space, spaces.Text) or type(space).__name__ == "MissionSpace"


def copied(named: Observations) -> Observations:
    """Vector environments write into the same arrays again and again."""
    return {path: np.array(values) for path, values in named.items()}
