"""Table 2 of Ju et al. 2021: Reddit in detail."""

from __future__ import annotations

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.staircase.shared import (
    CACHED,
    CACHED_SIZE,
    EIGHT,
    FOUR,
    MORE_STEPS_ARE_BETTER,
    PERPLEXITY,
    REDDIT_SIZES,
    SPEED,
    TWO,
    Numbers,
    Variants,
    deeper,
    feedback,
    on_reddit,
    transformer_xl,
)
from stairwell.runs import presets
from stairwell.runs.presets import with_core


def reddit_variants(scale: Scale) -> Variants:
    """Return the variants of table 2 in its order, with validation and test perplexity and milliseconds per batch."""
    preset, small = presets.reddit(scale=scale), scale == "laptop"
    memory = 64 if small else 256

    def universal(passes: int, numbers: Numbers) -> Variant:
        config = with_core(preset, "universal", layers=1, memory=memory, passes=passes)
        return Variant(f"Universal Transformer, {passes} passes", config, numbers)

    # One layer, so wide that with its token embeddings it has as many parameters as Transformer-XL
    wide = with_core(preset, "universal", layers=1, width=136 if small else 2560, memory=memory, passes=8)
    return (
        transformer_xl(preset, scale, ("26.5", "26.2", "178")),
        deeper(preset, scale, ("23.7", "23.4", "359")),
        feedback(preset, scale, ("25.8", "25.5", "3260")),
        CACHED.variant(preset, scale, ("26.4", "26.1", "246")),
        TWO.variant(preset, scale, ("25.0", "24.8", "297")),
        universal(2, ("39.9", "39.5", "51")),
        FOUR.variant(preset, scale, ("23.7", "23.4", "580")),
        universal(4, ("34.9", "34.5", "88")),
        EIGHT.variant(preset, scale, ("22.9", "22.6", "1147")),
        universal(8, ("32.3", "32.0", "163")),
        Variant("Universal Transformer, 8 passes, wide", wide, ("25.9", "25.6", "766")),
        universal(16, ("31.5", "31.1", "328")),
    )


def table2(scale: Scale) -> Experiment:
    return on_reddit(
        scale,
        "staircase.table2",
        title="Reddit in detail",
        paper=f"{STAIRCASE}, table 2",
        columns=(*PERPLEXITY, SPEED),
        variants=reddit_variants(scale),
        claim=MORE_STEPS_ARE_BETTER,
        notes=(
            *REDDIT_SIZES,
            CACHED_SIZE,
            "The large Universal Transformer's width is not given: "
            + ("136 gives" if scale == "laptop" else "2,560 gives the reported 120 million parameters,")
            + " about as many parameters as Transformer-XL.",
        ),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.table2": table2}
