"""Training config of agents: that of every run, and the fields of reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stairwell.errors import UserError
from stairwell.train.config import TrainConfig

MAX_COEFFICIENT = 1e6  # larger ones are typing errors
PPO_ONLY = ("clip_range", "epochs", "minibatches")


@dataclass(frozen=True, kw_only=True)
class AgentTrainConfig(TrainConfig):
    """Options of training agents."""

    segment: int = 64
    "Rollout length: frames per environment and step (T)."
    valid_batch: int = 32
    "Number of environments of a validation."
    algorithm: Literal["a2c", "ppo"] = "a2c"
    "Learning algorithm. PPO uses each rollout several times, A2C once."
    gamma: float = 0.99
    "Discount factor (gamma)."
    gae_lambda: float = 1.0
    "Lambda of generalized advantage estimation; 1 for discounted returns, 0 for one-step advantages."
    ent_coef: float = 0.01
    "Entropy coefficient."
    vf_coef: float = 0.5
    "Value function coefficient."
    clip_range: float = 0.2
    "PPO clip range of the probability ratio."
    epochs: int = 4
    "PPO epochs per rollout."
    minibatches: int = 4
    "PPO minibatches per epoch, each of whole environments."
    bptt_length: int = 0
    "Number of frames after which backpropagation through time is truncated within a segment; 0 for the whole segment."
    bptt_state: Literal["stored", "recomputed"] = "stored"
    "State at the start of each BPTT window: stored in the rollout, or recomputed from the start of the segment."
    normalize_advantage: bool = False
    "Normalize the advantages of a rollout. With several processes each one normalizes those of its own environments."
    normalize_rewards: bool = True
    "Divide rewards by the running standard deviation of the discounted return."

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(1, "segment", "valid_batch")
        for name in ("gamma", "gae_lambda"):
            self._check(name, 0 <= getattr(self, name) <= 1, "in [0, 1]")
        for name in ("ent_coef", "vf_coef", "bptt_length"):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        self._check("clip_range", self.clip_range > 0, "above 0")
        for name in ("clip_range", "ent_coef", "vf_coef"):
            self._check(name, getattr(self, name) <= MAX_COEFFICIENT, f"at most {MAX_COEFFICIENT:g}")
        for name in ("epochs", "minibatches"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        if self.bptt_length and self.segment % self.bptt_length:
            raise UserError(
                f"train.bptt_length {self.bptt_length} does not divide the segment of {self.segment} frames"
            )
        if self.bptt_state == "recomputed" and not self.bptt_length:
            raise UserError("train.bptt_state needs train.bptt_length; set it, for example --train.bptt_length 16")
        for name in PPO_ONLY if self.algorithm == "a2c" else ():
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise UserError(f"train.{name} has no effect with A2C; choose --train.algorithm ppo")
        if self.algorithm == "ppo" and self.batch % self.minibatches:
            raise UserError(f"train.minibatches {self.minibatches} does not divide the batch of {self.batch}")

    def segment_at(self, step: int) -> int:
        return self.segment

    @property
    def optimizer_steps_per_rollout(self) -> int:
        return self.epochs * self.minibatches if self.algorithm == "ppo" else 1

    def steps_of_frames(self, frames: int) -> int:
        """Return the optimizer steps of the rollouts that have at least `frames` frames together."""
        return -(-frames // (self.batch * self.segment)) * self.optimizer_steps_per_rollout
