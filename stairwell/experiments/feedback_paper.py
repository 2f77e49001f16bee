"""The tables and figures of Fan et al. 2020, "Addressing Some Limitations of Transformers with Feedback Memory".

Tables 1 and 3 to 6 and figures 5, 8 and 9: everything on toy tasks and on text. At paper scale the hyperparameters are
those of table 9 and of sections 7.1, 7.4 and 7.6 (arXiv version 3); at laptop scale all the models of a table have one
recipe. "Transformer" is the paper's, with relative positions and a cache: Transformer-XL. At the end are two studies of
ours, parity and the word problem of S5.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from stairwell.cores import build
from stairwell.experiments.experiment import Experiment
from stairwell.experiments.measures import ByTime, DecodingSpeed, Reach, Sample, Score, TrainingSpeed
from stairwell.experiments.setting import Setting
from stairwell.experiments.study import FEEDBACK, Column, Maker, Row, Scale, Study
from stairwell.models import LanguageModelConfig
from stairwell.tasks import algorithmic, copying, counting, language, parity, permutations, random_walk
from stairwell.train.config import TrainConfig
from stairwell.train.curriculum import Curriculum

ACCURACY = (Score("test accuracy (%)", "accuracy"),)
STATEMENTS = 20  # of the programs that the laptop's models are scored on
REACH = Reach(
    "longest programs at 90%", "statements", (4, 5, 6, 8, 10, 13, 16, 20, 25, 31, 39, 49, 61, 76, 95, 100)
)  # fmt: skip


def weights(core: Any) -> int:
    """How many weights a core has, from its config alone."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(core).parameters())


def as_large_as(goal: Experiment, experiment: Experiment, symbols: int = 0) -> Experiment:
    """The experiment with as many weights as another: by its inner width or, an LSTM, by its width, which the vectors
    of its `symbols` have too."""
    core, wanted = experiment.core, weights(goal.core)
    if experiment.core_name == "lstm":
        # 8 L (D^2 + D) weights in L layers of width D
        excess = lambda D: abs(8 * core.layers * D * (D + 1) + 2 * symbols * (D - goal.core.width) - wanted)  # noqa: E731
        return dataclasses.replace(
            experiment, core=dataclasses.replace(core, width=min(range(2, 8 * core.width, 2), key=excess))
        )
    least, next_one = (weights(dataclasses.replace(core, inner=inner)) for inner in (8, 16))
    inner = 8 * max(1, 1 + round((wanted - least) / (next_one - least)))
    return dataclasses.replace(experiment, core=dataclasses.replace(core, inner=inner))


# Table 1: toy tasks.

RANDOM_WALK: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="random-walk", task=random_walk.Config(length=100), layers=2, width=64, heads=1,
        train=TrainConfig(
            steps=6000, batch=32, segment=32, learning_rate=1e-3, warmup=300, decay="cosine",
            curriculum="length=8..100", curriculum_accuracy=92, validate_every=500, checkpoint_every=500, valid_rows=50,
        ),
    ),
    "paper": Setting(
        task_name="random-walk", task=random_walk.Config(length=100, train_episodes=10_000),
        layers=4, width=256, heads=4, dropout=0.2,
        train=TrainConfig(
            steps=50_000, batch=512, segment=64, learning_rate=1e-4, warmup=1000, clip=0.1,
            validate_every=1000, checkpoint_every=1000, valid_rows=50,
        ),
    ),
}  # fmt: skip

ALGORITHMIC: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="algorithmic", task=algorithmic.Config(statements=STATEMENTS), layers=2, width=64, heads=4,
        train=TrainConfig(
            steps=30_000, batch=32, segment=32, learning_rate=3e-3, warmup=200, decay="cosine",
            # To tell variables apart is what takes longest to learn: it comes first, alone.
            curriculum=(
                "variables=2,statements=6,assigns=8,changes=0,prints=4,ifs=0;"
                "variables=3,statements=8,assigns=8,changes=0,prints=4,ifs=0;"
                "variables=3,statements=8,assigns=8,changes=1,prints=4,ifs=0;"
                "variables=3,statements=8,assigns=8,changes=1,prints=4,ifs=1;"
                "variables=3,statements=8,assigns=2,changes=1,prints=2,ifs=1;"
                "variables=3,statements=8..100,assigns=1,changes=1,prints=1,ifs=1"
            ),
            curriculum_accuracy=92, validate_every=1000, checkpoint_every=1000, valid_rows=50,
        ),
    ),
    "paper": dataclasses.replace(
        RANDOM_WALK["paper"], task_name="algorithmic",
        task=algorithmic.Config(statements=100, train_episodes=10_000),
        train=dataclasses.replace(RANDOM_WALK["paper"].train, steps=100_000),
    ),
}  # fmt: skip

