"""Shared by the tables and figures of Ju et al. 2021, "Staircase Attention for Recurrent Processing of Sequences".

Table 1 has each model's best seed by validation, tables 6 and 7 mean and standard deviation over the seeds; ours show
both. The hyperparameters are those of tables 4 and 5 and of appendix A. N is the number of chunks in the context and,
for Staircase, the number of passes over each chunk (the paper's recurrent steps). C is the chunk size (the paper's
forward size), N C the step size. On text Transformer-XL attends to the current token, as a Staircase does; on the toy
tasks, which are those of the first paper, it does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from stairwell.cores.staircase import StaircaseConfig
from stairwell.experiments.experiment import Experiment, Scale, SweepPoint, Variant
from stairwell.experiments.measures import Metric, TrainingSpeed
from stairwell.experiments.papers.feedback import shared as first
from stairwell.experiments.papers.feedback.shared import STATEMENTS
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core

Variants = tuple[Variant, ...]
Numbers = tuple[str, ...]
ERRORS = (Metric("valid error (%)", "error", "valid"), Metric("test error (%)", "error"))
TEST_ERROR = ERRORS[1:]
GLOBAL_CACHED_RESET = (
    "Global Cached Staircase keeps every chunk, so only its state is reset at the start of each episode; the other "
    "models recognize a new episode by the reset token."
)
SPAN_NOT_PRINTED = (
    "The paper does not print Transformer-XL's attention span. Ours holds a whole episode and excludes the current "
    "token as in the first paper."
)
ATTENDS_TO_CURRENT = "Transformer-XL attends to the current token, as a Staircase does; on the toy tasks it does not."
EPISODES_NOTE = "The paper does not give the number of training episodes; ours is 10,000, as in Fan et al."
SAME_PARAMETERS = (
    "Feedback has its own key and value projections in every layer, because the paper says that all models of a task "
    "have the same number of parameters."
)
CHUNKS = "Chunks and memories are smaller too; the paper's number is next to the variant that corresponds to it."
NAMES = {
    "staircase": "Staircase",
    "cached-staircase": "Cached Staircase",
    "global-cached-staircase": "Global Cached Staircase",
}
CHUNK, PASSES = "size of a chunk (tokens)", "passes (recurrent steps)"


@dataclasses.dataclass(frozen=True)
class StaircaseSizes:
    """A Staircase of a table at both scales: (N, C), or (0, C) where the context is unlimited."""

    core: str
    laptop: tuple[int, int]
    paper: tuple[int, int]

    def variant(self, preset: RunConfig, scale: Scale, numbers: Numbers, **more: Any) -> Variant:
        N, C = self.laptop if scale == "laptop" else self.paper
        context: dict[str, Any] = {"chunk": C, "passes": N} if N else {"chunk": C}
        name = f"{NAMES[self.core]} (C={C}{f', N={N}' if N else ''})"
        config = with_core(preset, self.core, **context, **more)
        # Perplexities at laptop scale are far from the paper's, so its numbers are in the table only, not in plots.
        comparable = scale == "paper" or preset.task_name != "lm"
        points = [SweepPoint(CHUNK, NAMES[self.core], C, printed=comparable and self.paper[1] == C)]
        if self.core == "staircase":  # the others compute a chunk once
            points.append(SweepPoint(PASSES, NAMES[self.core], N, printed=comparable and self.paper[0] == N))
        return Variant(name, config, numbers, tuple(points))


def pick(variants: Variants, *names: str) -> Variants:
    """Return the first variant whose name starts with each of some patterns, where * is any text."""
    return tuple(next(variant for variant in variants if fnmatchcase(variant.name, f"{name}*")) for name in names)


def with_paper_numbers(variants: Variants, columns: slice) -> Variants:
    """Return variants with the paper's numbers for some columns only."""
    return tuple(dataclasses.replace(variant, paper=variant.paper[columns]) for variant in variants)


def segments(preset: RunConfig, variants: Variants, scale: Scale) -> tuple[str, ...]:
    """Return a note that compares segment and step sizes with the paper's; none at paper scale."""
    if scale == "paper":
        return ()
    cores = [variant.config.core for variant in variants]
    steps = {core.chunk * core.passes for core in cores if type(core) is StaircaseConfig}
    sizes = " and ".join(str(size) for size in sorted(steps))
    return (
        f"A segment has {preset.option('train.segment')} tokens and Staircase's step size is {sizes}; in the paper "
        "the best has 128 and 64.",
    )


def by_size(preset: RunConfig, scale: Scale, numbers: Mapping[StaircaseSizes, Numbers]) -> Variants:
    """Return the variants of tables 6 and 7, given their printed numbers."""
    longer = {} if scale == "laptop" else LONGER

    def variant(sizes: StaircaseSizes) -> Variant:
        if sizes.core == "global-cached-staircase":
            return sizes.variant(preset, scale, numbers[sizes], task=RESET_STREAMS, train=longer)
        return sizes.variant(preset, scale, numbers[sizes])

    return tuple(map(variant, numbers))


def seeds_of_cached(variants: Variants, scale: Scale) -> dict[str, int]:
    """Return the seeds of Cached Staircases: appendix A ran every setting ten times, Cached Staircase five times."""
    return {} if scale == "laptop" else {variant.name: 5 for variant in variants if variant.name.startswith("Cached")}


