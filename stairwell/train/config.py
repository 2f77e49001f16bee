"""Training configs: what every run has, and the options of streams and of pairs. Agents: `rl/train_config.py`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from stairwell.configs import Config
from stairwell.errors import UserError
from stairwell.train.curriculum import Curriculum
from stairwell.train.size_schedule import SizeSchedule

Decay = Literal["none", "cosine", "inverse-sqrt"]
# The options of each optimizer. Those of the others must keep their defaults.
OPTIMIZER_OPTIONS = {"adam": ("beta1", "beta2"), "adamw": ("beta1", "beta2"), "rmsprop": ("alpha", "momentum")}

MAX_SEED = 1 << 63  # exclusive; the limit of torch's generators
# Larger values are typing errors. Products with these stay within float32.
MAXIMA = {"learning_rate": 1e6, "weight_decay": 1e6, "eps": 1e6, "max_grad_norm": 1e30, "finetune_lr_factor": 1.0}
MIN_EPS = 1e-30  # smaller values underflow in float32
# Options that have an effect only if the option on the left is set.
DEPENDENT_OPTIONS = {
    "finetune_steps": ("finetune_lr_factor",),
    "average": ("average_of",),
    "validate_every": ("patience", "average"),
    "state_noise": ("noise_every",),
    "curriculum": ("curriculum_accuracy", "stop_when_mastered"),
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """Options that every family reads: optimizer, schedules, validation and checkpoints."""

    steps: int = 1000
    "Optimizer steps."
    batch: int = 32
    "Batch size: the number of parallel streams, pairs or environments (B)."
    learning_rate: float = 1e-3
    "Maximum learning rate."
    warmup: int = 100
    "Steps of linear learning rate warm-up from 0."
    decay: Decay = "none"
    "Learning rate decay after the warm-up."
    optimizer: Literal["adam", "adamw", "rmsprop"] = "adam"
    "Optimizer. AdamW decouples weight decay from the gradient."
    beta1: float = 0.9
    "Adam, AdamW: decay of the running average of the gradient."
    beta2: float = 0.999
    "Adam, AdamW: decay of the running average of the squared gradient."
    alpha: float = 0.99
    "RMSprop: decay of the running average of the squared gradient."
    momentum: float = 0.0
    "RMSprop: momentum."
    eps: float = 1e-8
    "Constant added to the denominator of the optimizer."
    weight_decay: float = 0.0
    "Weight decay of all parameters."
    max_grad_norm: float = 1.0
    "Maximum gradient norm; larger gradients are scaled down. 0 for no limit."
    accumulate: int = 1
    "Gradient accumulation: number of parts of a batch that are processed one after the other to save memory."
    finetune_steps: int = 0
    "Steps of a final phase with a smaller learning rate."
    finetune_lr_factor: float = 0.1
    "Learning rate of the final phase as a fraction of learning_rate. Cosine decay ends at it."
    precision: Literal["float32", "bf16"] = "float32"
    "Precision. bf16 runs matrix products under autocast."
    kv_precision: Literal["float32", "bf16"] = "float32"
    "How Feedback stores keys and values of past tokens while it trains. bf16 is faster with a long memory."
    average: int = 0
    "Number of validated models to average at the end; the average is kept if it is better. 0 for none."
    average_of: Literal["last", "best"] = "last"
    "Models to average: those of the last validations, or of the best."
    seed: int = 0
    "Seed of the initial parameters, the data order and dropout."
    validate_every: int = 500
    "Steps between validations; 0 for one at the end only."
    patience: int = 0
    "Early stopping: number of validations without improvement after which training stops; 0 for never."
    stopping_threshold: float | None = None
    "Early stopping: value of the validation's primary metric at which training stops. Fine-tuning follows."
    checkpoint_every: int = 500
    "Steps between checkpoints; 0 for those at the end and on interruption only."
    log_every: int = 50
    "Steps between lines of metrics."

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(1, "batch", "accumulate", "log_every")
        self._check_range(0, "steps", "finetune_steps", "warmup", "validate_every", "checkpoint_every", "patience")
        self._check_range(0, "average", "max_grad_norm", "seed", "weight_decay")
        self._check("seed", self.seed < MAX_SEED, "below 2^63")
        for name in ("learning_rate", "finetune_lr_factor", "eps"):
            self._check(name, getattr(self, name) > 0, "above 0")
        for name, maximum in MAXIMA.items():
            self._check(name, getattr(self, name) <= maximum, f"at most {maximum:g}")
        self._check("eps", self.eps >= MIN_EPS, f"at least {MIN_EPS:g}")
        for name in ("beta1", "beta2", "alpha", "momentum"):
            self._check(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        if self.batch % self.accumulate:
            raise UserError(f"train.accumulate {self.accumulate} does not divide train.batch {self.batch}")
        for optimizer, names in OPTIMIZER_OPTIONS.items():
            for name in set(names) - set(OPTIMIZER_OPTIONS[self.optimizer]):
                self._check_default(name, f"it is for train.optimizer {optimizer}")
        for required, dependents in DEPENDENT_OPTIONS.items():
            if not getattr(self, required, True):
                for name in dependents:
                    self._check_default(name, f"set train.{required} too, or leave it out")

    def _check(self, name: str, valid: bool, requirement: str) -> None:
        if not valid:
            raise UserError(f"train.{name} must be {requirement}, not {getattr(self, name)}")

    def _check_range(self, minimum: int, *names: str) -> None:
        for name in names:
            self._check(name, getattr(self, name) >= minimum, f"at least {minimum}")

    def _check_default(self, name: str, advice: str) -> None:
        """Reject an option that is set but has no effect."""
        if getattr(self, name) != type(self).__dataclass_fields__[name].default:
            raise UserError(f"train.{name} {getattr(self, name)} has no effect; {advice}")

    def without_dependents(self, options: Mapping[str, str]) -> Self:
        """Return the config with defaults for what has no effect once `options` are set, except for the options."""
        fields = type(self).__dataclass_fields__
        unset = [name for name, text in options.items() if text.strip() in ("", "0")]
        names = {name for required in unset for name in DEPENDENT_OPTIONS.get(required, ()) if name in fields}
        if "validate_every" in unset and "average" not in options:
            names.add("average_of")
        defaults: dict[str, Any] = {name: fields[name].default for name in names - set(options)}
        return dataclasses.replace(self, **defaults)

    @property
    def total_steps(self) -> int:
        return self.steps + self.finetune_steps

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0. It never rises after the warm-up."""
        if step < self.steps:
            return self.learning_rate * self._lr_factor(step)
        last = self._lr_factor(self.steps - 1) if self.steps else 1.0
        return self.learning_rate * min(self.finetune_lr_factor, last)

    def _lr_factor(self, step: int) -> float:
        """Return the learning rate before the final phase as a fraction of its maximum."""
        if step < self.warmup or self.decay == "none":
            return min(1.0, (step + 1) / max(self.warmup, 1))
        if self.decay == "inverse-sqrt":
            warmup = max(self.warmup, 1)
            return math.sqrt(warmup / max(step + 1, warmup))
        lowest = self.finetune_lr_factor if self.finetune_steps else 0.0
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return lowest + (1 - lowest) * (0.5 * (1 + math.cos(math.pi * done)))

    # What the training loop asks of every config. A family without segments or a curriculum keeps these.

    def segment_at(self, step: int) -> int:
        """Return the segment of a step in tokens; 0 if each batch has its own length."""
        return 0

    def make_curriculum(self) -> Curriculum:
        return Curriculum([])

    def make_size_schedule(self) -> SizeSchedule:
        return SizeSchedule([])