COPYING: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="copy", task=copying.Config(test_episodes=100), layers=2, width=128, heads=4,
        train=TrainConfig(
            steps=3000, batch=16, segment=82, learning_rate=1e-3, warmup=200, decay="cosine",
            curriculum="length=2..40", valid_rows=50,
        ),
    ),
    "paper": dataclasses.replace(
        RANDOM_WALK["paper"], task_name="copy", task=copying.Config(train_episodes=10_000),
        train=dataclasses.replace(RANDOM_WALK["paper"].train, segment=82),
    ),
}  # fmt: skip

COUNTING: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="counting", task=counting.Config(), layers=2, width=64, heads=2,
        train=TrainConfig(steps=2000, batch=32, segment=64, learning_rate=1e-3, warmup=300, valid_rows=50),
    ),
    "paper": dataclasses.replace(
        RANDOM_WALK["paper"], task_name="counting", task=counting.Config(train_episodes=10_000)
    ),
}  # fmt: skip

UPDATES_NOT_PRINTED = (
    "The number of updates is not printed; the second paper's were taken, 50,000 for the random walk and 100,000 for "
    "programs. Neither is the number of runs: one seed."
)
NOT_PRINTED = (
    "No hyperparameters are printed for this task; those of the random walk were taken, its 10,000 training sequences "
    "and the second paper's 50,000 updates included. One seed."
)
LSTM_IS_OURS = "The paper has no LSTM here; ours has as many weights as the others."
FAR_DISTANCES = (
    "The memory holds a whole sequence, that of a test too, so that nobody fails for want of sight; but the vectors of "
    "distances beyond those of training are never trained, for either transformer."
)
KEYS_EACH = (
    "Feedback has its own key and value projections in every layer, which gives it the weights of the Transformer."
)
KEYS_SHARED = "Feedback shares one pair of key and value projections among its layers and has that much fewer weights."


Numbers = tuple[str, ...]


def two_and_an_lstm(
    setting: Setting, scale: Scale, memory: int, transformer: Numbers, feedback: Numbers
) -> tuple[Row, ...]:
    """The paper's two models with its numbers, and an LSTM."""
    shared = scale == "laptop"
    return (
        Row("LSTM", setting.experiment("lstm")),
        Row("Transformer", setting.experiment("transformer-xl", memory=memory), transformer),
        Row("Feedback", setting.experiment("feedback", memory=memory, share_kv=shared), feedback),
    )


def copy_or_reverse(scale: Scale, reverse: bool) -> Study:
    setting = COPYING[scale]
    what = "reverse" if reverse else "copy"
    setting = dataclasses.replace(
        setting, task_name=what, task=dataclasses.replace(setting.task, reverse=reverse)
    )  # fmt: skip
    numbers = (("", "50.2", "5.9"), ("", "74.8", "29.2")) if reverse else (("", "59.1", "6.2"), ("", "76.2", "23.6"))
    smaller = (
        "Laptop scale: models of 0.4 million weights instead of 3.2, new sequences without end, 3,000 updates of 16 "
        "rows, a curriculum over the length (2 to 40, the next at 96% accuracy), 100 sequences to test on."
    )
    return Study(
        name=f"feedback.table1.{what}",
        title=f"{what.capitalize()} digits: trained on 40, tested on 400",
        paper=f"{FEEDBACK}, table 1",
        scale=scale,
        columns=(
            Score("character accuracy at 40 (%)", "accuracy", task={"test_length": 40}),
            Score("character accuracy at 400 (%)", "accuracy"),
            Score("sequence accuracy at 400 (%)", "sequence_accuracy"),
        ),
        rows=two_and_an_lstm(setting, scale, 801, *numbers),
        claim="Feedback gets more of ten times longer sequences right than a Transformer does",
        notes=(
            *((smaller, KEYS_SHARED) if scale == "laptop" else (NOT_PRINTED, KEYS_EACH)),
            "A segment is a whole training sequence of 82 tokens. Each digit of the answer is scored with the true "
            "ones before it given; whether the paper gave them is not said.",
            FAR_DISTANCES,
            LSTM_IS_OURS,
        ),
    )


def table1_copy(scale: Scale) -> Study:
    return copy_or_reverse(scale, reverse=False)


def table1_reverse(scale: Scale) -> Study:
    return copy_or_reverse(scale, reverse=True)


