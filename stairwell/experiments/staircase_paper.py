"""The tables and figures of Ju et al. 2021, "Staircase Attention for Recurrent Processing of Sequences".

Table 1 has each model's best seed by validation, tables 6 and 7 mean and deviation over the seeds; ours show both.
The hyperparameters are those of tables 4 and 5 and of appendix A. N is how many chunks are in sight and, for Staircase,
how often each is computed (the paper's recurrent steps); C is the size of a chunk (its forward size); N C is its step
size. On text Transformer-XL sees the current token too, as a Staircase does; on the toy tasks, which are the first
paper's, it is the first paper's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from stairwell.experiments import feedback_paper as first
from stairwell.experiments.feedback_paper import REACH, STATEMENTS, algorithmic_columns, bits_per_byte, of_100
from stairwell.experiments.measures import Score, TrainingSpeed
from stairwell.experiments.setting import Setting
from stairwell.experiments.study import STAIRCASE, Column, Maker, Row, Scale, Study
from stairwell.models import LanguageModelConfig
from stairwell.tasks import algorithmic, language, random_walk
from stairwell.train.config import TrainConfig

Rows = tuple[Row, ...]
Numbers = tuple[str, ...]

ERRORS = (Score("valid error (%)", "error", "valid"), Score("test error (%)", "error"))
TEST_ERROR = ERRORS[1:]
GLOBAL_STARTS = (
    "Global Cached Staircase keeps everything since its row's start, so it alone begins each episode with an empty "
    "memory; the others are told by the reset symbol alone."
)
SPAN_NOT_PRINTED = "The paper does not print Transformer-XL's span; ours holds a whole episode."
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


@dataclasses.dataclass(frozen=True)
class Stairs:
    """A staircase of a table at either scale: (N, C), or (0, C) where N grows."""

    core: str
    laptop: tuple[int, int]
    paper: tuple[int, int]

    def row(self, setting: Setting, scale: Scale, numbers: Numbers, **more: Any) -> Row:
        N, C = self.laptop if scale == "laptop" else self.paper
        looks_back: dict[str, Any] = {"chunk": C, "passes": N} if N else {"chunk": C}
        name = f"{NAMES[self.core]}, {f'N = {N}, ' if N else ''}C = {C}"
        return Row(name, setting.experiment(self.core, **looks_back, **more), numbers)


def pick(rows: Rows, *names: str) -> Rows:
    """The first row that begins with each name."""
    return tuple(next(row for row in rows if row.model.startswith(name)) for name in names)


def with_numbers(rows: Rows, places: slice) -> Rows:
    """Rows with only some of the paper's numbers, for fewer columns."""
    return tuple(dataclasses.replace(row, paper=row.paper[places]) for row in rows)


def five_of_cached(rows: Rows, scale: Scale) -> dict[str, int]:
    """Appendix A: every setting was run ten times, Cached Staircase five times."""
    return {} if scale == "laptop" else {row.model: 5 for row in rows if row.model.startswith("Cached")}


# Random walk: table 1, table 7, figure 2.

RANDOM_WALK: dict[Scale, Setting] = {
    "laptop": first.RANDOM_WALK["laptop"],
    "paper": dataclasses.replace(
        first.RANDOM_WALK["paper"],
        task=random_walk.Config(length=400, train_episodes=10_000),
        train=dataclasses.replace(first.RANDOM_WALK["paper"].train, segment=128),
    ),
}
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
FRESH = {"fresh": True}
LONGER = {"steps": 400_000}  # of Global Cached Staircase on both toy tasks


