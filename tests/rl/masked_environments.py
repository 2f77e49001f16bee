"""gymnasium environments with action masks, for tests: only `step` knows which actions were allowed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class MaskedChoice(gymnasium.Env[Any, Any]):
    """Observe a number; the reward is 1 for the largest allowed action. An action that is not allowed raises."""

    def __init__(self, actions: int = 5, by_method: bool = False, steps: int = 4) -> None:
        self.observation_space, self.action_space = spaces.Discrete(3), spaces.Discrete(actions)
        self.by_method, self.steps = by_method, steps
        if by_method:
            self.action_masks = lambda: self.mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return 0, self.next_mask()

    def step(self, action: int) -> Any:
        assert self.mask[action], f"action {action} is not allowed by {self.mask}"
        reward = float(action == np.flatnonzero(self.mask)[-1])
        self.t += 1
        return self.t % 3, reward, self.t == self.steps, False, self.next_mask()

    def next_mask(self) -> dict[str, Any]:
        n = int(self.action_space.n)
        self.mask = np.zeros(n, dtype=np.int8)
        self.mask[self.np_random.choice(n, size=2, replace=False)] = 1
        return {} if self.by_method else {"action_mask": self.mask}


class MaskedPair(gymnasium.Env[Any, Any]):
    """Two integers per action, with one mask for each."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), self.next_mask()

    def step(self, action: Any) -> Any:
        assert all(mask[choice] for mask, choice in zip(self.masks, action)), (self.masks, action)
        self.t += 1
        return np.zeros(2, np.float32), 1.0, False, self.t == 5, self.next_mask()

    def next_mask(self) -> dict[str, Any]:
        first, second = self.np_random.integers(2), self.np_random.integers(3)
        self.masks = (np.arange(2) == first, np.arange(3) != second)
        return {"action_mask": np.concatenate(self.masks)}


class NothingAllowed(MaskedChoice):
    def next_mask(self) -> dict[str, Any]:
        self.mask = np.zeros(int(self.action_space.n), dtype=np.int8)
        return {"action_mask": self.mask}


class WrongMask(MaskedChoice):
    def next_mask(self) -> dict[str, Any]:
        super().next_mask()
        return {"action_mask": self.mask[:-1]}


class MethodOfAWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that gives the mask, as sb3-contrib's ActionMasker does; the environment in it gives none."""

    def __init__(self) -> None:
        super().__init__(MaskedChoice(by_method=True))
        del self.env.unwrapped.action_masks

    def action_masks(self) -> Any:
        return self.env.unwrapped.mask


for name, env in {
    "MaskedChoice-v0": MaskedChoice,
    "MaskedPair-v0": MaskedPair,
    "NothingAllowed-v0": NothingAllowed,
    "WrongMask-v0": WrongMask,
    "MethodOfAWrapper-v0": MethodOfAWrapper,
}.items():
    gymnasium.register(name, env)
