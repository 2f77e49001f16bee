"""Action masks of gymnasium environments: which actions are allowed now.

An environment gives its mask in `info["action_mask"]`, as gymnasium's own environments do, or by a method
`action_masks()`, as sb3-contrib expects. A mask has one flag per value of a discrete action; for several integers they
are concatenated, or a tuple with one array per integer. Letters: B environments, P flags of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .environments import Array
from .flatten import leaf_nvec
from .spaces import Discrete, MultiDiscrete, Space
from .vector_env import BrokenEnvironment

INFO, METHOD = "action_mask", "action_masks"


def mask_of(env: Any, info: Mapping[str, Any], nvec: tuple[int, ...], done: bool) -> Array | None:
    """Return the mask of one environment, (P,) bool; None if it gives none. The method may be that of a wrapper, such
    as sb3-contrib's ActionMasker."""
    if INFO in info:
        given = info[INFO]
    elif env.has_wrapper_attr(METHOD):
        given = env.get_wrapper_attr(METHOD)()
    else:
        return None
    return to_mask(given, nvec, done)


def to_mask(given: Any, nvec: tuple[int, ...], done: bool) -> Array:
    """Return a mask as one array (P,) bool. At the end of an episode, where no action follows, all are allowed."""
    size = sum(nvec)
    if done:
        return np.ones(size, dtype=bool)
    parts = given if isinstance(given, tuple | list) else [given]
    mask = np.concatenate([np.asarray(part).ravel() for part in parts])
    if mask.shape != (size,) or mask.dtype.kind not in "iub" or not np.isin(mask, (0, 1)).all():
        raise BrokenEnvironment(
            f"the action mask is {mask.dtype} of shape {mask.shape}; it must have {size} flags, one per value of an "
            "action"
        )
    mask = mask.astype(bool)
    if not all(part.any() for part in np.split(mask, np.cumsum(nvec)[:-1])):
        raise BrokenEnvironment("the action mask allows no action")
    return mask


def mask_nvec(space: Space) -> tuple[int, ...]:
    """Return the number of values of each integer of an action; empty for continuous actions, which have no mask."""
    return leaf_nvec(space) if isinstance(space, Discrete | MultiDiscrete) else ()


def masks_of(infos: Mapping[str, Any], num_envs: int, nvec: tuple[int, ...]) -> tuple[Array, Array] | None:
    """Return the masks (B, P) in the infos of a vector environment, and which environments have given one (B,)."""
    if not nvec or INFO not in infos:
        return None
    masks = np.asarray(infos[INFO])
    given = np.asarray(infos.get(f"_{INFO}", np.ones(num_envs, dtype=bool)))
    if masks.shape != (num_envs, sum(nvec)):
        raise BrokenEnvironment(
            f"the action masks have shape {masks.shape}; they must be ({num_envs}, {sum(nvec)}), one flag per value of "
            "an action"
        )
    return masks.astype(np.uint8), given