def table1_random_walk(scale: Scale) -> Study:
    """Table 1, random walk, and the Global Cached Staircase of its appendix."""
    setting = RANDOM_WALK[scale]
    small = scale == "laptop"
    rows = (
        Row("LSTM", setting.experiment("lstm"), ("0.6",)),
        Row("Transformer-XL", setting.experiment("transformer-xl", memory=101 if small else 512), ("84.1",)),
        Row("Feedback", setting.experiment("feedback", memory=16 if small else 64, share_kv=small), ("0.1",)),
        Row("Staircase", setting.experiment("staircase", chunk=8, passes=2 if small else 8), ("0.1",)),
        Row(
            "Cached Staircase",
            setting.experiment("cached-staircase", chunk=4, passes=8 if small else 64),
            ("0.1",),
        ),
        Row(
            "Global Cached Staircase",
            setting.experiment("global-cached-staircase", FRESH, chunk=4, distances=128)
            if small
            else setting.experiment("global-cached-staircase", FRESH, LONGER, chunk=8),
            ("0.0 (table 7)",),
        ),
    )
    return Study(
        name="staircase.table1.random-walk",
        title="Random walk: where is the agent?",
        paper=f"{STAIRCASE}, tables 1 and 7",
        scale=scale,
        columns=TEST_ERROR,
        rows=rows,
        seeds=3 if small else 10,
        seeds_of=five_of_cached(rows, scale),
        claim="all models that carry a state through time solve it, and a Transformer-XL does not",
        notes=RANDOM_WALK_NOTES[scale],
    )


def random_walk_rows(scale: Scale) -> Rows:
    """Table 7, in its order."""
    setting, small = RANDOM_WALK[scale], scale == "laptop"
    stairs = {
        Stairs("staircase", (8, 2), (8, 8)): ("0.2 ± 0.1", "0.2 ± 0.1"),
        Stairs("staircase", (4, 4), (4, 16)): ("0.2 ± 0.2", "0.2 ± 0.2"),
        Stairs("staircase", (2, 8), (2, 32)): ("1.0 ± 1.3", "1.0 ± 1.2"),
        Stairs("staircase", (2, 16), (2, 64)): ("42.1 ± 48.1", "42.1 ± 48.1"),
        Stairs("cached-staircase", (16, 2), (64, 4)): ("0.1 ± 0.0", "0.1 ± 0.0"),
        Stairs("cached-staircase", (8, 4), (32, 8)): ("1.9 ± 2.0", "1.9 ± 2.0"),
        Stairs("cached-staircase", (4, 8), (16, 16)): ("27.2 ± 8.0", "27.3 ± 8.2"),
    }
    unbounded = {
        Stairs("global-cached-staircase", (0, 2), (0, 8)): ("0.0 ± 0.0", "0.0 ± 0.0"),
        Stairs("global-cached-staircase", (0, 4), (0, 16)): ("1.4 ± 0.6", "1.3 ± 0.5"),
        Stairs("global-cached-staircase", (0, 8), (0, 32)): ("52.4 ± 16.4", "52.4 ± 16.4"),
    }
    xl, feedback = table1_random_walk(scale).rows[1:3]
    return (
        dataclasses.replace(xl, paper=("90.1 ± 4.6", "90.1 ± 4.6")),
        dataclasses.replace(feedback, paper=("0.1 ± 0.0", "0.1 ± 0.0")),
        *(each.row(setting, scale, numbers) for each, numbers in stairs.items()),
        *(
            each.row(setting, scale, numbers, task=FRESH, train={} if small else LONGER)
            for each, numbers in unbounded.items()
        ),
    )


def table7(scale: Scale) -> Study:
    rows = random_walk_rows(scale)
    return Study(
        name="staircase.table7",
        title="Random walk in detail: how large a chunk may be",
        paper=f"{STAIRCASE}, table 7",
        scale=scale,
        columns=ERRORS,
        rows=rows,
        seeds=2 if scale == "laptop" else 10,
        seeds_of=five_of_cached(rows, scale),
        claim="small chunks solve it, and the larger a chunk the worse; Transformer-XL fails",
        notes=(*RANDOM_WALK_NOTES[scale], *((CHUNKS,) if scale == "laptop" else ())),
    )


# Algorithm: table 1, table 6, figure 2.

