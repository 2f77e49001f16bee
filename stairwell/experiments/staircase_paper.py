"""The tables and figures of Ju et al. 2021, "Staircase Attention for Recurrent Processing of Sequences".

Table 1 has each model's best seed by validation, tables 6 and 7 mean and deviation over the seeds; ours show both.
The hyperparameters are those of tables 4 and 5 and of appendix A.
"""

from __future__ import annotations

from stairwell.experiments.measures import Score
from stairwell.experiments.setting import Setting
from stairwell.experiments.study import STAIRCASE, Maker, Row, Scale, Study
from stairwell.tasks import random_walk
from stairwell.train_config import TrainConfig

ERRORS = (Score("valid error (%)", "error", "valid"), Score("test error (%)", "error"))
TEST_ERROR = ERRORS[1:]
GLOBAL_STARTS = (
    "Global Cached Staircase keeps everything since its row's start, so it alone begins each episode with an empty "
    "memory; the others are told by the reset symbol alone."
)
SPAN_NOT_PRINTED = "The paper does not print Transformer-XL's span; ours holds a whole episode."

RANDOM_WALK: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="random-walk", task=random_walk.Config(length=100), layers=2, width=64, heads=1,
        train=TrainConfig(
            steps=6000, batch=32, segment=32, learning_rate=1e-3, warmup=300, decay="cosine",
            curriculum="length=8..100", curriculum_accuracy=92, validate_every=500, checkpoint_every=500, valid_rows=50,
        ),
    ),
    "paper": Setting(
        task_name="random-walk", task=random_walk.Config(length=400, train_episodes=10_000),
        layers=4, width=256, heads=4, dropout=0.2,
        train=TrainConfig(
            steps=50_000, batch=512, segment=128, learning_rate=1e-4, warmup=1000, clip=0.1,
            validate_every=1000, checkpoint_every=1000, valid_rows=50,
        ),
    ),
}  # fmt: skip
RANDOM_WALK_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: episodes of 100 actions instead of 400, models of 0.1 million weights instead of 3.2, new "
        "episodes without end instead of 10,000, and for every model the same curriculum over the length (8 to 100, "
        "the next at 92% accuracy), without which none of them learned anything in minutes.",
        SPAN_NOT_PRINTED,
        GLOBAL_STARTS,
    ),
    "paper": (
        "The number of training episodes is not printed; 10,000 as in the first paper.",
        SPAN_NOT_PRINTED,
        GLOBAL_STARTS,
    ),
}


def table1_random_walk(scale: Scale) -> Study:
    """Table 1, random walk, and the Global Cached Staircase of its appendix."""
    setting = RANDOM_WALK[scale]
    small = scale == "laptop"
    fresh = {"fresh": True}
    rows = (
        Row("LSTM", setting.experiment("lstm"), ("0.6",)),
        Row("Transformer-XL", setting.experiment("transformer-xl", memory=101 if small else 512), ("84.1",)),
        Row("Feedback", setting.experiment("feedback", memory=16 if small else 64), ("0.1",)),
        Row("Staircase", setting.experiment("staircase", chunk=8, passes=2 if small else 8), ("0.1",)),
        Row(
            "Cached Staircase",
            setting.experiment("cached-staircase", chunk=4, passes=8 if small else 64),
            ("0.1",),
        ),
        Row(
            "Global Cached Staircase",
            setting.experiment(
                "global-cached-staircase", fresh, {} if small else {"steps": 400_000}, chunk=4 if small else 8
            ),
            ("0.0 (table 7)",),
        ),
    )
    return Study(
        name="staircase.table1.random-walk",
        title="Random walk: where is the agent?",
        paper=f"{STAIRCASE}, tables 1 and 7",
        scale=scale,
        columns=TEST_ERROR,
        rows=rows,
        seeds=3 if small else 10,
        seeds_of={} if small else {"Cached Staircase": 5},
        claim="all models that carry a state through time solve it, and a Transformer-XL does not",
        notes=RANDOM_WALK_NOTES[scale],
    )


STUDIES: dict[str, Maker] = {"staircase.table1.random-walk": table1_random_walk}