@dataclass(frozen=True, kw_only=True)
class StreamTrainConfig(TrainConfig):
    """Options of training on streams of tokens."""

    segment: int = 64
    "Tokens per stream and step: the length of truncated backpropagation through time (T)."
    segment_warmup: int = 0
    "Segment during the first half of the steps, usually a shorter one; 0 for the same as segment."
    finetune_task: str = ""
    "Task options that change in the final phase, such as end_of_line=true."
    curriculum: str = ""
    "Stages of increasing difficulty: length=8..100 grows from 8 to 100; 'variables=1;variables=2' (in quotes) has two."
    curriculum_accuracy: float = 96.0
    "Accuracy in percent, over 20 steps, at which the next stage starts."
    stop_when_mastered: bool = False
    "Early stopping: stop when the last stage of the curriculum reaches curriculum_accuracy."
    size_schedule: str = ""
    "Smaller sizes of the core at first, each up to a step, such as 1000:passes=1;3000:passes=2."
    state_noise: float = 0.0
    "Standard deviation of noise added to the memory in training, relative to the memory's own size; 0 for none."
    noise_every: int = 8
    "Tokens between two additions of noise. Gradients still flow through the whole segment."
    valid_batch: int = 32
    "Batch size of validations. Published numbers use 1, or streams split at document boundaries."
    valid_tokens: int = 0
    "Approximate number of tokens of the validation split to read during training; 0 for all."

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(1, "segment", "noise_every", "valid_batch")
        self._check_range(0, "segment_warmup", "state_noise", "valid_tokens")
        self._check("state_noise", self.state_noise <= 1e6, "at most 1e+06")
        self._check("curriculum_accuracy", 0 <= self.curriculum_accuracy <= 100, "in 0..100 percent")
        self.make_curriculum()
        self.make_size_schedule()

    def segment_at(self, step: int) -> int:
        return self.segment_warmup if self.segment_warmup and step < self.steps // 2 else self.segment

    def make_curriculum(self) -> Curriculum:
        return Curriculum.parse(self.curriculum, self.curriculum_accuracy, self.stop_when_mastered)

    def make_size_schedule(self) -> SizeSchedule:
        return SizeSchedule.parse(self.size_schedule)


@dataclass(frozen=True, kw_only=True)
class PairTrainConfig(TrainConfig):
    """Options of training on pairs of a source and a target sequence."""

    batch: int = 512
    "Maximum number of pairs per step."
    batch_tokens: int = 4096
    "Maximum number of source tokens, and of target tokens, per step with padding; at least the longest sequence."
    label_smoothing: float = 0.0
    "Label smoothing: the probability that is spread over the whole vocabulary."
    finetune_task: str = ""
    "Task options that change in the final phase."

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(1, "batch_tokens")
        self._check("label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)")