ALGORITHMIC: dict[Scale, Setting] = {
    "laptop": first.ALGORITHMIC["laptop"],
    "paper": dataclasses.replace(
        first.ALGORITHMIC["paper"],
        task=algorithmic.Config(statements=100, variables=3, train_episodes=10_000),
        train=dataclasses.replace(first.ALGORITHMIC["paper"].train, batch=256, segment=128),
    ),
}
ALGORITHMIC_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: models of 0.1 million weights instead of 3.2, new programs without end instead of 10,000, and "
        "one curriculum over variables, kinds of statement and length for all models. They are scored on programs of "
        f"{STATEMENTS} statements, and by how long programs can get; the paper's have 100.",
        "The paper does not print Transformer-XL's span; ours, 128, holds a program of 30 statements. Feedback "
        "remembers 16 tokens instead of 32.",
        GLOBAL_STARTS.replace("reset symbol", "END symbol"),
    ),
    "paper": (
        EPISODES_NOT_PRINTED,
        "The paper does not print Transformer-XL's span; ours, 512, holds a whole program.",
        SAME_WEIGHTS,
        GLOBAL_STARTS.replace("reset symbol", "END symbol"),
    ),
}


def table1_algorithm(scale: Scale) -> Study:
    setting, small = ALGORITHMIC[scale], scale == "laptop"
    own: dict[str, tuple[str, dict[str, Any], str]] = {
        "LSTM": ("lstm", {}, "1.0"),
        "Transformer-XL": ("transformer-xl", {"memory": 128 if small else 512}, "48.7"),
        "Feedback": ("feedback", {"memory": 16 if small else 32, "share_kv": small}, "0.2"),
        "Staircase": ("staircase", {"chunk": 8, "passes": 4 if small else 8}, "0.2"),
        "Cached Staircase": ("cached-staircase", {"chunk": 4, "passes": 8 if small else 16}, "1.2"),
    }
    rows = tuple(
        Row(name, setting.experiment(core, **options), of_100(scale, number))
        for name, (core, options, number) in own.items()
    )
    best = setting.experiment("global-cached-staircase", FRESH, {} if small else LONGER, chunk=4 if small else 8)
    rows += (Row("Global Cached Staircase", best, of_100(scale, "0.0, table 6")),)
    return Study(
        name="staircase.table1.algorithm",
        title="Programs on 3 variables: what do they print?",
        paper=f"{STAIRCASE}, tables 1 and 6",
        scale=scale,
        columns=algorithmic_columns(scale, "error"),
        rows=rows,
        seeds=1 if small else 10,
        seeds_of=five_of_cached(rows, scale),
        claim="all models that carry a state through time solve it, and a Transformer-XL does not",
        notes=(*ALGORITHMIC_NOTES[scale], "The LSTM's number is quoted by the paper from Irie et al. 2021."),
    )


def algorithm_rows(scale: Scale) -> Rows:
    """Table 6, in its order."""
    setting, small = ALGORITHMIC[scale], scale == "laptop"
    stairs = {
        Stairs("staircase", (8, 4), (8, 8)): ("12.8 ± 16.5", "12.6 ± 16.2"),
        Stairs("staircase", (4, 8), (4, 16)): ("0.5 ± 0.5", "0.5 ± 0.7"),
        Stairs("staircase", (2, 16), (2, 32)): ("0.6 ± 0.2", "0.5 ± 0.2"),
        Stairs("staircase", (2, 32), (2, 64)): ("48.5 ± 48.1", "48.5 ± 48.1"),
        Stairs("cached-staircase", (16, 2), (16, 4)): ("24.6 ± 21.8", "24.3 ± 21.7"),
        Stairs("cached-staircase", (8, 4), (8, 8)): ("31.7 ± 28.7", "31.3 ± 28.7"),
        Stairs("cached-staircase", (4, 8), (4, 16)): ("27.8 ± 13.6", "27.3 ± 13.6"),
    }
    unbounded = {
        Stairs("global-cached-staircase", (0, 4), (0, 8)): ("0.0 ± 0.1", "0.0 ± 0.1"),
        Stairs("global-cached-staircase", (0, 8), (0, 16)): ("7.1 ± 19.3", "7.1 ± 19.3"),
        Stairs("global-cached-staircase", (0, 16), (0, 32)): ("20.0 ± 23.0", "19.7 ± 22.7"),
    }
    xl, feedback = table1_algorithm(scale).rows[1:3]
    return (
        dataclasses.replace(xl, paper=of_100(scale, "59.1 ± 12.5", "59.1 ± 12.4")),
        dataclasses.replace(feedback, paper=of_100(scale, "0.3 ± 0.0", "0.3 ± 0.0")),
        *(each.row(setting, scale, of_100(scale, *numbers)) for each, numbers in stairs.items()),
        *(
            each.row(setting, scale, of_100(scale, *numbers), task=FRESH, train={} if small else LONGER)
            for each, numbers in unbounded.items()
        ),
    )