def counting_to(scale: Scale, length: int, numbers: tuple[str, str]) -> Study:
    setting, most = COUNTING[scale], length
    if scale == "laptop" and length > 200:
        most = 200
    setting = dataclasses.replace(setting, task=dataclasses.replace(setting.task, length=most))
    smaller = "Laptop scale: models of 0.1 million weights instead of 3.2, new sequences without end, 2,000 updates."
    if most < length:
        longer = dataclasses.replace(setting.train, steps=4000, decay="cosine", curriculum=f"length=10..{most}")
        setting = dataclasses.replace(setting, train=longer)
        smaller = smaller.replace("2,000 updates", f"4,000 updates, counts up to {most} instead of {length:,}")
    suffix = f" (up to {length:,})" if most < length else ""
    return Study(
        name=f"feedback.table1.counting-{length}",
        title=f"Counting up to {most:,}: as many Bs as there were As",
        paper=f"{FEEDBACK}, table 1",
        scale=scale,
        columns=(Score("sequence accuracy (%)", "sequence_accuracy"),),
        rows=two_and_an_lstm(setting, scale, 2 * most + 1, *((number + suffix,) for number in numbers)),
        claim="over long sequences Feedback counts better than a Transformer",
        notes=(
            *((smaller, KEYS_SHARED) if scale == "laptop" else (NOT_PRINTED, KEYS_EACH)),
            "The paper does not say what its accuracy is of. Always answering B would have 99.8% of the characters "
            "right at counts up to 1,000, more than either model's number, so sequences were taken: every B and the "
            "end.",
            "The memory holds a whole sequence.",
            LSTM_IS_OURS,
        ),
    )


def table1_counting_50(scale: Scale) -> Study:
    return counting_to(scale, 50, ("99.6", "99.7"))


def table1_counting_1000(scale: Scale) -> Study:
    return counting_to(scale, 1000, ("82.4", "95.3"))


def table1_random_walk(scale: Scale) -> Study:
    setting, small = RANDOM_WALK[scale], scale == "laptop"
    smaller = (
        "Laptop scale: models of 0.1 million weights instead of 3.2, new episodes without end instead of 10,000, and "
        "for every model the same curriculum over the length (8 to 100, the next at 92% accuracy)."
    )
    return Study(
        name="feedback.table1.random-walk",
        title="Random walk of 100 actions: where is the agent?",
        paper=f"{FEEDBACK}, table 1",
        scale=scale,
        columns=ACCURACY,
        rows=(
            Row("LSTM", setting.experiment("lstm")),
            Row("Transformer", setting.experiment("transformer-xl", memory=101 if small else 100), ("68",)),
            Row("Feedback", setting.experiment("feedback", memory=16 if small else 100, share_kv=small), ("100",)),
        ),
        seeds=3 if small else 1,
        claim="Feedback tracks the agent without fault and a Transformer, which sees every action, does not",
        notes=(
            *((smaller, KEYS_SHARED) if small else (UPDATES_NOT_PRINTED, KEYS_EACH)),
            *(("Feedback remembers 16 tokens where the paper's has 100.",) if small else ()),
            LSTM_IS_OURS,
        ),
    )


ALGORITHMIC_NOTE = (
    "Laptop scale: models of 0.1 million weights instead of 3.2, new programs without end instead of 10,000, and one "
    "curriculum over variables, kinds of statement and length for all models. They are scored on programs of "
    f"{STATEMENTS} statements, and by how long programs can get; the paper's have 100. Feedback remembers 16 tokens; "
    "the Transformer's 128 hold a program of 30 statements."
)


def algorithmic_columns(scale: Scale, metric: str) -> tuple[Column, ...]:
    if scale == "paper":
        return (Score(f"test {metric} (%)", metric),)
    return (Score(f"test {metric} at {STATEMENTS} statements (%)", metric, task={"statements": STATEMENTS}), REACH)


def of_100(scale: Scale, *numbers: str) -> tuple[str, ...]:
    """The paper's numbers, which are of programs of 100 statements."""
    return numbers if scale == "paper" else (*(f"{number} (100 statements)" for number in numbers), "")


def on_more_variables(curriculum: str, variables: int) -> str:
    """A curriculum that ends with 3 variables, made to go on to more: its last stages have them all."""
    if variables == 3:
        return curriculum
    stages = Curriculum.parse(curriculum).stages
    last = [stage for stage in stages if stage.get("variables", 3) == 3]
    stages = [stage for stage in stages if stage not in last[1:]]
    stages += [{**stage, "variables": variables} for stage in last]
    return ";".join(",".join(f"{name}={value}" for name, value in stage.items()) for stage in stages)


