"""Table 6 of Ju et al. 2021: programs in detail."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.shared import LARGEST_SOLVED, STATEMENTS, paper_numbers
from stairwell.experiments.papers.staircase.shared import (
    ALGORITHMIC_NOTES,
    CHUNK,
    CHUNKS,
    ERRORS,
    StaircaseSizes,
    Variants,
    by_size,
    pick,
    seeds_of_cached,
    segments,
)
from stairwell.experiments.papers.staircase.table1 import table1_algorithm
from stairwell.runs import presets


def algorithm_variants(scale: Scale) -> Variants:
    """Return the variants of table 6 in its order."""
    preset = presets.long_algorithmic(scale=scale)
    numbers_of = {
        StaircaseSizes("staircase", (8, 4), (8, 8)): ("12.8 ± 16.5", "12.6 ± 16.2"),
        StaircaseSizes("staircase", (4, 8), (4, 16)): ("0.5 ± 0.5", "0.5 ± 0.7"),
        StaircaseSizes("staircase", (2, 16), (2, 32)): ("0.6 ± 0.2", "0.5 ± 0.2"),
        StaircaseSizes("staircase", (2, 32), (2, 64)): ("48.5 ± 48.1", "48.5 ± 48.1"),
        StaircaseSizes("cached-staircase", (16, 2), (16, 4)): ("24.6 ± 21.8", "24.3 ± 21.7"),
        StaircaseSizes("cached-staircase", (8, 4), (8, 8)): ("31.7 ± 28.7", "31.3 ± 28.7"),
        StaircaseSizes("cached-staircase", (4, 8), (4, 16)): ("27.8 ± 13.6", "27.3 ± 13.6"),
        StaircaseSizes("global-cached-staircase", (0, 4), (0, 8)): ("0.0 ± 0.1", "0.0 ± 0.1"),
        StaircaseSizes("global-cached-staircase", (0, 8), (0, 16)): ("7.1 ± 19.3", "7.1 ± 19.3"),
        StaircaseSizes("global-cached-staircase", (0, 16), (0, 32)): ("20.0 ± 23.0", "19.7 ± 22.7"),
    }
    xl, feedback = pick(table1_algorithm(scale).variants, "Transformer-XL", "Feedback")
    return (
        dataclasses.replace(xl, paper=paper_numbers(scale, "59.1 ± 12.5", "59.1 ± 12.4")),
        dataclasses.replace(feedback, paper=paper_numbers(scale, "0.3 ± 0.0", "0.3 ± 0.0")),
        *by_size(preset, scale, {size: paper_numbers(scale, *numbers) for size, numbers in numbers_of.items()}),
    )


def table6(scale: Scale) -> Experiment:
    variants, small = algorithm_variants(scale), scale == "laptop"
    at = {"statements": STATEMENTS}
    laptop = (
        Metric(f"valid error at {STATEMENTS} statements (%)", "error", "valid", at),
        Metric(f"test error at {STATEMENTS} statements (%)", "error", "test", at),
        LARGEST_SOLVED,
    )
    return Experiment(
        name="staircase.table6",
        title="Programs in detail: chunk size",
        paper=f"{STAIRCASE}, table 6",
        scale=scale,
        columns=laptop if small else ERRORS,
        variants=variants,
        seeds=1 if small else 10,
        seeds_of=seeds_of_cached(variants, scale),
        claim="Staircase solves it unless chunks are too large; Cached Staircase depends on the seed",
        notes=(
            *ALGORITHMIC_NOTES[scale],
            *segments(presets.long_algorithmic(scale=scale), variants, scale),
            *((CHUNKS,) if small else ()),
        ),
        axes=(CHUNK,),
        plotted=tuple(column.title for column in (laptop if small else ERRORS)[1:]),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.table6": table6}