def table6(scale: Scale) -> Study:
    rows, small = algorithm_rows(scale), scale == "laptop"
    at = {"statements": STATEMENTS}
    laptop = (
        Score(f"valid error at {STATEMENTS} statements (%)", "error", "valid", at),
        Score(f"test error at {STATEMENTS} statements (%)", "error", "test", at),
        REACH,
    )
    return Study(
        name="staircase.table6",
        title="Programs in detail: how large a chunk may be",
        paper=f"{STAIRCASE}, table 6",
        scale=scale,
        columns=laptop if small else ERRORS,
        rows=rows,
        seeds=1 if small else 10,
        seeds_of=five_of_cached(rows, scale),
        claim="Staircase solves it with chunks that are not too large; Cached Staircase depends on the seed",
        notes=(*ALGORITHMIC_NOTES[scale], *((CHUNKS,) if small else ())),
    )


# Enwik8: table 1, table 9, figure 2.

ENWIK8: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="lm", task=first.ENWIK8_TASK, layers=2, width=128, heads=4,
        train=TrainConfig(
            steps=2000, batch=32, segment=64, learning_rate=1.5e-3, warmup=200, decay="cosine",
            validate_every=250, valid_rows=32, valid_tokens=100_000,
        ),
    ),
    "paper": Setting(
        task_name="lm", task=first.ENWIK8_TASK, layers=8, width=512, heads=8, dropout=0.3,
        model=LanguageModelConfig(embedding_dropout=0.2),
        train=TrainConfig(
            steps=100_000, batch=512, segment=256, learning_rate=7e-4, warmup=8000, clip=0.1,
            validate_every=2000, checkpoint_every=1000, valid_rows=16, valid_tokens=1_000_000,
        ),
    ),
}  # fmt: skip
ENWIK8_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: 2 layers of width 128 instead of 8 of 512, 0.5 million weights instead of 25, segments of 64 "
        "bytes instead of 256 and chunks and memories a quarter as large, 2,000 updates of 32 rows instead of 100,000 "
        f"of 512, no dropout, scored on {first.ENWIK8_SAMPLE:,} bytes of each split.",
    ),
    "paper": (),
}
ENWIK8_COMMON = (
    "Transformer-XL's span is the step size that table 9 prints for it, 256; Feedback's memory is as large.",
    SAME_WEIGHTS,
)


def enwik8_rows(scale: Scale) -> Rows:
    """Table 9, in its order; what it calls ppl are bits per byte."""
    setting, small = ENWIK8[scale], scale == "laptop"
    memory = 64 if small else 256
    xl = setting.experiment("transformer-xl", memory=memory, sees_itself=True)
    feedback = setting.experiment("feedback", memory=memory, share_kv=False)
    stairs = {
        Stairs("cached-staircase", (17, 4), (65, 4)): ("1.14", "1.13"),
        Stairs("cached-staircase", (9, 8), (9, 32)): ("1.15", "1.13"),
        Stairs("cached-staircase", (5, 16), (5, 64)): ("1.15", "1.13"),
        Stairs("cached-staircase", (3, 32), (3, 128)): ("1.15", "1.13"),
        Stairs("staircase", (2, 32), (2, 128)): ("1.15", "1.14"),
        Stairs("staircase", (4, 16), (4, 64)): ("1.14", "1.14"),
    }
    return (
        Row("Transformer-XL", xl, ("1.17", "1.15")),
        Row("Feedback", feedback, ("1.13", "1.12")),
        *(each.row(setting, scale, numbers) for each, numbers in stairs.items()),
    )


