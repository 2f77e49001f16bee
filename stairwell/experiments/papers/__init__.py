"""All tables and figures of both papers, one module each, and additional experiments (`demo`, `extra`).

Each module has functions that return an experiment for a given scale, and a dict `EXPERIMENTS` of them by name."""

from __future__ import annotations

from stairwell.errors import UserError, suggestion
from stairwell.experiments.experiment import SCALES, Experiment, ExperimentFactory, Scale

from . import (
    chunk_passes,
    decoder_dropout,
    demo,
    distances,
    extra,
    extra_agents,
    feedback,
    lengths,
    million_tokens,
    shakespeare,
    staircase,
    stale_states,
    state_tracking,
)

EXTRA = (
    extra, distances, lengths, extra_agents, stale_states, state_tracking, million_tokens, chunk_passes, shakespeare,
    decoder_dropout,
)  # fmt: skip
# All experiments by name, in the order of the papers.
CATALOG: dict[str, ExperimentFactory] = {
    name: make
    for module in (demo, *feedback.PARTS, *EXTRA, *staircase.PARTS)
    for name, make in module.EXPERIMENTS.items()
}

# Tables and figures of the papers that are not experiments, and where to find their content here.
NO_EXPERIMENTS = {
    "feedback.figure1": "a diagram of the model; docs/models.md has its equations",
    "feedback.figure2": "a diagram of what each token attends to; docs/models.md describes it",
    "feedback.figure10": "images of the mazes; docs/environments.md has ours",
    "feedback.table7": "an example of a program; tests/tasks/test_algorithmic.py runs it",
    "feedback.table8": "hyperparameters of figures 4 and 7 and table 2, used at paper scale",
    "feedback.table9": "hyperparameters of the language models, used at paper scale; tests count parameters",
    "staircase.figure1": "a diagram of the models; docs/models.md has their equations",
    "staircase.table4": "hyperparameters, used at paper scale",
    "staircase.table5": "hyperparameters, used at paper scale",
}
# Experiments that exist at one scale only, and why.
NOT_AT_SCALE: dict[tuple[str, Scale], str] = {
    ("demo", "paper"): "it is made for a laptop",
    ("feedback.table2", "laptop"): (
        "its two models are those of feedback.figure4.translation; the table's other numbers are for WMT14 and cannot "
        "be compared with Multi30k"
    ),
    ("extra.shakespeare", "paper"): "nanoGPT's CPU recipe is laptop scale",
    ("extra.decoder-dropout", "paper"): "dropout is tuned at laptop scale only",
    ("extra.stale-states", "paper"): "the environment is solved at laptop scale",
}


def find_experiments(name: str, scale: Scale) -> list[Experiment]:
    """Return the experiment of a name, or all experiments under a prefix: `staircase.table1` has one per task."""
    factories = [make for known, make in CATALOG.items() if known == name or known.startswith(f"{name}.")]
    if not factories:
        raise UserError(f"there is no experiment '{name}'{suggestion(name, CATALOG)}")
    experiments = [experiment for make in factories if (experiment := make(scale)) is not None]
    if not experiments:
        raise UserError(f"{name} does not exist at {scale} scale; try --scale {next(s for s in SCALES if s != scale)}")
    return experiments