def programs(scale: Scale, variables: int, numbers: tuple[str, str, str, str]) -> Study:
    setting, small = ALGORITHMIC[scale], scale == "laptop"
    setting = dataclasses.replace(
        setting,
        task=dataclasses.replace(setting.task, variables=variables),
        train=dataclasses.replace(setting.train, curriculum=on_more_variables(setting.train.curriculum, variables)),
    )
    span, twice = 128 if small else 100, 2 * setting.layers
    lstm, transformer, deep, feedback = (of_100(scale, number) for number in numbers)
    return Study(
        name=f"feedback.table1.algorithmic-{variables}",
        title=f"Programs on {variables} variables: what do they print?",
        paper=f"{FEEDBACK}, table 1 and section 4.1.2",
        scale=scale,
        columns=algorithmic_columns(scale, "accuracy"),
        rows=(
            Row("LSTM", setting.experiment("lstm"), lstm),
            Row(
                f"Transformer, {setting.layers} layers", setting.experiment("transformer-xl", memory=span), transformer
            ),
            Row(f"Transformer, {twice} layers", setting.experiment("transformer-xl", memory=span, layers=twice), deep),
            Row("Feedback", setting.experiment("feedback", memory=16 if small else 100, share_kv=small), feedback),
        ),
        claim=(
            "Transformers cannot keep track of the variables, twice as deep ones hardly better; an LSTM can with three "
            "variables and loses track of five; Feedback does both"
        ),
        notes=(ALGORITHMIC_NOTE, KEYS_SHARED)
        if small
        else (
            UPDATES_NOT_PRINTED,
            KEYS_EACH,
            "The attention span of 100 is the random walk's, as section 7.4 says; a program has about 430 tokens.",
            "The LSTM's size is not printed; ours has as many layers as the Transformer and about as many weights.",
        ),
    )


def table1_algorithmic_3(scale: Scale) -> Study:
    return programs(scale, 3, ("82.8", "33.7", "47.4", "99.1"))


def table1_algorithmic_5(scale: Scale) -> Study:
    return programs(scale, 5, ("32.1", "37.5", "29.1", "92.6"))


# Tables 3, 5 and 6: words. The paper has two sizes; figure 9 has the small one.

WORDS = language.Config(path="", unit="words", end_of_line=False)
WIKITEXT: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="lm", task=dataclasses.replace(WORDS, vocabulary=10_000),
        layers=4, width=128, heads=4, dropout=0.1, model=LanguageModelConfig(tied=True, embedding_dropout=0.1),
        train=TrainConfig(
            steps=2000, batch=16, segment=64, learning_rate=1.5e-3, warmup=200, finetune_steps=200,
            validate_every=200, valid_rows=16, valid_tokens=100_000,
        ),
    ),
    "paper": Setting(
        task_name="lm", task=WORDS, layers=8, width=1024, heads=8, dropout=0.3,
        model=LanguageModelConfig(
            tied=True, adaptive=(20_000, 40_000, 200_000), embedding_dropout=0.2, output_dropout=0.2
        ),
        train=TrainConfig(
            steps=200_000, batch=512, segment=256, learning_rate=7e-4, warmup=8000, clip=0.1, finetune_steps=10_000,
            validate_every=2000, checkpoint_every=1000, valid_rows=16,
        ),
    ),
}  # fmt: skip
WIKITEXT_SMALL = dataclasses.replace(
    WIKITEXT["paper"], layers=4, width=512, dropout=0.1, core={"head_width": 128, "inner": 4096},
    model=dataclasses.replace(WIKITEXT["paper"].model, embedding_dropout=0.1, output_dropout=0.1),
)  # fmt: skip
WIKITEXT_DATA: dict[Scale, str] = {
    "laptop": "WikiText-2 (`stairwell data get wikitext-2`)",
    "paper": "WikiText-103 (`stairwell data get wikitext-103`)",
}
WIKITEXT_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: WikiText-2 instead of WikiText-103, its 10,000 most frequent words, one plain softmax, models "
        "of 2 million weights, 2,200 updates of 16 rows of 64 tokens.",
    ),
    "paper": (
        "The adaptive embeddings' cutoffs are not printed; 20,000, 40,000 and 200,000 as in the work the paper cites "
        "give the printed numbers of weights. The rate of the last sublayer's dropout is not printed: the embedding's.",
    ),
}
WITH_LINE_ENDS = (
    "Trained without line ends and fine-tuned with them, as section 7.6 tells; scores are of the text with line ends."
)
FAR = {"memory": 2048, "adaptive_span": True, "span_loss": 1e-5}
FAR_SMALL = {"memory": 256, "adaptive_span": True, "span_loss": 1e-5}


def table3(scale: Scale) -> Study:
    setting, small = WIKITEXT[scale], scale == "laptop"
    look_back: dict[str, Any] = {"memory": 64} if small else FAR
    last = {"finetune_task": "end_of_line=true"}
    return Study(
        name="feedback.table3",
        title="Words of Wikipedia",
        paper=f"{FEEDBACK}, table 3",
        scale=scale,
        columns=(Score("test perplexity", "perplexity"),),
        rows=(
            Row("Transformer", setting.experiment("transformer-xl", train=last, **look_back), ("19.9",)),
            Row("Feedback", setting.experiment("feedback", train=last, **look_back), ("18.3",)),
        ),
        claim="Feedback is better than a Transformer of its size and as good as a Transformer-XL twice as large",
        notes=(
            *WIKITEXT_NOTES[scale],
            KEYS_SHARED,
            WITH_LINE_ENDS,
            "Weights in the paper: Transformer 140 million, Feedback 126 (ours at paper scale 139.3 and 124.6). It "
            "quotes Transformer-XL with 257 million at 18.3 and the best then known at 15.8; these are not trained.",
            *(() if small else ("Both with an adaptive span of up to 2,048, which gave the paper its best numbers.",)),
        ),
        data=WIKITEXT_DATA[scale],
    )


