"""Training: one loop over objectives, feeds and validations, with checkpoints, curricula and several processes."""

from stairwell.train.config import TrainConfig
from stairwell.train.loop import Diverged, Interrupted, NotSaved, Trainer, Watch
from stairwell.train.objective import BatchSource, Objective, Outcome, Phase, Validation
from stairwell.train.run import Run
from stairwell.train.streams import CrossEntropy, evaluate, stream_trainer

__all__ = [
    "BatchSource",
    "CrossEntropy",
    "Diverged",
    "Interrupted",
    "NotSaved",
    "Objective",
    "Outcome",
    "Phase",
    "Run",
    "TrainConfig",
    "Trainer",
    "Validation",
    "Watch",
    "evaluate",
    "stream_trainer",
]
