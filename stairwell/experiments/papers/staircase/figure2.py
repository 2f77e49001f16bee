"""Figure 2 of Ju et al. 2021: number of recurrent steps."""

from __future__ import annotations

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.feedback import shared as first
from stairwell.experiments.papers.feedback.shared import algorithmic_columns, bits_per_byte
from stairwell.experiments.papers.staircase.shared import (
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
    on_reddit,
    pick,
    seeds_of_cached,
    segments,
    text_seeds,
    with_paper_numbers,
)
from stairwell.experiments.papers.staircase.table2 import reddit_variants
from stairwell.experiments.papers.staircase.table6 import algorithm_variants
from stairwell.experiments.papers.staircase.table7 import random_walk_variants
from stairwell.experiments.papers.staircase.table9 import enwik8_variants
from stairwell.runs import presets

FIGURE2 = (
    "The text does not print the figure's numbers; the paper's numbers here are those of {table}. It does not say which"
    " variants the figure has either: Staircase with 2, 4 and 8 recurrent steps at one step size, and the baselines."
)


def figure2_random_walk(scale: Scale) -> Experiment:
    variants = pick(
        with_paper_numbers(random_walk_variants(scale), slice(1, 2)),
        "Transformer-XL", "Feedback", "Cached", "Staircase (*N=2)", "Staircase (*N=4)", "Staircase (*N=8)",
    )  # fmt: skip
    return Experiment(
        name="staircase.figure2.random-walk",
        title="Random walk: number of recurrent steps",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=TEST_ERROR,
        variants=variants,
        seeds=3 if scale == "laptop" else 10,
        seeds_of=seeds_of_cached(variants, scale),
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
        with_paper_numbers(algorithm_variants(scale), slice(1, None)),
        "Transformer-XL", "Feedback", "Cached", "Staircase (*N=2)", "Staircase (*N=4)", "Staircase (*N=8)",
    )  # fmt: skip
    return Experiment(
        name="staircase.figure2.algorithm",
        title="Programs: number of recurrent steps",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=algorithmic_columns(scale, "error"),
        variants=variants,
        seeds=1 if scale == "laptop" else 10,
        seeds_of=seeds_of_cached(variants, scale),
        claim="two recurrent steps are enough to track a state",
        notes=(
            *ALGORITHMIC_NOTES[scale][:-1],
            *segments(presets.long_algorithmic(scale=scale), variants, scale),
            FIGURE2.format(table="table 6"),
        ),
        axes=(PASSES,),
    )


def figure2_enwik8(scale: Scale) -> Experiment:
    variants = with_paper_numbers(enwik8_variants(scale), slice(1, 2))
    eight = EIGHT.variant(presets.enwik8_passes(scale=scale), scale, ())
    return Experiment(
        name="staircase.figure2.enwik8",
        title="Byte-level Wikipedia (enwik8): number of recurrent steps",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=bits_per_byte(scale)[1:],
        variants=(
            *pick(variants, "Transformer-XL", "Feedback", "Cached", "Staircase (*N=2)", "Staircase (*N=4)"),
            eight,
        ),
        seeds=text_seeds(scale),
        claim="more recurrent steps gain little here, where context matters most",
        notes=(
            *ENWIK8_NOTES[scale],
            *ENWIK8_COMMON,
            FIGURE2.format(table="table 9"),
            "Table 9 has no Staircase with 8 recurrent steps; ours extends the curve.",
        ),
        data=first.ENWIK8_DATA,
        axes=(PASSES,),
    )


def figure2_reddit(scale: Scale) -> Experiment:
    variants = with_paper_numbers(reddit_variants(scale), slice(1, 2))
    return on_reddit(
        scale,
        "staircase.figure2.reddit",
        title="Reddit: number of recurrent steps",
        paper=f"{STAIRCASE}, figure 2",
        columns=PERPLEXITY[1:],
        variants=pick(
            variants, "Transformer-XL", "Feedback", "Cached", "Staircase (*N=2)", "Staircase (*N=4)", "Staircase (*N=8)"
        ),
        claim="more recurrent steps are better",
        notes=(*REDDIT_SIZES, CACHED_SIZE, FIGURE2.format(table="table 2")),
        axes=(PASSES,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "staircase.figure2.random-walk": figure2_random_walk,
    "staircase.figure2.algorithm": figure2_algorithm,
    "staircase.figure2.enwik8": figure2_enwik8,
    "staircase.figure2.reddit": figure2_reddit,
}
