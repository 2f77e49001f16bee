"""How an agent is trained: what every training has, and what learning from rewards adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stairwell.errors import UserError
from stairwell.train.config import TrainConfig

LARGEST_WEIGHT = 1e6  # of a part of the loss; more is a typing error
PPO_ONLY = ("clip_range", "epochs", "minibatches")


@dataclass(frozen=True, kw_only=True)
class AgentTrainConfig(TrainConfig):
    learner: Literal["a2c", "ppo"] = "a2c"
    "a2c learns from each frame once, ppo several times"
    gamma: float = 0.99
    "how much a reward is worth one frame earlier"
    gae_lambda: float = 1.0
    "lambda of generalized advantages: 1 sums rewards up to the segment's end, 0 looks one frame ahead"
    ent_coef: float = 0.01
    "how strongly the policy is kept undecided"
    vf_coef: float = 0.5
    "weight of the value's squared error"
    clip_range: float = 0.2
    "ppo: how far the probability of an action may move from what it was at collection"
    epochs: int = 4
    "ppo: how many times a rollout is gone over"
    minibatches: int = 4
    "ppo: updates an epoch, each from its own part of the rows"
    window: int = 0
    "frames after which gradients through time stop within a segment; 0: not at all"
    window_memory: Literal["stored", "recomputed"] = "stored"
    "what a window begins from: the memory kept at collection, or made anew from the segment's start"
    normalize_advantage: bool = False
    "advantages of a rollout to mean 0 and deviation 1"
    normalize_rewards: bool = True
    "divide rewards by the running standard deviation of the discounted return"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "gae_lambda"):
            self._check(name, 0 <= getattr(self, name) <= 1, "in [0, 1]")
        for name in ("ent_coef", "vf_coef", "window"):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        self._check("clip_range", self.clip_range > 0, "above 0")
        for name in ("clip_range", "ent_coef", "vf_coef"):
            self._check(name, getattr(self, name) <= LARGEST_WEIGHT, f"at most {LARGEST_WEIGHT:g}")
        for name in ("epochs", "minibatches"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for length in filter(None, (self.segment, self.segment_warmup)):
            if self.window and length % self.window:
                raise UserError(f"train.window {self.window} does not divide the segment of {length} frames")
        if self.window_memory == "recomputed" and not self.window:
            raise UserError("train.window_memory is read with train.window only; set it, such as --train.window 16")
        for name in PPO_ONLY if self.learner == "a2c" else ():
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise UserError(f"train.{name} is not read with train.learner a2c; choose --train.learner ppo")
        if self.learner == "ppo" and self.batch % self.minibatches:
            raise UserError(f"train.minibatches {self.minibatches} does not divide the batch of {self.batch} rows")

    @property
    def reads(self) -> int:
        """How many updates are made from one rollout."""
        return self.epochs * self.minibatches if self.learner == "ppo" else 1
