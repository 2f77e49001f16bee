"""Long-stream evaluation of models trained on at most 40 tokens: when is the first mistake? In neither paper.

Every model is evaluated on endless streams (`stairwell eval --horizon`). Each run folder stores the positions of
mistakes, and the report plots them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import ErrorFreeStreams, LateAccuracy
from stairwell.experiments.papers.state_tracking import FIRST, benchmark_variants, deltanet_products
from stairwell.runs import presets

TOKENS, STREAMS = 1_000_000, 64
# The task and its options, the title, and what differs from the training of the state-tracking benchmark.
TASKS: dict[str, tuple[str, dict[str, Any], str, dict[Scale, dict[str, Any]]]] = {
    "parity": ("parity-check", {}, "Parity", {"laptop": {}, "paper": {}}),
    "s5": (
        "group-words",
        {"group": "S5", "generators": 2},
        "S5 with 2 generators, a swap and a cycle",
        {"laptop": {"steps": 5000, "learning_rate": 1e-3}, "paper": {}},
    ),
}


def variants(name: str, scale: Scale) -> tuple[Variant, ...]:
    task, options, _, training = TASKS[name]
    # No early stopping: the steps after the model is always right move its first mistake most.
    train = {"stopping_threshold": None, **training[scale]}
    shared = presets.benchmark(task, scale=scale, **options, label="every").replace(train=train)
    models = benchmark_variants(shared, scale, products=deltanet_products(str(options.get("group", ""))))
    return tuple(variant for variant in models if variant.name in FIRST)


def long_streams(name: str, scale: Scale) -> Experiment:
    return Experiment(
        name=f"extra.long-streams.{name}",
        title=f"{TASKS[name][2]}: trained on 3 to 40 tokens, tested on streams of {TOKENS:,}",
        paper="not in the papers; long-stream evaluation",
        scale=scale,
        columns=(
            ErrorFreeStreams(f"{STREAMS} streams of {TOKENS:,} tokens: without a mistake (%)", TOKENS, STREAMS),
            LateAccuracy("accuracy in the last nine tenths (%)"),
        ),
        variants=variants(name, scale),
        notes=(
            "Every token has a label, in training too. A stream starts from the initial state and is never reset.",
            "The evaluation takes about as long as training; --dry-run estimates training only.",
        ),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    f"extra.long-streams.{name}": partial(long_streams, name) for name in TASKS
}
