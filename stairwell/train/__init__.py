"""Training: one loop over objectives, batch sources and validations, with checkpoints, curricula and processes."""

from stairwell.train.config import PairTrainConfig, StreamTrainConfig, TrainConfig
from stairwell.train.loop import Callback, Diverged, Interrupted, NotSaved, Trainer
from stairwell.train.objective import Objective, Outcome, Phase, Validation
from stairwell.train.streams import CrossEntropy, evaluate, stream_trainer
from stairwell.train.training_folder import TrainingFolder

__all__ = [
    "Callback",
    "CrossEntropy",
    "Diverged",
    "Interrupted",
    "NotSaved",
    "Objective",
    "Outcome",
    "PairTrainConfig",
    "Phase",
    "StreamTrainConfig",
    "TrainConfig",
    "Trainer",
    "TrainingFolder",
    "Validation",
    "evaluate",
    "stream_trainer",
]
