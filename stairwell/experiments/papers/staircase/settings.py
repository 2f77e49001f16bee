"""What the tables and figures of Ju et al. 2021, "Staircase Attention for Recurrent Processing of Sequences", share.

Table 1 has each model's best seed by validation, tables 6 and 7 mean and deviation over the seeds; ours show both.
The hyperparameters are those of tables 4 and 5 and of appendix A. N is how many chunks are in sight and, for Staircase,
how often each is computed (the paper's recurrent steps); C is the size of a chunk (its forward size); N C is its step
size. On text Transformer-XL sees the current token too, as a Staircase does; on the toy tasks, which are the first
paper's, it is the first paper's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from stairwell.experiments.experiment import Experiment, Scale, SweepPoint, Variant
from stairwell.experiments.measures import Metric, TrainingSpeed
from stairwell.experiments.papers.feedback import settings as first
from stairwell.experiments.papers.feedback.settings import STATEMENTS
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core

Rows = tuple[Variant, ...]
Numbers = tuple[str, ...]
ERRORS = (Metric("valid error (%)", "error", "valid"), Metric("test error (%)", "error"))
TEST_ERROR = ERRORS[1:]
GLOBAL_STARTS = (
    "Global Cached Staircase keeps everything since its row's start, so it alone begins each episode with an empty "
    "memory; the others are told by the reset symbol alone."
)
SPAN_NOT_PRINTED = (
    "The paper does not print Transformer-XL's span; ours holds a whole episode, the current token left out as in the "
    "first paper."
)
SEES_ITSELF = "Transformer-XL sees the current token too, as a Staircase does; on the toy tasks it does not."
EPISODES_NOT_PRINTED = "The number of training episodes is not printed; 10,000 as in the first paper."
SAME_WEIGHTS = (
    "Feedback has its own key and value projections in every layer, for the paper says that all models of a task have "
    "the same number of weights."
)
CHUNKS = "Chunks and memories are smaller too; the paper's number stands beside the row that takes its place."
NAMES = {
    "staircase": "Staircase",
    "cached-staircase": "Cached Staircase",
    "global-cached-staircase": "Global Cached Staircase",
}
CHUNK, PASSES = "size of a chunk (tokens)", "passes (recurrent steps)"


@dataclasses.dataclass(frozen=True)
class Stairs:
    """A staircase of a table at either scale: (N, C), or (0, C) where N grows."""

    core: str
    laptop: tuple[int, int]
    paper: tuple[int, int]

    def variant(self, setting: RunConfig, scale: Scale, numbers: Numbers, **more: Any) -> Variant:
        N, C = self.laptop if scale == "laptop" else self.paper
        looks_back: dict[str, Any] = {"chunk": C, "passes": N} if N else {"chunk": C}
        name = f"{NAMES[self.core]}, {f'N = {N}, ' if N else ''}C = {C}"
        experiment = with_core(setting, self.core, **looks_back, **more)
        # A laptop's perplexities are far from the paper's, whose numbers stand in the table only.
        comparable = scale == "paper" or setting.task_name != "lm"
        places = [SweepPoint(CHUNK, NAMES[self.core], C, printed=comparable and self.paper[1] == C)]
        if self.core == "staircase":  # the others compute a chunk once
            places.append(SweepPoint(PASSES, NAMES[self.core], N, printed=comparable and self.paper[0] == N))
        return Variant(name, experiment, numbers, tuple(places))


def pick(variants: Rows, *names: str) -> Rows:
    """The first row that begins with each name."""
    return tuple(next(variant for variant in variants if variant.name.startswith(name)) for name in names)


def with_numbers(variants: Rows, places: slice) -> Rows:
    """Rows with only some of the paper's numbers, for fewer columns."""
    return tuple(dataclasses.replace(variant, paper=variant.paper[places]) for variant in variants)


def segments(setting: RunConfig, variants: Rows, scale: Scale) -> tuple[str, ...]:
    """How a laptop's segment compares with the step sizes of its Staircases."""
    if scale == "paper":
        return ()
    cores = [variant.config.core for variant in variants if variant.config.core_name == "staircase"]
    sizes = " and ".join(str(size) for size in sorted({core.chunk * core.passes for core in cores}))
    return (
        f"A segment has {setting.train.segment} tokens, Staircase's step size is {sizes}; the paper's best has 128 and "
        "64.",
    )


def five_of_cached(variants: Rows, scale: Scale) -> dict[str, int]:
    """Appendix A: every setting was run ten times, Cached Staircase five times."""
    return {} if scale == "laptop" else {variant.name: 5 for variant in variants if variant.name.startswith("Cached")}