def table5(scale: Scale) -> Study:
    setting, small = WIKITEXT[scale], scale == "laptop"
    budget = 1 << 22 if small else 1 << 31
    short = {"steps": 100, "finetune_steps": 0, "log_every": 10, "validate_every": 0, "valid_tokens": 20_000}
    memory = 64 if small else 512
    return Study(
        name="feedback.table5",
        title="Speed of training and of inference, words",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(
            TrainingSpeed("training (tokens/s)"),
            DecodingSpeed(f"inference, states of {budget >> 20} MB (tokens/s)", budget),
        ),
        rows=(
            Row("Transformer", setting.experiment("transformer-xl", train=short, memory=memory), ("296K", "592")),
            Row("Feedback", setting.experiment("feedback", train=short, memory=memory), ("84.4K", "2176")),
        ),
        claim="Feedback trains three and a half times slower and generates almost four times faster",
        notes=(
            *WIKITEXT_NOTES[scale],
            "100 updates, for the speed alone. Both models have the same sizes and span. Inference is with as many "
            "rows as have states of equal size in all: Feedback's has one vector a token instead of one a layer.",
            "The paper's numbers are of GPUs that it does not name; only the ratio of the two rows can be compared. "
            "Its rows on translation and reinforcement learning are no language modelling and are left out.",
        ),
        data=WIKITEXT_DATA[scale],
    )


def table6(scale: Scale) -> Study:
    """Rows in the paper's order: pre-norm and higher learning rate, adaptive span, growing BPTT."""
    setting, small = WIKITEXT[scale], scale == "laptop"
    train: dict[str, Any] = {"finetune_steps": 0}
    numbers = {
        "Transformer": {(0, 0, 0): "22.9", (0, 0, 1): "22.9", (1, 0, 1): "21.0", (1, 1, 0): "20.6"},
        "Feedback": {(0, 0, 0): "19.7", (0, 0, 1): "19.9", (1, 0, 1): "19.6", (1, 1, 1): "19.0"},
    }
    rows = []
    for model, variants in numbers.items():
        for (pre, far, grow), number in variants.items():
            own: dict[str, Any] = {"norm": "pre" if pre else "post", "memory": 64 if small else 512}
            if far:
                own |= FAR_SMALL if small else FAR
            changed = dict(train) if pre else {**train, "learning_rate": 5e-4 if small else 2.5e-4}
            if grow:
                changed["segment_warmup"] = setting.train.segment // 2
            words = ["pre-norm and higher rate"] * pre + ["adaptive span"] * far + ["growing BPTT"] * grow
            core = "feedback" if model == "Feedback" else "transformer-xl"
            name = f"{model}, {', '.join(words) or 'plain'}"
            rows.append(Row(name, setting.experiment(core, train=changed, **own), (number,)))
    return Study(
        name="feedback.table6",
        title="Words of Wikipedia: what the tricks bring",
        paper=f"{FEEDBACK}, table 6",
        scale=scale,
        columns=(Score("dev perplexity", "perplexity", "valid"),),
        rows=tuple(rows),
        claim="every trick helps both models or harms neither, and the gap between them stays",
        notes=(
            *WIKITEXT_NOTES[scale],
            KEYS_SHARED,
            "No fine-tuning, and so no line ends, as the table says.",
            "The paper does not print the lower learning rate: 0.00025, that of Transformer-XL on these words"
            + (", scaled to 0.0005 here, a third of ours." if small else "."),
            "Neither does it print which size: the large one, whose numbers in table 3 are what these become with "
            "fine-tuning and line ends.",
            "The shorter BPTT of the first half is not printed for words: half the segment, as on enwik8.",
            "The fourth row has no growing BPTT, as printed; its counterpart for Feedback has.",
        ),
        data=WIKITEXT_DATA[scale],
    )


# Table 4: bytes.

ENWIK8_TASK = language.Config(path="")
ENWIK8_DATA = "enwik8 (`stairwell data get enwik8`)"
ENWIK8: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="lm", task=ENWIK8_TASK, layers=4, width=128, heads=4, core={"memory": 64}, dropout=0.0,
        train=TrainConfig(
            steps=2000, batch=32, segment=64, segment_warmup=32, learning_rate=1.5e-3, warmup=200, finetune_steps=200,
            validate_every=200, valid_rows=32, valid_tokens=100_000,
        ),
    ),
    "paper": Setting(
        task_name="lm", task=ENWIK8_TASK, layers=12, width=512, heads=8, dropout=0.5,
        core={"head_width": 128, "inner": 4096, "memory": 8192, "adaptive_span": True, "span_loss": 5e-7},
        train=TrainConfig(
            steps=100_000, batch=1024, segment=128, segment_warmup=64, learning_rate=1.5e-3, warmup=8000, clip=0.1,
            finetune_steps=10_000, validate_every=2000, checkpoint_every=1000, valid_rows=16, valid_tokens=1_000_000,
        ),
    ),
}  # fmt: skip
ENWIK8_SAMPLE = 500_000