def table1_enwik8(scale: Scale) -> Study:
    rows = pick(
        with_numbers(enwik8_rows(scale), slice(1, 2)), "Transformer-XL", "Feedback", "Staircase, N = 4", "Cached"
    )
    return Study(
        name="staircase.table1.enwik8",
        title="Bytes of Wikipedia (enwik8)",
        paper=f"{STAIRCASE}, table 1",
        scale=scale,
        columns=bits_per_byte(scale)[1:],
        rows=(Row("LSTM", ENWIK8[scale].experiment("lstm"), ("1.38",)), *rows),
        claim="Feedback, Cached Staircase and Staircase are a little better than Transformer-XL, an LSTM far worse",
        notes=(
            *ENWIK8_NOTES[scale],
            *ENWIK8_COMMON,
            "The LSTM's size is not printed; ours has as many layers as the others and about as many weights.",
        ),
        data=first.ENWIK8_DATA,
    )


def table9(scale: Scale) -> Study:
    return Study(
        name="staircase.table9",
        title="Bytes of Wikipedia (enwik8) in detail",
        paper=f"{STAIRCASE}, table 9",
        scale=scale,
        columns=bits_per_byte(scale),
        rows=enwik8_rows(scale),
        claim="all staircases are a little better than Transformer-XL and a little worse than Feedback",
        notes=(*ENWIK8_NOTES[scale], *ENWIK8_COMMON, "What the table calls perplexity are bits per byte."),
        data=first.ENWIK8_DATA,
    )


# Reddit and BASE: tables 1, 2, 3 and 8, figures 2 and 3.

REDDIT: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="lm", task=language.Config(path="stdlib", unit="bpe", vocabulary=8000, documents="none"),
        layers=2, width=128, heads=4,
        train=TrainConfig(
            steps=1500, batch=16, segment=64, learning_rate=1.5e-3, warmup=200, decay="cosine",
            validate_every=250, valid_rows=16, valid_tokens=100_000,
        ),
    ),
    "paper": Setting(
        task_name="lm", task=language.Config(path="", unit="bpe", vocabulary=8000, documents="none"),
        layers=8, width=1024, heads=8, dropout=0.3, model=LanguageModelConfig(embedding_dropout=0.2),
        train=TrainConfig(
            steps=100_000, batch=512, segment=256, learning_rate=7e-4, warmup=8000, clip=0.1,
            validate_every=2000, checkpoint_every=1000, valid_rows=16, valid_tokens=1_000_000,
        ),
    ),
}  # fmt: skip
REDDIT_DATA: dict[Scale, str] = {
    "laptop": "",
    "paper": "a folder with train, valid and test files of Reddit discussions (pushshift.io), which are not public",
}
BASE_DATA: dict[Scale, str] = {
    "laptop": "",
    "paper": "a folder with train, valid and test files of the corpora of Lewis et al. 2021, which are not public",
}
TEXT_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: the sources of Python's standard library, for the paper's text is not public; --task.path takes "
        "any other, WikiText-2 for instance. 8,000 byte pairs as at paper scale, 2 layers of width 128 instead of 8 of "
        "1,024, segments of 64 tokens instead of 256 and chunks and memories a quarter as large, 1,500 updates of 16 "
        "rows instead of 100,000 of 512, no dropout. Perplexities of different texts cannot be compared; the order of "
        "the models can.",
    ),
    "paper": (
        "The width is 1,024 as in appendix A; table 4 prints 512, which does not give 117 million weights. The size of "
        "the vocabulary is not printed: 8,000 byte pairs give the printed numbers of weights.",
    ),
}
REDDIT_SIZES = (
    "Transformer-XL's span is not printed: the segment's length, as in table 9.",
    "Feedback shares one pair of key and value projections among its layers, which gives the printed 102 million "
    "weights where the others have 117.",
)
CACHED_SIZE = "Cached Staircase has N = 3 and C = 128, a step size of 384, as in tables 3 and 5; table 2 prints 256."
ONCE = "The paper trained each model once."
PERPLEXITY = (Score("valid perplexity", "perplexity", "valid"), Score("test perplexity", "perplexity"))
SPEED = TrainingSpeed("training (tokens/s; the paper: ms a batch)")
MOST_STEPS = "the more recurrent steps, the better; eight beat a Transformer-XL twice as deep and large"