RANDOM_WALK_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: episodes of 100 actions instead of 400, models of 0.1 million weights instead of 3.2, new "
        "episodes without end instead of 10,000, and for every model the same curriculum over the length (8 to 100, "
        "the next at 92% accuracy).",
        SPAN_NOT_PRINTED,
        GLOBAL_STARTS,
    ),
    "paper": (EPISODES_NOT_PRINTED, SPAN_NOT_PRINTED, SAME_WEIGHTS, GLOBAL_STARTS),
}
FRESH = {"reset": True}
PLAIN = first.PLAIN
LONGER = {"steps": 400_000}  # of Global Cached Staircase on both toy tasks
ALGORITHMIC_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: models of 0.1 million weights instead of 3.2, new programs without end instead of 10,000, and "
        "one curriculum over variables, kinds of statement and length for all models. They are scored on programs of "
        f"{STATEMENTS} statements, and by how long programs can get; the paper's have 100.",
        "The paper does not print Transformer-XL's span; ours, 128, holds a program of 30 statements, the current "
        "token left out as in the first paper. Feedback remembers 16 tokens instead of 32.",
        GLOBAL_STARTS.replace("reset symbol", "END symbol"),
    ),
    "paper": (
        EPISODES_NOT_PRINTED,
        "The paper does not print Transformer-XL's span; ours, 512, holds a whole program, the current token left out "
        "as in the first paper.",
        SAME_WEIGHTS,
        GLOBAL_STARTS.replace("reset symbol", "END symbol"),
    ),
}
ENWIK8_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: 2 layers of width 128 instead of 8 of 512, 0.5 million parameters instead of 25, segments of "
        "128 bytes instead of 256 and chunks and memories a quarter as large, 2,000 steps of 32 sequences instead of "
        f"100,000 of 512, no dropout, scored on {first.ENWIK8_SAMPLE:,} bytes of each split.",
    ),
    "paper": (),
}
ENWIK8_COMMON = (
    "Transformer-XL's span is the step size that table 9 prints for it, 256; Feedback's memory is as large.",
    SEES_ITSELF,
    SAME_WEIGHTS,
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
        "Laptop scale: the paper's texts are not public. The sources of Python's standard library take the place of "
        "Reddit, WikiText-2 that of the BASE data; --task.path takes any other text. 4,000 byte pairs instead of "
        "8,000, 2 layers of width 128 instead of 8 of 1,024, segments of 128 tokens instead of 256 and chunks and "
        "memories a quarter as large, 2,000 steps of 32 sequences (8.2 million tokens) instead of 100,000 of 512, no "
        "dropout. Perplexities of different texts cannot be compared; the order of the models can.",
    ),
    "paper": (
        "The width is 1,024 as in appendix A; table 4 prints 512, which does not give 117 million weights. The size of "
        "the vocabulary is not printed: 8,000 byte pairs give the printed numbers of weights.",
    ),
}
REDDIT_SIZES = (
    "Transformer-XL's span is not printed: the segment's length, as in table 9.",
    SEES_ITSELF,
    "Feedback shares one pair of key and value projections among its layers, which gives the printed 102 million "
    "weights where the others have 117.",
)
CACHED_SIZE = "Cached Staircase has N = 3 and C = 128, a step size of 384, as in tables 3 and 5; table 2 prints 256."
ONCE = "The paper trained each model once."
PERPLEXITY = (Metric("valid perplexity", "perplexity", "valid"), Metric("test perplexity", "perplexity"))
SPEED = TrainingSpeed("training (tokens/s; the paper: ms a batch)")
MOST_STEPS = "the more recurrent steps, the better; eight beat a Transformer-XL twice as deep and large"
TWO = Stairs("staircase", (2, 32), (2, 128))
FOUR = Stairs("staircase", (4, 16), (4, 64))
EIGHT = Stairs("staircase", (8, 8), (8, 32))
CACHED = Stairs("cached-staircase", (3, 32), (3, 128))


def transformer_xl(setting: RunConfig, scale: Scale, numbers: Numbers) -> Variant:
    experiment = with_core(setting, "transformer-xl", memory=64 if scale == "laptop" else 256, attend_to_current=True)
    return Variant("Transformer-XL", experiment, numbers)


def deeper(setting: RunConfig, scale: Scale, numbers: Numbers) -> Variant:
    memory = 64 if scale == "laptop" else 256
    experiment = with_core(
        setting, "transformer-xl", layers=2 * setting.core.layers, memory=memory, attend_to_current=True
    )
    return Variant("Transformer-XL, twice as deep", experiment, numbers)


def feedback(setting: RunConfig, scale: Scale, numbers: Numbers) -> Variant:
    return Variant("Feedback", with_core(setting, "feedback", memory=128 if scale == "laptop" else 512), numbers)


def on_reddit(scale: Scale, name: str, **rest: Any) -> Experiment:
    """What all studies of Reddit share."""
    notes = (*TEXT_NOTES[scale], *rest.pop("notes"), *((ONCE,) if scale == "paper" else ()))
    return Experiment(name=name, scale=scale, notes=notes, data=REDDIT_DATA[scale], seeds=text_seeds(scale), **rest)


def text_seeds(scale: Scale) -> int:
    """The paper trained each language model once; at laptop scale there is time for two seeds."""
    return 2 if scale == "laptop" else 1
