"""Table 1 of Ju et al. 2021: the best seed of each model on every task."""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import STAIRCASE, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.feedback import shared as first
from stairwell.experiments.papers.feedback.shared import algorithmic_columns, bits_per_byte, paper_numbers
from stairwell.experiments.papers.staircase.shared import (
    ALGORITHMIC_NOTES,
    BASE_DATA,
    CACHED,
    CACHED_SIZE,
    EIGHT,
    ENWIK8_COMMON,
    ENWIK8_NOTES,
    FOUR,
    LONGER,
    NO_CURRICULUM,
    ONCE,
    PERPLEXITY,
    RANDOM_WALK_NOTES,
    REDDIT_SIZES,
    RESET_STREAMS,
    TEST_ERROR,
    TEXT_NOTES,
    TWO,
    StaircaseSizes,
    deeper,
    feedback,
    on_reddit,
    pick,
    seeds_of_cached,
    segments,
    text_seeds,
    transformer_xl,
    with_paper_numbers,
)
from stairwell.experiments.papers.staircase.table2 import reddit_variants
from stairwell.experiments.papers.staircase.table9 import enwik8_variants
from stairwell.runs import presets
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core

OUR_VARIANTS = (
    "Transformer-XL is also trained without the curriculum, as in the paper. Staircase and Global Cached Staircase have"
    " 4 heads, the other models one. Global Cached Staircase attends to the whole episode, with one position embedding "
    "shared by all distances from 16 on. The paper trains it eight times as long as the others; here it has the same "
    "number of steps, and a second variant has twice the learning rate."
)


def random_walk_globals(preset: RunConfig, scale: Scale) -> tuple[Variant, ...]:
    """Return Global Cached Staircase. The paper trains it for longer; at laptop scale a second variant has a higher
    learning rate instead."""
    name, number = "Global Cached Staircase", ("0.0 (table 7)",)
    if scale == "paper":
        return (Variant(name, with_core(preset, "global-cached-staircase", RESET_STREAMS, LONGER, chunk=8), number),)
    core: dict[str, Any] = {"chunk": 1, "distances": 16, "heads": 4}
    high_lr = {"learning_rate": 6e-3}
    return (
        Variant(name, with_core(preset, "global-cached-staircase", RESET_STREAMS, **core), number),
        Variant(
            f"{name}, learning rate 0.006",
            with_core(preset, "global-cached-staircase", RESET_STREAMS, high_lr, **core),
            number,
        ),
    )


def table1_random_walk(scale: Scale) -> Experiment:
    """Return table 1, random walk, with the Global Cached Staircase of its appendix."""
    preset = presets.long_random_walk(scale=scale)
    small = scale == "laptop"
    variants = (
        *first.random_walk_lstms(preset, scale, ("0.6",)),
        Variant("Transformer-XL", with_core(preset, "transformer-xl", memory=101 if small else 512), ("84.1",)),
        *(
            (
                Variant(
                    "Transformer-XL, no curriculum",
                    with_core(preset, "transformer-xl", None, NO_CURRICULUM, memory=101),
                ),
            )
            if small
            else ()
        ),
        Variant("Feedback", with_core(preset, "feedback", memory=16 if small else 64, share_kv=small), ("0.1",)),
        StaircaseSizes("staircase", (2, 1), (8, 8)).variant(preset, scale, ("0.1",), **({"heads": 4} if small else {})),
        StaircaseSizes("cached-staircase", (17, 1), (64, 4)).variant(preset, scale, ("0.1",)),
        *random_walk_globals(preset, scale),
    )
    return Experiment(
        name="staircase.table1.random-walk",
        title="Random walk: the agent's position",
        paper=f"{STAIRCASE}, tables 1 and 7",
        scale=scale,
        columns=TEST_ERROR,
        variants=variants,
        seeds=3 if small else 10,
        seeds_of=seeds_of_cached(variants, scale),
        claim="all models with a carried state solve it, and a Transformer-XL does not",
        notes=(
            *RANDOM_WALK_NOTES[scale],
            *segments(preset, variants, scale),
            *((OUR_VARIANTS, first.RANDOM_WALK_LSTM_NOTE) if small else ()),
        ),
    )


