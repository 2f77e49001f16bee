"""How long, how fast and on what part of the data a model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stairwell.configs import Config
from stairwell.errors import UserError
from stairwell.train.curriculum import Curriculum
from stairwell.train.size_schedule import SizeSchedule

Decay = Literal["none", "cosine", "inverse-sqrt"]
# Which options an optimizer reads; those of the others must be left as they are.
READ = {"adam": ("beta1", "beta2"), "adamw": ("beta1", "beta2"), "rmsprop": ("alpha", "momentum")}

LARGEST_SEED = 1 << 63  # torch's generators take no more
# The largest values that are not typing errors. Products with them stay far inside float32.
LARGEST = {
    "learning_rate": 1e6,
    "weight_decay": 1e6,
    "eps": 1e6,
    "max_grad_norm": 1e30,
    "finetune_rate": 1e6,
    "state_noise": 1e6,
}
SMALLEST_EPS = 1e-30  # what float32 can still add


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    steps: int = 1000
    "updates of the parameters"
    batch: int = 32
    "batch size: rows that are read in parallel (B)"
    segment: int = 64
    "tokens of each row in one update: the length of backpropagation through time (T)"
    segment_warmup: int = 0
    "segment during the first half of the updates, usually shorter; 0: the same as segment"
    learning_rate: float = 1e-3
    "largest learning rate"
    warmup: int = 100
    "updates over which the learning rate rises from 0"
    decay: Decay = "none"
    "how the learning rate falls after the warm-up"
    optimizer: Literal["adam", "adamw", "rmsprop"] = "adam"
    "adamw takes weight decay apart from the gradient"
    beta1: float = 0.9
    "adam, adamw: how slowly the average of the gradient changes"
    beta2: float = 0.999
    "adam, adamw: how slowly the average of its square changes"
    alpha: float = 0.99
    "rmsprop: how slowly the average of the gradient's square changes"
    momentum: float = 0.0
    "rmsprop: momentum of the updates"
    eps: float = 1e-8
    "added to the root of that average"
    weight_decay: float = 0.0
    "how strongly all parameters are pulled towards 0"
    max_grad_norm: float = 1.0
    "largest norm of the gradient; larger ones are scaled down; 0: no limit"
    accumulate: int = 1
    "gradient accumulation: take the rows through in so many parts, to save memory; the result is the same"
    finetune_steps: int = 0
    "steps of a last phase with a smaller learning rate"
    finetune_rate: float = 0.1
    "learning rate of that phase, as a part of learning_rate; cosine decay ends at it"
    finetune_task: str = ""
    "task options that change in that phase, such as end_of_line=true"
    curriculum: str = ""
    "stages of growing difficulty, such as length=8..100 or variables=1,statements=10;variables=2,statements=20"
    curriculum_accuracy: float = 96.0
    "accuracy in percent, over the last 20 updates, at which the next stage begins"
    size_schedule: str = ""
    "sizes of the core at first, each until an update, such as 1000:passes=1;3000:passes=2; then those of the core"
    stop_when_mastered: bool = False
    "end the training once the curriculum's last stage is mastered"
    state_noise: float = 0.0
    "noise on the memory of a stream while it is trained, as a part of the memory's size: 0.1; 0: none"
    noise_every: int = 8
    "tokens after which that noise is drawn anew; gradients still go through the whole segment"
    precision: Literal["float32", "bf16"] = "float32"
    "bf16: autocast of matrix products, for devices where that is faster"
    average: int = 0
    "how many of the models at validations are averaged at the end and kept if the average is better; 0: none"
    average_of: Literal["last", "best"] = "last"
    "which ones: the last validations, or the best"
    seed: int = 0
    "fixes initial parameters, data order and dropout"
    validate_every: int = 500
    "updates between validations; 0: only at the end"
    valid_batch: int = 32
    "parallel rows of a validation; published numbers use one row, or rows cut at document starts"
    valid_tokens: int = 0
    "about how many tokens of the validation split to read during training; 0: all of it"
    patience: int = 0
    "validations without improvement after which training stops; 0: never"
    goal: float | None = None
    "stop once a validation's primary metric, such as accuracy in percent, is as good as this; fine-tuning follows"
    checkpoint_every: int = 500
    "updates between checkpoints; 0: only at the end and when interrupted"
    log_every: int = 50
    "updates between two lines of metrics"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch", "segment", "accumulate", "log_every", "valid_batch", "noise_every"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        counts = ("steps", "finetune_steps", "warmup", "segment_warmup", "validate_every", "checkpoint_every")
        for name in (
            *counts,
            "patience",
            "average",
            "valid_tokens",
            "max_grad_norm",
            "seed",
            "weight_decay",
            "state_noise",
        ):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        self._check("seed", self.seed < LARGEST_SEED, "below 2^63")
        for name in ("learning_rate", "finetune_rate", "eps"):
            self._check(name, getattr(self, name) > 0, "above 0")
        for name, largest in LARGEST.items():
            self._check(name, getattr(self, name) <= largest, f"at most {largest:g}")
        self._check("eps", self.eps >= SMALLEST_EPS, f"at least {SMALLEST_EPS:g}")
        for name in ("beta1", "beta2", "alpha", "momentum"):
            self._check(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        self._check("curriculum_accuracy", 0 <= self.curriculum_accuracy <= 100, "in 0..100 percent")
        if self.batch % self.accumulate:
            raise UserError(f"train.accumulate {self.accumulate} does not divide the batch of {self.batch} rows")
        for name in {name for names in READ.values() for name in names} - {*READ[self.optimizer]}:
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise UserError(f"train.{name} is not read with train.optimizer {self.optimizer}")
        for name in ("state_noise", "size_schedule"):
            if getattr(self, name) and type(self) is not TrainConfig:
                raise UserError(f"train.{name} is for tasks that are streams of tokens")
        if not self.state_noise and self.noise_every != type(self).__dataclass_fields__["noise_every"].default:
            raise UserError("train.noise_every is read with train.state_noise only; set it, such as 0.1")
        Curriculum.parse(self.curriculum)
        SizeSchedule.parse(self.size_schedule)

    def _check(self, name: str, right: bool, wanted: str) -> None:
        if not right:
            raise UserError(f"train.{name} must be {wanted}, not {getattr(self, name)}")

    @property
    def total(self) -> int:
        return self.steps + self.finetune_steps

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0. It never rises again after the warm-up."""
        if step >= self.steps:
            return self.learning_rate * self._finetune_part
        rate = self.learning_rate * min(1.0, (step + 1) / max(self.warmup, 1))
        if step < self.warmup or self.decay == "none":
            return rate
        if self.decay == "inverse-sqrt":
            return rate * self._root(step)
        lowest = self._finetune_part if self.finetune_steps else 0.0
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return rate * (lowest + (1 - lowest) * (0.5 * (1 + math.cos(math.pi * done))))

    @property
    def _finetune_part(self) -> float:
        """Of the largest learning rate in fine-tuning: cosine decay ends at it, the inverse root may be below it."""
        if self.decay == "none":
            return self.finetune_rate
        return min(self.finetune_rate, self._root(self.steps - 1) if self.decay == "inverse-sqrt" else 1.0)

    def _root(self, step: int) -> float:
        warmup = max(self.warmup, 1)
        return math.sqrt(warmup / max(step + 1, warmup))

    def length(self, step: int) -> int:
        """The segment of an update."""
        return self.segment_warmup if self.segment_warmup and step < self.steps // 2 else self.segment


@dataclass(frozen=True, kw_only=True)
class PairTrainConfig(TrainConfig):
    """Of pairs of sources and targets, which have lengths of their own."""

    batch: int = 512
    "batch size: the most pairs of an update"
    batch_tokens: int = 4096
    "the most tokens of a step's sources, and of its targets, padding included; at least the longest pair's"
    label_smoothing: float = 0.0
    "the share of a target's probability that is spread over all symbols"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("batch_tokens", self.batch_tokens >= 1, "at least 1")
        self._check("label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)")