RANDOM_WALK_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: episodes of 100 actions instead of 400, models of 0.1 million parameters instead of 3.2, "
        "unlimited training episodes instead of 10,000, and the same curriculum over the length for every model (8 to "
        "100, advancing at 92% accuracy).",
        SPAN_NOT_PRINTED,
        GLOBAL_CACHED_RESET,
    ),
    "paper": (EPISODES_NOTE, SPAN_NOT_PRINTED, SAME_PARAMETERS, GLOBAL_CACHED_RESET),
}
RESET_STREAMS = {"reset": True}
NO_CURRICULUM = first.NO_CURRICULUM
LONGER = {"steps": 400_000}  # for Global Cached Staircase on both toy tasks
ALGORITHMIC_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: models of 0.1 million parameters instead of 3.2, unlimited training programs instead of 10,000, "
        "and one curriculum over variables, statement types and length for all models. They are tested on programs of "
        f"{STATEMENTS} statements, and on increasing lengths; the paper's programs have 100 statements.",
        "The paper does not print Transformer-XL's attention span. Ours, 128, holds a program of 30 statements and "
        "excludes the current token as in the first paper. Feedback has a memory of 16 tokens instead of 32.",
        GLOBAL_CACHED_RESET.replace("reset token", "END token"),
    ),
    "paper": (
        EPISODES_NOTE,
        "The paper does not print Transformer-XL's attention span. Ours, 512, holds a whole program and excludes the "
        "current token as in the first paper.",
        SAME_PARAMETERS,
        GLOBAL_CACHED_RESET.replace("reset token", "END token"),
    ),
}
ENWIK8_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: 2 layers of width 128 instead of 8 of 512, 0.5 million parameters instead of 25, segments of "
        "128 bytes instead of 256 and chunks and memories a quarter as large, 2,000 steps of 32 sequences instead of "
        f"100,000 of 512, no dropout, scored on {first.ENWIK8_EVAL_BYTES:,} bytes of each split.",
    ),
    "paper": (),
}
ENWIK8_COMMON = (
    "Transformer-XL's attention span is the step size that table 9 gives for it, 256; Feedback's memory has the same "
    "size.",
    ATTENDS_TO_CURRENT,
    SAME_PARAMETERS,
)
REDDIT_DATA: dict[Scale, str] = {
    "laptop": "",
    "paper": "a folder with train, valid and test files of Reddit discussions (pushshift.io), which are not public",
}
BASE_DATA: dict[Scale, str] = {
    "laptop": "WikiText-2 (`stairwell data get wikitext-2`)",
    "paper": "a folder with train, valid and test files of the corpora of Lewis et al. 2021, which are not public",
}
TEXT_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: the paper's texts are not public. The sources of Python's standard library replace "
        "Reddit, WikiText-2 replaces the BASE data; --task.path accepts any other text. 4,000 byte pairs instead of "
        "8,000, 2 layers of width 128 instead of 8 of 1,024, segments of 128 tokens instead of 256 and chunks and "
        "memories a quarter as large, 2,000 steps of 32 sequences (8.2 million tokens) instead of 100,000 of 512, no "
        "dropout. Perplexities of different texts cannot be compared; the order of the models can.",
    ),
    "paper": (
        "The width is 1,024 as in appendix A; table 4 gives 512, which does not give 117 million parameters. The "
        "vocabulary size is not given; 8,000 byte pairs give the reported numbers of parameters.",
    ),
}
REDDIT_SIZES = (
    "Transformer-XL's attention span is not given; ours is the segment length, as in table 9.",
    ATTENDS_TO_CURRENT,
    "Feedback shares one pair of key and value projections among its layers, which gives the reported 102 million "
    "parameters; the other models have 117.",
)
CACHED_SIZE = "Cached Staircase has N = 3 and C = 128, a step size of 384, as in tables 3 and 5; table 2 gives 256."
ONCE = "The paper trained each model once."
PERPLEXITY = (Metric("valid perplexity", "perplexity", "valid"), Metric("test perplexity", "perplexity"))
SPEED = TrainingSpeed("training (tokens/s; the paper: ms per batch)")
MORE_STEPS_ARE_BETTER = "more recurrent steps are better; eight outperform a Transformer-XL with twice the layers"
TWO = StaircaseSizes("staircase", (2, 32), (2, 128))
FOUR = StaircaseSizes("staircase", (4, 16), (4, 64))
EIGHT = StaircaseSizes("staircase", (8, 8), (8, 32))
CACHED = StaircaseSizes("cached-staircase", (3, 32), (3, 128))


def transformer_xl(preset: RunConfig, scale: Scale, numbers: Numbers) -> Variant:
    config = with_core(preset, "transformer-xl", memory=64 if scale == "laptop" else 256, attend_to_current=True)
    return Variant("Transformer-XL", config, numbers)


def deeper(preset: RunConfig, scale: Scale, numbers: Numbers) -> Variant:
    memory = 64 if scale == "laptop" else 256
    config = with_core(preset, "transformer-xl", layers=2 * preset.core.layers, memory=memory, attend_to_current=True)
    return Variant("Transformer-XL, twice as deep", config, numbers)


def feedback(preset: RunConfig, scale: Scale, numbers: Numbers) -> Variant:
    return Variant("Feedback", with_core(preset, "feedback", memory=128 if scale == "laptop" else 512), numbers)


def on_reddit(scale: Scale, name: str, **rest: Any) -> Experiment:
    """Return an experiment on Reddit, with the notes that all of them have."""
    notes = (*TEXT_NOTES[scale], *rest.pop("notes"), *((ONCE,) if scale == "paper" else ()))
    return Experiment(name=name, scale=scale, notes=notes, data=REDDIT_DATA[scale], seeds=text_seeds(scale), **rest)


def text_seeds(scale: Scale) -> int:
    """Return the number of seeds: the paper trained each language model once, at laptop scale there are two."""
    return 2 if scale == "laptop" else 1