TWO = Stairs("staircase", (2, 32), (2, 128))
FOUR = Stairs("staircase", (4, 16), (4, 64))
EIGHT = Stairs("staircase", (8, 8), (8, 32))
CACHED = Stairs("cached-staircase", (3, 32), (3, 128))


def transformer_xl(setting: Setting, scale: Scale, numbers: Numbers) -> Row:
    experiment = setting.experiment("transformer-xl", memory=64 if scale == "laptop" else 256, sees_itself=True)
    return Row("Transformer-XL", experiment, numbers)


def feedback(setting: Setting, scale: Scale, numbers: Numbers) -> Row:
    return Row("Feedback", setting.experiment("feedback", memory=128 if scale == "laptop" else 512), numbers)


def reddit_rows(scale: Scale) -> Rows:
    """Table 2, in its order: valid and test perplexity, milliseconds a batch."""
    setting, small = REDDIT[scale], scale == "laptop"
    memory = 64 if small else 256

    def universal(passes: int, numbers: Numbers) -> Row:
        experiment = setting.experiment("universal", layers=1, memory=memory, passes=passes)
        return Row(f"Universal Transformer, {passes} passes", experiment, numbers)

    deep = setting.experiment("transformer-xl", layers=2 * setting.layers, memory=memory, sees_itself=True)
    # One layer so wide that with its vectors for the symbols it has the weights of Transformer-XL
    wide = setting.experiment("universal", layers=1, width=136 if small else 2560, memory=memory, passes=8)
    return (
        transformer_xl(setting, scale, ("26.5", "26.2", "178")),
        Row("Transformer-XL, twice as deep", deep, ("23.7", "23.4", "359")),
        feedback(setting, scale, ("25.8", "25.5", "3260")),
        CACHED.row(setting, scale, ("26.4", "26.1", "246")),
        TWO.row(setting, scale, ("25.0", "24.8", "297")),
        universal(2, ("39.9", "39.5", "51")),
        FOUR.row(setting, scale, ("23.7", "23.4", "580")),
        universal(4, ("34.9", "34.5", "88")),
        EIGHT.row(setting, scale, ("22.9", "22.6", "1147")),
        universal(8, ("32.3", "32.0", "163")),
        Row("Universal Transformer, 8 passes, as large", wide, ("25.9", "25.6", "766")),
        universal(16, ("31.5", "31.1", "328")),
    )


def on_reddit(scale: Scale, name: str, **rest: Any) -> Study:
    """What all studies of Reddit share."""
    notes = (*TEXT_NOTES[scale], *rest.pop("notes"), *((ONCE,) if scale == "paper" else ()))
    return Study(name=name, scale=scale, notes=notes, data=REDDIT_DATA[scale], **rest)


def table1_reddit(scale: Scale) -> Study:
    rows = with_numbers(reddit_rows(scale), slice(1, 2))
    return on_reddit(
        scale,
        "staircase.table1.reddit",
        title="Discussions (Reddit)",
        paper=f"{STAIRCASE}, table 1",
        columns=PERPLEXITY[1:],
        rows=pick(rows, "Transformer-XL", "Feedback", "Staircase, N = 8", "Cached"),
        claim="Staircase is far better than Transformer-XL and Feedback with the same number of weights",
        notes=(*REDDIT_SIZES, CACHED_SIZE),
    )


