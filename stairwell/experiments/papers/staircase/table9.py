"""Table 9 of Ju et al. 2021: byte-level Wikipedia in detail."""

from __future__ import annotations

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.feedback import shared as first
from stairwell.experiments.papers.feedback.shared import bits_per_byte
from stairwell.experiments.papers.staircase.shared import (
    CHUNK,
    ENWIK8_COMMON,
    ENWIK8_NOTES,
    StaircaseSizes,
    Variants,
    text_seeds,
)
from stairwell.runs import presets
from stairwell.runs.presets import with_core


def enwik8_variants(scale: Scale) -> Variants:
    """Return the variants of table 9 in its order; what it calls ppl is bits per byte."""
    preset, small = presets.enwik8_passes(scale=scale), scale == "laptop"
    memory = 64 if small else 256
    xl = with_core(preset, "transformer-xl", memory=memory, attend_to_current=True)
    feedback = with_core(preset, "feedback", memory=memory, share_kv=False)
    stairs = {
        StaircaseSizes("cached-staircase", (17, 4), (65, 4)): ("1.14", "1.13"),
        StaircaseSizes("cached-staircase", (9, 8), (9, 32)): ("1.15", "1.13"),
        StaircaseSizes("cached-staircase", (5, 16), (5, 64)): ("1.15", "1.13"),
        StaircaseSizes("cached-staircase", (3, 32), (3, 128)): ("1.15", "1.13"),
        StaircaseSizes("staircase", (2, 32), (2, 128)): ("1.15", "1.14"),
        StaircaseSizes("staircase", (4, 16), (4, 64)): ("1.14", "1.14"),
    }
    return (
        Variant("Transformer-XL", xl, ("1.17", "1.15")),
        Variant("Feedback", feedback, ("1.13", "1.12")),
        *(each.variant(preset, scale, numbers) for each, numbers in stairs.items()),
    )


def table9(scale: Scale) -> Experiment:
    return Experiment(
        name="staircase.table9",
        title="Byte-level Wikipedia (enwik8) in detail",
        paper=f"{STAIRCASE}, table 9",
        scale=scale,
        columns=bits_per_byte(scale),
        variants=enwik8_variants(scale),
        seeds=text_seeds(scale),
        claim="all Staircases are slightly better than Transformer-XL and slightly worse than Feedback",
        notes=(*ENWIK8_NOTES[scale], *ENWIK8_COMMON, "What the table calls perplexity is bits per byte."),
        data=first.ENWIK8_DATA,
        axes=(CHUNK,),
        plotted=(bits_per_byte(scale)[1].title,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.table9": table9}
