"""Figure 2 of Ju et al. 2021: what recurrent steps bring."""

from __future__ import annotations

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.feedback import settings as first
from stairwell.experiments.papers.feedback.settings import algorithmic_columns, bits_per_byte
from stairwell.experiments.papers.staircase.settings import (
    ALGORITHMIC_NOTES,
    CACHED_SIZE,
    EIGHT,
    ENWIK8_COMMON,
    ENWIK8_NOTES,
    PASSES,
    PERPLEXITY,
    RANDOM_WALK_NOTES,
    REDDIT_SIZES,
    TEST_ERROR,
    five_of_cached,
    on_reddit,
    pick,
    segments,
    text_seeds,
    with_numbers,
)
from stairwell.experiments.papers.staircase.table2 import reddit_rows
from stairwell.experiments.papers.staircase.table6 import algorithm_rows
from stairwell.experiments.papers.staircase.table7 import random_walk_rows
from stairwell.experiments.papers.staircase.table9 import enwik8_rows
from stairwell.runs import presets

FIGURE2 = (
    "The figure's numbers are not in the text; those beside ours are of {table}. Which rows it has is not said either: "
    "Staircase with 2, 4 and 8 recurrent steps at one step size, and the baselines."
)


def figure2_random_walk(scale: Scale) -> Experiment:
    variants = pick(
        with_numbers(random_walk_rows(scale), slice(1, 2)),
        "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4", "Staircase, N = 8",
    )  # fmt: skip
    return Experiment(
        name="staircase.figure2.random-walk",
        title="Random walk: how many recurrent steps it takes",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=TEST_ERROR,
        variants=variants,
        seeds=3 if scale == "laptop" else 10,
        seeds_of=five_of_cached(variants, scale),
        claim="two recurrent steps are enough to track a state",
        notes=(
            *RANDOM_WALK_NOTES[scale][:-1],
            *segments(presets.long_random_walk(scale=scale), variants, scale),
            FIGURE2.format(table="table 7"),
        ),
        axes=(PASSES,),
    )


def figure2_algorithm(scale: Scale) -> Experiment:
    variants = pick(
        with_numbers(algorithm_rows(scale), slice(1, None)),
        "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4", "Staircase, N = 8",
    )  # fmt: skip
    return Experiment(
        name="staircase.figure2.algorithm",
        title="Programs: how many recurrent steps it takes",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=algorithmic_columns(scale, "error"),
        variants=variants,
        seeds=1 if scale == "laptop" else 10,
        seeds_of=five_of_cached(variants, scale),
        claim="two recurrent steps are enough to track a state",
        notes=(
            *ALGORITHMIC_NOTES[scale][:-1],
            *segments(presets.long_algorithmic(scale=scale), variants, scale),
            FIGURE2.format(table="table 6"),
        ),
        axes=(PASSES,),
    )


def figure2_enwik8(scale: Scale) -> Experiment:
    variants = with_numbers(enwik8_rows(scale), slice(1, 2))
    most = EIGHT.variant(presets.enwik8_passes(scale=scale), scale, ())
    return Experiment(
        name="staircase.figure2.enwik8",
        title="Bytes of Wikipedia (enwik8): what recurrent steps bring",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=bits_per_byte(scale)[1:],
        variants=(
            *pick(variants, "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4"),
            most,
        ),
        seeds=text_seeds(scale),
        claim="more recurrent steps bring little here, where the context matters most",
        notes=(
            *ENWIK8_NOTES[scale],
            *ENWIK8_COMMON,
            FIGURE2.format(table="table 9"),
            "Table 9 has no Staircase with 8 steps; ours is there to go on with the curve.",
        ),
        data=first.ENWIK8_DATA,
        axes=(PASSES,),
    )


def figure2_reddit(scale: Scale) -> Experiment:
    variants = with_numbers(reddit_rows(scale), slice(1, 2))
    return on_reddit(
        scale,
        "staircase.figure2.reddit",
        title="Discussions (Reddit): what recurrent steps bring",
        paper=f"{STAIRCASE}, figure 2",
        columns=PERPLEXITY[1:],
        variants=pick(
            variants, "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4", "Staircase, N = 8"
        ),
        claim="the more recurrent steps, the better",
        notes=(*REDDIT_SIZES, CACHED_SIZE, FIGURE2.format(table="table 2")),
        axes=(PASSES,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "staircase.figure2.random-walk": figure2_random_walk,
    "staircase.figure2.algorithm": figure2_algorithm,
    "staircase.figure2.enwik8": figure2_enwik8,
    "staircase.figure2.reddit": figure2_reddit,
}
