"""How long, how fast and on what part of the data a model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stairwell.train.curriculum import Curriculum


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 1000
    "updates"
    batch: int = 32
    "parallel streams (B)"
    segment: int = 64
    "tokens of each stream in one update: the length of backpropagation through time (T)"
    segment_warmup: int = 0
    "segment during the first half of the updates, usually shorter; 0: the same as segment"
    learning_rate: float = 1e-3
    "learning rate of Adam"
    warmup: int = 100
    "updates over which the learning rate rises from 0"
    decay: Literal["none", "cosine"] = "none"
    "how the learning rate falls after the warm-up"
    clip: float = 1.0
    "largest norm of the gradient; larger ones are scaled down; 0: no limit"
    accumulate: int = 1
    "parts that the rows are taken through one after the other, to save memory; the result is the same"
    finetune_steps: int = 0
    "updates of a last phase with a smaller learning rate"
    finetune_rate: float = 0.1
    "learning rate of that phase, as a part of learning_rate"
    finetune_task: str = ""
    "task options that change in that phase, such as end_of_line=true"
    curriculum: str = ""
    "stages of growing difficulty, such as length=8..100 or variables=1,statements=10;variables=2,statements=20"
    curriculum_accuracy: float = 96.0
    "accuracy in percent, over the last 20 updates, at which the next stage begins"
    stop_when_mastered: bool = False
    "end the training once the curriculum's last stage is mastered"
    precision: Literal["float32", "bf16"] = "float32"
    "bf16: autocast of matrix products, for devices where that is faster"
    seed: int = 0
    "fixes weights, data order and dropout"
    validate_every: int = 500
    "updates between validations; 0: only at the end"
    valid_rows: int = 32
    "parallel rows of a validation; published numbers use one row, or rows cut at document starts"
    valid_tokens: int = 0
    "about how many tokens of the validation split to read during training; 0: all of it"
    patience: int = 0
    "validations without improvement after which training stops; 0: never"
    checkpoint_every: int = 500
    "updates between checkpoints; 0: only at the end and when interrupted"
    log_every: int = 50
    "updates between two lines of metrics"

    def __post_init__(self) -> None:
        for name in ("batch", "segment", "accumulate", "log_every", "valid_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name} must be at least 1, not {getattr(self, name)}")
        counts = (
            "steps",
            "finetune_steps",
            "warmup",
            "segment_warmup",
            "validate_every",
            "checkpoint_every",
            "patience",
            "valid_tokens",
        )
        for name in (*counts, "clip", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"train.{name} must be at least 0, not {getattr(self, name)}")
        if self.batch % self.accumulate:
            raise ValueError(f"train.accumulate {self.accumulate} does not divide the batch of {self.batch} rows")
        for name in ("learning_rate", "finetune_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"train.{name} must be above 0, not {getattr(self, name)}")
        if not 0 <= self.curriculum_accuracy <= 100:
            raise ValueError(f"train.curriculum_accuracy must be in 0..100 percent, not {self.curriculum_accuracy}")
        Curriculum.parse(self.curriculum)

    @property
    def total(self) -> int:
        return self.steps + self.finetune_steps

    def rate(self, step: int) -> float:
        """The learning rate of an update, counted from 0."""
        if step >= self.steps:
            return self.learning_rate * self.finetune_rate
        rate = self.learning_rate * min(1.0, (step + 1) / max(self.warmup, 1))
        if self.decay == "cosine" and step >= self.warmup:
            done = (step - self.warmup) / max(self.steps - self.warmup, 1)
            rate *= 0.5 * (1 + math.cos(math.pi * done))
        return rate

    def length(self, step: int) -> int:
        """The segment of an update."""
        return self.segment_warmup if self.segment_warmup and step < self.steps // 2 else self.segment