def table1_algorithm(scale: Scale) -> Experiment:
    preset, small = presets.long_algorithmic(scale=scale), scale == "laptop"

    def variant(name: str, core: str, number: str, **options: Any) -> Variant:
        return Variant(name, with_core(preset, core, **options), paper_numbers(scale, number))

    xl = variant("Transformer-XL", "transformer-xl", "48.7", memory=128 if small else 512)
    plain = Variant(
        "Transformer-XL, no curriculum", with_core(preset, "transformer-xl", None, NO_CURRICULUM, memory=128)
    )
    longer = StaircaseSizes("staircase", (4, 8), (4, 16)).variant(preset, scale, ())
    core: dict[str, Any] = {"chunk": 1, "distances": 16} if small else {"chunk": 8}
    best = with_core(preset, "global-cached-staircase", RESET_STREAMS, {} if small else LONGER, **core)
    variants = (
        variant("LSTM", "lstm", "1.0"),
        xl,
        *((plain,) if small else ()),
        variant("Feedback", "feedback", "0.2", memory=16 if small else 32, share_kv=small),
        StaircaseSizes("staircase", (2, 8), (8, 8)).variant(preset, scale, paper_numbers(scale, "0.2")),
        *((longer,) if small else ()),
        StaircaseSizes("cached-staircase", (17, 1), (16, 4)).variant(preset, scale, paper_numbers(scale, "1.2")),
        Variant("Global Cached Staircase", best, paper_numbers(scale, "0.0, table 6")),
    )
    return Experiment(
        name="staircase.table1.algorithm",
        title="Programs with 3 variables: the printed values",
        paper=f"{STAIRCASE}, tables 1 and 6",
        scale=scale,
        columns=algorithmic_columns(scale, "error"),
        variants=variants,
        seeds=1 if small else 10,
        seeds_of=seeds_of_cached(variants, scale),
        claim="all models with a carried state solve it, and a Transformer-XL does not",
        notes=(
            *ALGORITHMIC_NOTES[scale],
            *segments(preset, variants, scale),
            "Table 1 prints the best of ten seeds. The mean errors of table 6 are 0.5 ± 0.2% (N = 2, C = 32), 0.5 ± "
            "0.7% (N = 4, C = 16) and 12.6 ± 16.2% (N = 8, C = 8), and 24.3 ± 21.7% for Cached Staircase (C = 4).",
            "The paper quotes the LSTM's number from Irie et al. 2021.",
        ),
    )


def table1_enwik8(scale: Scale) -> Experiment:
    variants = pick(
        with_paper_numbers(enwik8_variants(scale), slice(1, 2)),
        "Transformer-XL",
        "Feedback",
        "Staircase (*N=4)",
        "Cached",
    )
    return Experiment(
        name="staircase.table1.enwik8",
        title="Byte-level Wikipedia (enwik8)",
        paper=f"{STAIRCASE}, table 1",
        scale=scale,
        columns=bits_per_byte(scale)[1:],
        variants=(Variant("LSTM", with_core(presets.enwik8_passes(scale=scale), "lstm"), ("1.38",)), *variants),
        seeds=text_seeds(scale),
        claim="Feedback, Cached Staircase and Staircase are slightly better than Transformer-XL, an LSTM is far worse",
        notes=(
            *ENWIK8_NOTES[scale],
            *ENWIK8_COMMON,
            "The LSTM's size is not given; ours has as many layers as the others and about as many parameters.",
        ),
        data=first.ENWIK8_DATA,
    )


def table1_reddit(scale: Scale) -> Experiment:
    variants = with_paper_numbers(reddit_variants(scale), slice(1, 2))
    return on_reddit(
        scale,
        "staircase.table1.reddit",
        title="Language modeling on Reddit",
        paper=f"{STAIRCASE}, table 1",
        columns=PERPLEXITY[1:],
        variants=pick(variants, "Transformer-XL", "Feedback", "Staircase (*N=8)", "Cached"),
        claim="with the same number of parameters, Staircase is far better than Transformer-XL and Feedback",
        notes=(*REDDIT_SIZES, CACHED_SIZE),
    )


def table1_base(scale: Scale) -> Experiment:
    preset = presets.base_data(scale=scale)
    ours = (
        deeper(preset, scale, ("",)),
        TWO.variant(preset, scale, ("",)),
        FOUR.variant(preset, scale, ("",)),
    )
    return Experiment(
        name="staircase.table1.base",
        title="Language modeling on the BASE data",
        paper=f"{STAIRCASE}, table 1",
        scale=scale,
        columns=PERPLEXITY[:1],
        variants=(
            transformer_xl(preset, scale, ("28.0",)),
            feedback(preset, scale, ("26.6",)),
            EIGHT.variant(preset, scale, ("23.0",)),
            CACHED.variant(preset, scale, ("27.8",)),
            *(ours if scale == "laptop" else ()),
        ),
        seeds=text_seeds(scale),
        claim="with the same number of parameters, Staircase is far better than Transformer-XL and Feedback",
        notes=(
            *TEXT_NOTES[scale],
            *REDDIT_SIZES,
            ONCE
            if scale == "paper"
            else "The variants without a number of the paper are our additions; table 2 has them on Reddit.",
        ),
        data=BASE_DATA[scale],
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "staircase.table1.random-walk": table1_random_walk,
    "staircase.table1.algorithm": table1_algorithm,
    "staircase.table1.enwik8": table1_enwik8,
    "staircase.table1.reddit": table1_reddit,
    "staircase.table1.base": table1_base,
}