def bits_per_byte(scale: Scale) -> tuple[Column, Column]:
    """On the valid and the test split."""
    if scale == "paper":
        return (
            Score("valid bits per byte", "bits_per_character", "valid"),
            Score("test bits per byte", "bits_per_character"),
        )
    return (
        Sample("valid bits per byte", "bits_per_character", "valid", ENWIK8_SAMPLE),
        Sample("test bits per byte", "bits_per_character", "test", ENWIK8_SAMPLE),
    )


def table4(scale: Scale) -> Study:
    setting, small = ENWIK8[scale], scale == "laptop"
    smaller = (
        "Laptop scale: models of 0.9 million weights, a fixed span of 64 tokens instead of an adaptive one of 8,192, "
        f"2,200 updates of 32 rows of 64 bytes (32 in the first half), scored on {ENWIK8_SAMPLE:,} bytes of the test."
    )
    return Study(
        name="feedback.table4",
        title="Bytes of Wikipedia (enwik8)",
        paper=f"{FEEDBACK}, table 4",
        scale=scale,
        columns=bits_per_byte(scale)[1:],
        rows=(
            Row("Transformer", setting.experiment("transformer-xl")),
            Row("Feedback", setting.experiment("feedback", share_kv=False), ("0.96",)),
        ),
        claim="a Feedback model is better than Transformers three and a half times its size",
        notes=(
            *((smaller,) if small else ()),
            "Feedback has its own key and value projections in every layer: only so it has the printed 77 million "
            "weights, though the paper says that it shares them on large data sets.",
            "The paper quotes Transformer-XL and the best then known, both with 277 million weights, at 0.99 and 0.97; "
            "the Transformer of Feedback's size is ours.",
        ),
        data=ENWIK8_DATA,
    )


# Figures 5, 8 and 9: characters of the Penn Treebank.

CHAR_PTB_TASK = language.Config(path="", unit="characters", separated=True, documents="none", prefix="ptb.char")
CHAR_PTB_DATA = "the Penn Treebank by characters (ptb.char.train.txt, ptb.char.valid.txt and ptb.char.test.txt)"
CHAR_PTB_SYMBOLS = 50
CHAR_PTB: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="lm", task=CHAR_PTB_TASK, layers=4, width=128, heads=4, core={"memory": 64}, dropout=0.1,
        train=TrainConfig(
            steps=500, batch=32, segment=64, learning_rate=1.5e-3, warmup=50, finetune_steps=50,
            validate_every=50, valid_rows=32, valid_tokens=50_000,
        ),
    ),
    "paper": Setting(
        task_name="lm", task=CHAR_PTB_TASK, layers=6, width=384, heads=4, core={"memory": 512}, dropout=0.5,
        train=TrainConfig(
            steps=15_000, batch=2048, segment=128, learning_rate=1.5e-3, warmup=1000, clip=1.0, finetune_steps=1000,
            validate_every=500, patience=4, valid_rows=16,
        ),
    ),
}  # fmt: skip
BITS = Score("test bits per character", "bits_per_character")
NO_NUMBERS = "The figure's numbers are not in the paper's text; only its conclusion can be compared."
CHAR_PTB_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: 4 layers of width 128 instead of 6 of 384, 0.8 million weights instead of 10.7, a span of 64 "
        "characters instead of 512, 500 updates of 32 rows of 64 characters and 50 at a tenth of the rate instead "
        "of 15,000 of 2,048 rows of 128 and 1,000.",
        "All models have the same number of weights: Feedback shares one pair of key and value projections and has a "
        "wider feed-forward instead.",
        NO_NUMBERS,
    ),
    "paper": (
        "Feedback has its own key and value projections in every layer: only so it has the printed 10.7 million "
        "weights.",
        "Training stops when the validation loss does not fall any more; the paper does not say how long it waited: "
        "four validations, 2,000 updates.",
        NO_NUMBERS,
    ),
}


def feedback_of(setting: Setting, scale: Scale, **own: Any) -> Experiment:
    """Feedback with as many weights as the Transformer of its setting: with keys of its own in every layer at paper
    scale; with one pair, and a wider feed-forward instead, at laptop scale."""
    if scale == "paper":
        return setting.experiment("feedback", share_kv=False, **own)
    return as_large_as(setting.experiment("transformer-xl"), setting.experiment("feedback", **own))


