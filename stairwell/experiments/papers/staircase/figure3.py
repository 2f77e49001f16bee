"""Figure 3 of Ju et al. 2021: training time and perplexity."""

from __future__ import annotations

from stairwell.experiments.experiment import STAIRCASE, Column, Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.staircase.settings import (
    CACHED_SIZE,
    PERPLEXITY,
    REDDIT_SIZES,
    SPEED,
    on_reddit,
    with_numbers,
)
from stairwell.experiments.papers.staircase.table2 import reddit_rows


def figure3(scale: Scale) -> Experiment:
    columns: tuple[Column, ...] = (PERPLEXITY[1], SPEED)
    return on_reddit(
        scale,
        "staircase.figure3",
        title="Discussions (Reddit): training time and perplexity",
        paper=f"{STAIRCASE}, figure 3",
        columns=columns,
        variants=with_numbers(reddit_rows(scale), slice(1, None)),
        claim="Staircase buys perplexity with training time at the same number of weights; Feedback is far slower",
        notes=(*REDDIT_SIZES, CACHED_SIZE, "The models, and the numbers beside ours, are those of table 2."),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.figure3": figure3}
