"""Table 7 of Ju et al. 2021: the random walk in detail."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.staircase.shared import (
    CHUNK,
    CHUNKS,
    ERRORS,
    RANDOM_WALK_NOTES,
    StaircaseSizes,
    Variants,
    by_size,
    pick,
    seeds_of_cached,
    segments,
)
from stairwell.experiments.papers.staircase.table1 import table1_random_walk
from stairwell.runs import presets


def random_walk_variants(scale: Scale) -> Variants:
    """Return the variants of table 7 in its order."""
    preset = presets.long_random_walk(scale=scale)
    numbers_of = {
        StaircaseSizes("staircase", (8, 2), (8, 8)): ("0.2 ± 0.1", "0.2 ± 0.1"),
        StaircaseSizes("staircase", (4, 4), (4, 16)): ("0.2 ± 0.2", "0.2 ± 0.2"),
        StaircaseSizes("staircase", (2, 8), (2, 32)): ("1.0 ± 1.3", "1.0 ± 1.2"),
        StaircaseSizes("staircase", (2, 16), (2, 64)): ("42.1 ± 48.1", "42.1 ± 48.1"),
        StaircaseSizes("cached-staircase", (16, 2), (64, 4)): ("0.1 ± 0.0", "0.1 ± 0.0"),
        StaircaseSizes("cached-staircase", (8, 4), (32, 8)): ("1.9 ± 2.0", "1.9 ± 2.0"),
        StaircaseSizes("cached-staircase", (4, 8), (16, 16)): ("27.2 ± 8.0", "27.3 ± 8.2"),
        StaircaseSizes("global-cached-staircase", (0, 2), (0, 8)): ("0.0 ± 0.0", "0.0 ± 0.0"),
        StaircaseSizes("global-cached-staircase", (0, 4), (0, 16)): ("1.4 ± 0.6", "1.3 ± 0.5"),
        StaircaseSizes("global-cached-staircase", (0, 8), (0, 32)): ("52.4 ± 16.4", "52.4 ± 16.4"),
    }
    xl, feedback = pick(table1_random_walk(scale).variants, "Transformer-XL", "Feedback")
    return (
        dataclasses.replace(xl, paper=("90.1 ± 4.6", "90.1 ± 4.6")),
        dataclasses.replace(feedback, paper=("0.1 ± 0.0", "0.1 ± 0.0")),
        *by_size(preset, scale, numbers_of),
    )


def table7(scale: Scale) -> Experiment:
    variants = random_walk_variants(scale)
    return Experiment(
        name="staircase.table7",
        title="Random walk in detail: chunk size",
        paper=f"{STAIRCASE}, table 7",
        scale=scale,
        columns=ERRORS,
        variants=variants,
        seeds=2 if scale == "laptop" else 10,
        seeds_of=seeds_of_cached(variants, scale),
        claim="small chunks solve it, and the error grows with chunk size; Transformer-XL fails",
        notes=(
            *RANDOM_WALK_NOTES[scale],
            *segments(presets.long_random_walk(scale=scale), variants, scale),
            *((CHUNKS,) if scale == "laptop" else ()),
        ),
        axes=(CHUNK,),
        plotted=(ERRORS[1].title,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.table7": table7}