def figure5(scale: Scale) -> Study:
    setting, small = CHAR_PTB[scale], scale == "laptop"
    transformer = setting.experiment("transformer-xl")
    lstm = as_large_as(transformer, setting.experiment("lstm"), CHAR_PTB_SYMBOLS)
    return Study(
        name="feedback.figure5",
        title="What the memory is made of: characters of the Penn Treebank",
        paper=f"{FEEDBACK}, figure 5",
        scale=scale,
        columns=(BITS, ByTime("valid bits per character after 2 minutes", "bits_per_character", 2))
        if small
        else (BITS,),
        rows=(
            *((Row("LSTM", lstm),) if small else ()),
            Row("Transformer", transformer),
            Row("Feedback, recurrent memory", feedback_of(setting, scale, make_up="recurrent")),
            Row("Feedback, top-only memory", feedback_of(setting, scale, make_up=setting.layers)),
            Row("Feedback, memory of all layers", feedback_of(setting, scale)),
        ),
        claim="all layers make the best memory, the top one alone is close; recurrence within a layer is not enough",
        notes=(
            *CHAR_PTB_NOTES[scale],
            *(("The LSTM is ours.", "Times are of this machine, validations not counted.") if small else ()),
        ),
        data=CHAR_PTB_DATA,
    )


def figure8(scale: Scale) -> Study:
    setting = CHAR_PTB[scale]
    single = (
        Row(f"Feedback, memory of layer {layer} alone", feedback_of(setting, scale, make_up=layer))
        for layer in range(setting.layers + 1)
    )
    return Study(
        name="feedback.figure8",
        title="Which layer makes the best memory: characters of the Penn Treebank",
        paper=f"{FEEDBACK}, figure 8",
        scale=scale,
        columns=(BITS,),
        rows=(
            Row("Transformer", setting.experiment("transformer-xl")),
            *single,
            Row("Feedback, average of all layers", feedback_of(setting, scale, make_up="average")),
            Row("Feedback, weighted sum of all layers", feedback_of(setting, scale)),
        ),
        claim=(
            "the higher the layer the better a memory it makes; the first is no better than a Transformer, the average "
            "is fair, and the weighted sum matches the best"
        ),
        notes=(*CHAR_PTB_NOTES[scale], "Layer 0 is the token's embedding."),
        data=CHAR_PTB_DATA,
    )


def by_depth(setting: Setting, scale: Scale, depths: tuple[int, ...]) -> tuple[Row, ...]:
    """Both models at each depth, head and inner width changed inversely with it, so that the weights stay the same."""
    base = setting.experiment("transformer-xl")
    rows = []
    for core, model in (("transformer-xl", "Transformer"), ("feedback", "Feedback")):
        for depth in depths:
            head_width, inner = (setting.layers * size // depth for size in (base.core.K, base.core.F))
            own: dict[str, Any] = {"layers": depth, "head_width": head_width, "inner": inner}
            if core == "feedback":
                own["share_kv"] = scale == "laptop"
            experiment = setting.experiment(core, **own)
            if depth == setting.layers:  # the very training that other figures have too
                experiment = base if core == "transformer-xl" else feedback_of(setting, scale)
            elif scale == "laptop":
                experiment = as_large_as(base, experiment)
            rows.append(Row(f"{model}, {depth} layer{'s' if depth > 1 else ''}", experiment))
    return tuple(rows)


DEPTH_CLAIM = "a Transformer gets better with depth, at equal weights; Feedback hardly needs it"
DEPTHS_NOT_PRINTED = "The figure's depths are not in the text; those taken divide the weights evenly."


def figure9_char_ptb(scale: Scale) -> Study:
    return Study(
        name="feedback.figure9.char-ptb",
        title="Depth at equal weights: characters of the Penn Treebank",
        paper=f"{FEEDBACK}, figure 9 (left)",
        scale=scale,
        columns=(BITS,),
        rows=by_depth(CHAR_PTB[scale], scale, (1, 2, 4) if scale == "laptop" else (1, 2, 3, 4, 6, 8)),
        claim=f"{DEPTH_CLAIM}: two layers are its best here",
        notes=(*CHAR_PTB_NOTES[scale], DEPTHS_NOT_PRINTED),
        data=CHAR_PTB_DATA,
    )


def figure9_wikitext_103(scale: Scale) -> Study:
    small = scale == "laptop"
    setting = dataclasses.replace(WIKITEXT["laptop"], core={"memory": 64}) if small else WIKITEXT_SMALL
    if not small:
        setting = dataclasses.replace(setting, core={**setting.core, "memory": 512})
    train = dataclasses.replace(setting.train, finetune_task="end_of_line=true")
    return Study(
        name="feedback.figure9.wikitext-103",
        title="Depth at equal weights: words of Wikipedia",
        paper=f"{FEEDBACK}, figure 9 (right)",
        scale=scale,
        columns=(Score("test perplexity", "perplexity"),),
        rows=by_depth(dataclasses.replace(setting, train=train), scale, (1, 2, 4) if small else (1, 2, 4, 8)),
        claim=DEPTH_CLAIM,
        notes=(
            *WIKITEXT_NOTES[scale],
            "Which size the figure has is not printed: the small one of table 9, with 44 million weights.",
            "All models have the same number of weights: "
            + (
                "Feedback has a wider feed-forward for the key and value projections that it shares."
                if small
                else KEYS_EACH
            ),
            WITH_LINE_ENDS,
            DEPTHS_NOT_PRINTED,
            NO_NUMBERS,
        ),
        data=WIKITEXT_DATA[scale],
    )


# Two yardsticks of ours.

PARITY: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="parity", task=parity.Config(length=40, test_episodes=200), layers=2, width=32, heads=1,
        train=TrainConfig(
            steps=2000, batch=32, segment=40, learning_rate=2e-3, warmup=100, curriculum="length=2..40", valid_rows=50
        ),
    ),
    "paper": dataclasses.replace(
        RANDOM_WALK["paper"], task_name="parity", task=parity.Config(length=40), dropout=0.0,
        train=dataclasses.replace(RANDOM_WALK["paper"].train, segment=40, curriculum="length=2..40"),
    ),
}  # fmt: skip
S5: dict[Scale, Setting] = {
    "laptop": Setting(
        task_name="s5", task=permutations.Config(generators=True, length=20, test_length=200, test_episodes=200),
        layers=2, width=128, heads=2,
        train=TrainConfig(
            steps=4000, batch=32, segment=20, learning_rate=1e-3, warmup=300, curriculum="length=1..20", valid_rows=50
        ),
    ),
    "paper": dataclasses.replace(
        RANDOM_WALK["paper"], task_name="s5", task=permutations.Config(length=20, test_length=200), dropout=0.0,
        train=dataclasses.replace(RANDOM_WALK["paper"].train, segment=20, curriculum="length=1..20"),
    ),
}  # fmt: skip


