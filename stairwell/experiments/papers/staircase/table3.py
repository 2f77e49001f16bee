"""Table 3 of Ju et al. 2021: chunk size, on Reddit."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.staircase.shared import (
    CACHED,
    CHUNK,
    FOUR,
    PERPLEXITY,
    SPEED,
    TWO,
    StaircaseSizes,
    on_reddit,
)
from stairwell.runs import presets


def with_its_passes(variant: Variant) -> Variant:
    """Return the variant with its own series per number of passes, in which only the chunk size varies."""
    if variant.config.core_name != "staircase":
        return variant
    series = f"Staircase, N = {variant.config.option('core.passes')}"
    return dataclasses.replace(
        variant, points=tuple(dataclasses.replace(point, series=series) for point in variant.points)
    )


def table3(scale: Scale) -> Experiment:
    preset = presets.reddit(scale=scale)
    stairs = {
        StaircaseSizes("cached-staircase", (9, 8), (9, 32)): ("26.4", "489"),
        StaircaseSizes("cached-staircase", (5, 16), (5, 64)): ("26.4", "318"),
        CACHED: ("26.4", "246"),
        StaircaseSizes("staircase", (2, 16), (2, 64)): ("25.2", "310"),
        TWO: ("25.0", "297"),
        StaircaseSizes("staircase", (4, 8), (4, 32)): ("23.8", "605"),
        FOUR: ("23.7", "580"),
    }
    return on_reddit(
        scale,
        "staircase.table3",
        title="Reddit: chunk size",
        paper=f"{STAIRCASE}, table 3",
        columns=(PERPLEXITY[0], SPEED),
        variants=tuple(with_its_passes(each.variant(preset, scale, numbers)) for each, numbers in stairs.items()),
        claim="with the same number of recurrent steps, chunk size hardly matters; larger chunks are faster",
        notes=(),
        axes=(CHUNK,),
        plotted=(PERPLEXITY[0].title,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.table3": table3}