def table1_base(scale: Scale) -> Study:
    setting = REDDIT[scale]
    if scale == "paper":
        setting = dataclasses.replace(setting, train=dataclasses.replace(setting.train, steps=80_000))
    return Study(
        name="staircase.table1.base",
        title="A large mix of texts (BASE data)",
        paper=f"{STAIRCASE}, table 1",
        scale=scale,
        columns=PERPLEXITY[:1],
        rows=(
            transformer_xl(setting, scale, ("28.0",)),
            feedback(setting, scale, ("26.6",)),
            EIGHT.row(setting, scale, ("23.0",)),
            CACHED.row(setting, scale, ("27.8",)),
        ),
        claim="Staircase is far better than Transformer-XL and Feedback with the same number of weights",
        notes=(*TEXT_NOTES[scale], *REDDIT_SIZES, *((ONCE,) if scale == "paper" else ())),
        data=BASE_DATA[scale],
    )


def table2(scale: Scale) -> Study:
    return on_reddit(
        scale,
        "staircase.table2",
        title="Discussions (Reddit) in detail",
        paper=f"{STAIRCASE}, table 2",
        columns=(*PERPLEXITY, SPEED),
        rows=reddit_rows(scale),
        claim=MOST_STEPS,
        notes=(
            *REDDIT_SIZES,
            CACHED_SIZE,
            "The large Universal Transformer's width is not printed: "
            + ("136 gives" if scale == "laptop" else "2,560 gives the printed 120 million weights,")
            + " about as many weights as Transformer-XL has.",
        ),
    )


def table3(scale: Scale) -> Study:
    setting = REDDIT[scale]
    stairs = {
        Stairs("cached-staircase", (9, 8), (9, 32)): ("26.4", "489"),
        Stairs("cached-staircase", (5, 16), (5, 64)): ("26.4", "318"),
        CACHED: ("26.4", "246"),
        Stairs("staircase", (2, 16), (2, 64)): ("25.2", "310"),
        TWO: ("25.0", "297"),
        Stairs("staircase", (4, 8), (4, 32)): ("23.8", "605"),
        FOUR: ("23.7", "580"),
    }
    return on_reddit(
        scale,
        "staircase.table3",
        title="Discussions (Reddit): how large a chunk may be",
        paper=f"{STAIRCASE}, table 3",
        columns=(PERPLEXITY[0], SPEED),
        rows=tuple(each.row(setting, scale, numbers) for each, numbers in stairs.items()),
        claim="for the same number of recurrent steps the size of a chunk hardly matters; larger ones are faster",
        notes=(),
    )


def table8(scale: Scale) -> Study:
    length = 64 if scale == "laptop" else 256
    documents: language.Documents = "files" if scale == "laptop" else "lines"
    task = dataclasses.replace(REDDIT[scale].task, episode=length, documents=documents)
    setting = dataclasses.replace(REDDIT[scale], task=task)
    stairs = {
        Stairs("cached-staircase", (8, 8), (8, 32)): ("27.9", "27.6"),
        Stairs("cached-staircase", (4, 16), (4, 64)): ("27.8", "27.6"),
        Stairs("cached-staircase", (2, 32), (2, 128)): ("27.6", "27.3"),
        TWO: ("26.7", "26.4"),
        FOUR: ("25.2", "24.9"),
        EIGHT: ("24.3", "24.0"),
    }
    return on_reddit(
        scale,
        "staircase.table8",
        title="Discussions (Reddit) in episodes of one length",
        paper=f"{STAIRCASE}, table 8",
        columns=PERPLEXITY,
        rows=(
            transformer_xl(setting, scale, ("27.6", "27.3")),
            *(each.row(setting, scale, numbers) for each, numbers in stairs.items()),
        ),
        claim="within short episodes too, more recurrent steps are better",
        notes=(
            f"Episodes of {length} tokens, each with a fresh start: "
            + (
                "files are cut." if scale == "laptop" else "a line of the text is a discussion, cut where it is longer."
            ),
        ),
    )


# Figures 2 and 3: the same trainings, seen otherwise.

FIGURE2 = (
    "The figure's numbers are not in the text; those beside ours are of {table}. Which rows it has is not said either: "
    "Staircase with 2, 4 and 8 recurrent steps at one step size, and the baselines."
)


