"""Table 8 of Ju et al. 2021: Reddit in episodes of fixed length."""

from __future__ import annotations

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.staircase.shared import (
    CHUNK,
    EIGHT,
    FOUR,
    PERPLEXITY,
    TWO,
    StaircaseSizes,
    on_reddit,
    transformer_xl,
)
from stairwell.runs import presets
from stairwell.tasks import language


def table8(scale: Scale) -> Experiment:
    length = 64 if scale == "laptop" else 256
    documents: language.Documents = "files" if scale == "laptop" else "lines"
    preset = presets.reddit(scale=scale).replace(task={"episode": length, "documents": documents})
    stairs = {
        StaircaseSizes("cached-staircase", (8, 8), (8, 32)): ("27.9", "27.6"),
        StaircaseSizes("cached-staircase", (4, 16), (4, 64)): ("27.8", "27.6"),
        StaircaseSizes("cached-staircase", (2, 32), (2, 128)): ("27.6", "27.3"),
        TWO: ("26.7", "26.4"),
        FOUR: ("25.2", "24.9"),
        EIGHT: ("24.3", "24.0"),
    }
    return on_reddit(
        scale,
        "staircase.table8",
        title="Reddit in episodes of fixed length",
        paper=f"{STAIRCASE}, table 8",
        columns=PERPLEXITY,
        variants=(
            transformer_xl(preset, scale, ("27.6", "27.3")),
            *(each.variant(preset, scale, numbers) for each, numbers in stairs.items()),
        ),
        claim="more recurrent steps are better in short episodes too",
        notes=(
            f"Episodes of {length} tokens, each from the initial state: "
            + (
                "files are cut." if scale == "laptop" else "a line of the text is a discussion, cut where it is longer."
            ),
        ),
        axes=(CHUNK,),
        plotted=(PERPLEXITY[1].title,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"staircase.table8": table8}
