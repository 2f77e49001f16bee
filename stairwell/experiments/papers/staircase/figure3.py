"""Figure 3 of Ju et al. 2021: training time and perplexity."""

from __future__ import annotations

from stairwell.experiments.experiment import STAIRCASE, Column, Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.staircase.shared import (
    CACHED_SIZE,
    PERPLEXITY,
    REDDIT_SIZES,
    SPEED,
    on_reddit,
    with_paper_numbers,
)
from stairwell.experiments.papers.staircase.table2 import reddit_variants


def figure3(scale: Scale) -> Experiment:
    columns: tuple[Column, ...] = (PERPLEXITY[1], SPEED)
    return on_reddit(
        scale,
        "staircase.figure3",
        title="Reddit: training time and perplexity",
        paper=f"{STAIRCASE}, figure 3",
        columns=columns,
        variants=with_paper_numbers(reddit_variants(scale), slice(1, None)),
        claim=(
            "with the same number of parameters, Staircase lowers perplexity at the cost of training time; Feedback is "
            "far slower"
        ),
        notes=(*REDDIT_SIZES, CACHED_SIZE, "The models and the paper's numbers are those of table 2."),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.figure3": figure3}
