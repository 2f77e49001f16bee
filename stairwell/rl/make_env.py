"""Vector environments by name: stairwell's own, which have no further dependencies, or gymnasium's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stairwell.errors import MissingPackage, UserError

from .environments import ENVIRONMENTS, make
from .spaces import GYMNASIUM
from .vector_env import BatchedVectorEnv, VectorEnv, package_of


def full_name(name: str) -> str:
    """Return the registered name of one of stairwell's environments for its short name, such as `corridor`."""
    return SHORT_NAMES.get(name.lower(), name)


def make_vec_env(
    name: str, options: Mapping[str, Any], indices: range, seed: int, action_masks: bool = True
) -> VectorEnv:
    """Return a vector environment by name. The options are the fields of its Config, or those of gymnasium's `make`.

    `action_masks`: use the masks of an environment that gives them."""
    name = full_name(name)
    if name in ENVIRONMENTS:
        try:
            return BatchedVectorEnv(make(name, indices, seed, **options))
        except ValueError as error:
            raise UserError(str(error)) from None
    try:
        from .gymnasium_vector_env import make_gymnasium_env
    except MissingPackage:
        message, package = "gymnasium 1.1 or newer is not installed", package_of(name)
        raise MissingPackage(message, GYMNASIUM, *([package] if package else [])) from None

    return make_gymnasium_env(name, options, indices, seed, action_masks)


SHORT_NAMES = {spec.title.lower().replace(" ", "-"): name for name, spec in ENVIRONMENTS.items()} | {
    "maze": "stairwell/MazeNavigation-v0",
    "maze-easy": "stairwell/MazeNavigationEasy-v0",
    "t-maze": "stairwell/PassiveTMaze-v0",
}
