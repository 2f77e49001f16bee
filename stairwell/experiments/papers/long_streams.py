"""The horizon: trained on at most 40 tokens, how far does a model hold? In neither paper.

Every model is followed along streams without end until long after the first mistake (`stairwell eval --horizon`); each
run folder keeps where mistakes came, and the report draws them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import ErrorFreeStreams, LateAccuracy
from stairwell.experiments.papers.state_tracking import FIRST, contenders, products_for
from stairwell.runs import presets

TOKENS, STREAMS = 1_000_000, 64
# The task and its options, the title, and how the training differs from the league's.
TASKS: dict[str, tuple[str, dict[str, Any], str, dict[Scale, dict[str, Any]]]] = {
    "parity": ("parity-check", {}, "Parity", {"laptop": {}, "paper": {}}),
    "s5": (
        "group-words",
        {"group": "S5", "generators": 2},
        "Words over a swap and a cycle, which make up S5",
        {"laptop": {"steps": 5000, "learning_rate": 1e-3}, "paper": {}},
    ),
}


def variants(name: str, scale: Scale) -> tuple[Variant, ...]:
    task, options, _, training = TASKS[name]
    # No early stopping: the steps after the model is always right move its first mistake most.
    train = {"stopping_threshold": None, **training[scale]}
    shared = presets.benchmark(task, scale=scale, **options, label="every").replace(train=train)
    found = contenders(shared, scale, products=products_for(str(options.get("group", ""))))
    return tuple(variant for variant in found if variant.name in FIRST)


def horizon(name: str, scale: Scale) -> Experiment:
    return Experiment(
        name=f"extra.long-streams.{name}",
        title=f"{TASKS[name][2]}: trained on 3 to 40 tokens, followed for {TOKENS:,}",
        paper="not in the papers; how far a state is held",
        scale=scale,
        columns=(
            ErrorFreeStreams(f"{STREAMS} streams of {TOKENS:,}: without a mistake (%)", TOKENS, STREAMS),
            LateAccuracy("right answers in the last nine tenths (%)"),
        ),
        variants=variants(name, scale),
        notes=(
            "Asked at every token, in training too. A stream begins with an empty memory and never begins anew.",
            "Following takes about as long as training; the times that --dry-run tells are of training alone.",
        ),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {f"extra.long-streams.{name}": partial(horizon, name) for name in TASKS}