def yardstick(name: str, title: str, setting: Setting, scale: Scale) -> Study:
    length = setting.task.length
    columns: tuple[Column, ...] = tuple(
        Score(f"accuracy at {tested} (%)", "accuracy", task={"test_length": tested})
        for tested in (length, 2 * length, 10 * length)
    )
    last = Score(f"last token at {10 * length} (%)", "last_accuracy", task={"test_length": 10 * length})
    train, large = setting.train, "as the first paper's random walk has them"
    layers = f"{setting.layers} layers of width {setting.width}"
    small = f"laptop scale, {layers}, {train.steps:,} updates of {train.batch} rows"
    sizes = f"Sizes and training are {small if scale == 'laptop' else large}."
    return Study(
        name=name,
        title=title,
        paper="not in the papers; a yardstick of state tracking",
        scale=scale,
        columns=(*columns, last),
        rows=(
            Row("LSTM", setting.experiment("lstm")),
            Row("Transformer-XL", setting.experiment("transformer-xl", memory=64)),
            Row("Feedback", setting.experiment("feedback", memory=8)),
            Row("Staircase", setting.experiment("staircase", chunk=2, passes=4)),
            Row("Cached Staircase", setting.experiment("cached-staircase", chunk=2, passes=5)),
        ),
        notes=(
            f"Trained on lengths up to {length}, by the same curriculum for all. {sizes}",
            "Transformer-XL sees 64 tokens, more than a training sequence has; the others carry a state on and see 8 "
            "to 10.",
        ),
    )


def extra_parity(scale: Scale) -> Study:
    return yardstick("extra.parity", "Parity: trained on 40 bits, tested on up to 400", PARITY[scale], scale)


def extra_s5(scale: Scale) -> Study:
    title = "Products of permutations (S5): trained on 20 factors, tested on up to 200"
    study = yardstick("extra.s5", title, S5[scale], scale)
    factors = "Laptop scale: the factors are a swap and a cycle, of which all 120 permutations are made."
    return dataclasses.replace(study, notes=(*study.notes, factors)) if scale == "laptop" else study


STUDIES: dict[str, Maker] = {
    "feedback.table1.copy": table1_copy,
    "feedback.table1.reverse": table1_reverse,
    "feedback.table1.counting-50": table1_counting_50,
    "feedback.table1.counting-1000": table1_counting_1000,
    "feedback.table1.random-walk": table1_random_walk,
    "feedback.table1.algorithmic-3": table1_algorithmic_3,
    "feedback.table1.algorithmic-5": table1_algorithmic_5,
    "feedback.figure5": figure5,
    "feedback.table3": table3,
    "feedback.table4": table4,
    "feedback.table5": table5,
    "feedback.figure8": figure8,
    "feedback.table6": table6,
    "feedback.figure9.char-ptb": figure9_char_ptb,
    "feedback.figure9.wikitext-103": figure9_wikitext_103,
    "extra.parity": extra_parity,
    "extra.s5": extra_s5,
}