def figure2_random_walk(scale: Scale) -> Study:
    rows = pick(
        with_numbers(random_walk_rows(scale), slice(1, 2)),
        "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4", "Staircase, N = 8",
    )  # fmt: skip
    return Study(
        name="staircase.figure2.random-walk",
        title="Random walk: how many recurrent steps it takes",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=TEST_ERROR,
        rows=rows,
        seeds=3 if scale == "laptop" else 10,
        seeds_of=five_of_cached(rows, scale),
        claim="two recurrent steps are enough to track a state",
        notes=(*RANDOM_WALK_NOTES[scale][:-1], FIGURE2.format(table="table 7")),
    )


def figure2_algorithm(scale: Scale) -> Study:
    rows = pick(
        with_numbers(algorithm_rows(scale), slice(1, None)),
        "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4", "Staircase, N = 8",
    )  # fmt: skip
    return Study(
        name="staircase.figure2.algorithm",
        title="Programs: how many recurrent steps it takes",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=algorithmic_columns(scale, "error"),
        rows=rows,
        seeds=1 if scale == "laptop" else 10,
        seeds_of=five_of_cached(rows, scale),
        claim="two recurrent steps are enough to track a state",
        notes=(*ALGORITHMIC_NOTES[scale][:-1], FIGURE2.format(table="table 6")),
    )


def figure2_enwik8(scale: Scale) -> Study:
    rows = with_numbers(enwik8_rows(scale), slice(1, 2))
    most = EIGHT.row(ENWIK8[scale], scale, ())
    return Study(
        name="staircase.figure2.enwik8",
        title="Bytes of Wikipedia (enwik8): what recurrent steps bring",
        paper=f"{STAIRCASE}, figure 2",
        scale=scale,
        columns=bits_per_byte(scale)[1:],
        rows=(*pick(rows, "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4"), most),
        claim="more recurrent steps bring little here, where the context matters most",
        notes=(
            *ENWIK8_NOTES[scale],
            *ENWIK8_COMMON,
            FIGURE2.format(table="table 9"),
            "Table 9 has no Staircase with 8 steps; ours is there to go on with the curve.",
        ),
        data=first.ENWIK8_DATA,
    )


def figure2_reddit(scale: Scale) -> Study:
    rows = with_numbers(reddit_rows(scale), slice(1, 2))
    return on_reddit(
        scale,
        "staircase.figure2.reddit",
        title="Discussions (Reddit): what recurrent steps bring",
        paper=f"{STAIRCASE}, figure 2",
        columns=PERPLEXITY[1:],
        rows=pick(
            rows, "Transformer-XL", "Feedback", "Cached", "Staircase, N = 2", "Staircase, N = 4", "Staircase, N = 8"
        ),
        claim="the more recurrent steps, the better",
        notes=(*REDDIT_SIZES, CACHED_SIZE, FIGURE2.format(table="table 2")),
    )


def figure3(scale: Scale) -> Study:
    columns: tuple[Column, ...] = (PERPLEXITY[1], SPEED)
    return on_reddit(
        scale,
        "staircase.figure3",
        title="Discussions (Reddit): training time and perplexity",
        paper=f"{STAIRCASE}, figure 3",
        columns=columns,
        rows=with_numbers(reddit_rows(scale), slice(1, None)),
        claim="Staircase buys perplexity with training time at the same number of weights; Feedback is far slower",
        notes=(*REDDIT_SIZES, CACHED_SIZE, "The models, and the numbers beside ours, are those of table 2."),
    )


STUDIES: dict[str, Maker] = {
    "staircase.table1.random-walk": table1_random_walk,
    "staircase.table1.algorithm": table1_algorithm,
    "staircase.table1.enwik8": table1_enwik8,
    "staircase.table1.reddit": table1_reddit,
    "staircase.table1.base": table1_base,
    "staircase.figure2.random-walk": figure2_random_walk,
    "staircase.figure2.algorithm": figure2_algorithm,
    "staircase.figure2.enwik8": figure2_enwik8,
    "staircase.figure2.reddit": figure2_reddit,
    "staircase.figure3": figure3,
    "staircase.table2": table2,
    "staircase.table3": table3,
    "staircase.table6": table6,
    "staircase.table7": table7,
    "staircase.table8": table8,
    "staircase.table9": table9,
}
