"""A custom environment: repeat at the end the digit that was observed at the start.

    stairwell train rl/feedback --task.env recall:Recall-v0 --task.options length=10 --out runs/recall
    stairwell eval runs/recall
    stairwell play runs/recall --episodes 3

Run the commands in the directory of this file.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Discrete

BLANK, QUESTION = 4, 5  # observations besides the digits 0 to 3


class Recall(gymnasium.Env[int, int]):
    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.observation_space = Discrete(6)
        self.action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.digit, self.steps = int(self.np_random.integers(4)), 0
        return self.digit, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        terminated = self.steps > self.length
        reward = float(terminated and action == self.digit)
        return (QUESTION if self.steps == self.length else BLANK), reward, terminated, False, {}


gymnasium.register("Recall-v0", entry_point=Recall)
