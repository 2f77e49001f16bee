"""The horizon: trained on at most 40 tokens, how far does a model hold? In neither paper.

Every model is followed along streams without end until long after the first mistake (`stairwell eval --horizon`); each
run folder keeps where mistakes came, and the report draws them.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Row, Scale
from stairwell.experiments.measures import Faultless, StillRight
from stairwell.experiments.papers.state_tracking import FIRST, TRAIN, contenders, products_for, setting
from stairwell.train.config import TrainConfig

TOKENS, STREAMS = 1_000_000, 64
# The task and its options, the title, and how the training differs from the league's.
TASKS: dict[str, tuple[str, dict[str, object], str, dict[Scale, dict[str, object]]]] = {
    "parity": ("parity-check", {}, "Parity", {"laptop": {}, "paper": {}}),
    "s5": (
        "group-words",
        {"group": "S5", "generators": 2},
        "Words over a swap and a cycle, which make up S5",
        {"laptop": {"steps": 5000, "learning_rate": 1e-3}, "paper": {}},
    ),
}


def rows(name: str, scale: Scale) -> tuple[Row, ...]:
    task, options, _, training = TASKS[name]
    # To the end: training on after everything is right is what moves the first mistake most.
    train: TrainConfig = dataclasses.replace(TRAIN[scale], goal=None, **training[scale])  # type: ignore[arg-type]
    shared = dataclasses.replace(setting(task, scale, **options, label="every"), train=train)
    found = contenders(shared, scale, products=products_for(str(options.get("group", ""))))
    return tuple(row for row in found if row.model in FIRST)


def horizon(name: str, scale: Scale) -> Experiment:
    return Experiment(
        name=f"extra.horizon.{name}",
        title=f"{TASKS[name][2]}: trained on 3 to 40 tokens, followed for {TOKENS:,}",
        paper="not in the papers; how far a state is held",
        scale=scale,
        columns=(
            Faultless(f"{STREAMS} streams of {TOKENS:,}: without a mistake (%)", TOKENS, STREAMS),
            StillRight("right answers in the last nine tenths (%)"),
        ),
        rows=rows(name, scale),
        notes=(
            "Asked at every token, in training too. A stream begins with an empty memory and never begins anew.",
            "Following takes about as long as training; the times that --dry-run tells are of training alone.",
        ),
    )


STUDIES: dict[str, ExperimentFactory] = {f"extra.horizon.{name}": partial(horizon, name) for name in TASKS}
