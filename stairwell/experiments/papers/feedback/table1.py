"""Table 1 of Fan et al. 2020: toy tasks that need a memory."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.shared import (
    ACCURACY,
    HYPERPARAMETERS_NOTE,
    KEYS_PER_LAYER_NOTE,
    LSTM_NOTE,
    RANDOM_WALK_LSTM_NOTE,
    SHARED_KEYS_NOTE,
    STATEMENTS,
    STEPS_NOTE,
    algorithmic_columns,
    paper_numbers,
    random_walk_lstms,
)
from stairwell.runs import presets
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core
from stairwell.train.curriculum import Curriculum

FAR_DISTANCES = (
    "The memory holds a whole sequence, in testing too. Position embeddings for distances beyond those of training are "
    "never trained, for Transformer and Feedback alike."
)
INITIAL_STATE = (
    "Every sequence starts from the initial state; the paper does not say whether its models carry their memory from "
    "one sequence to the next."
)
Numbers = tuple[str, ...]


def both_models_and_lstm(
    preset: RunConfig, scale: Scale, memory: int, transformer: Numbers, feedback: Numbers
) -> tuple[Variant, ...]:
    """Return the paper's two models with its numbers, and an LSTM."""
    shared = scale == "laptop"
    return (
        Variant("LSTM", with_core(preset, "lstm")),
        Variant("Transformer", with_core(preset, "transformer-xl", memory=memory), transformer),
        Variant("Feedback", with_core(preset, "feedback", memory=memory, share_kv=shared), feedback),
    )


def copy_or_reverse(scale: Scale, reverse: bool) -> Experiment:
    preset = presets.copy(scale=scale)
    task_name = "reverse" if reverse else "copy"
    preset = dataclasses.replace(preset, task_name=task_name).replace(task={"reverse": reverse})
    numbers = (("", "50.2", "5.9"), ("", "74.8", "29.2")) if reverse else (("", "59.1", "6.2"), ("", "76.2", "23.6"))
    laptop_note = (
        "Laptop scale: models of 0.4 million parameters instead of 3.2, unlimited training sequences, 3,000 steps of 16"
        " streams, a curriculum over the length (2 to 40, advancing at 96% accuracy), 100 test sequences."
    )
    return Experiment(
        name=f"feedback.table1.{task_name}",
        title=f"{task_name.capitalize()} digits: trained on 40, tested on 400",
        paper=f"{FEEDBACK}, table 1",
        scale=scale,
        columns=(
            Metric("character accuracy at 40 (%)", "accuracy", task={"test_length": 40}),
            Metric("character accuracy at 400 (%)", "accuracy"),
            Metric("sequence accuracy at 400 (%)", "sequence_accuracy"),
        ),
        variants=both_models_and_lstm(preset, scale, 801, *numbers),
        claim="on sequences ten times as long, Feedback is more accurate than a Transformer",
        notes=(
            *((laptop_note, SHARED_KEYS_NOTE) if scale == "laptop" else (HYPERPARAMETERS_NOTE, KEYS_PER_LAYER_NOTE)),
            "A segment is a whole training sequence of 82 tokens. Each digit of the answer is predicted from the "
            "correct digits before it (teacher forcing); the paper does not say how it evaluates.",
            INITIAL_STATE,
            FAR_DISTANCES,
            LSTM_NOTE,
        ),
    )


def table1_copy(scale: Scale) -> Experiment:
    return copy_or_reverse(scale, reverse=False)


def table1_reverse(scale: Scale) -> Experiment:
    return copy_or_reverse(scale, reverse=True)


def counting_to(name: str, scale: Scale, length: int, numbers: tuple[str, str]) -> Experiment:
    preset, max_count = presets.counting(scale=scale), length
    if scale == "laptop" and length > 200:
        max_count = 200
    preset = preset.replace(task={"length": max_count})
    laptop_note = (
        "Laptop scale: models of 0.1 million parameters instead of 3.2, unlimited training sequences, 2,000 steps."
    )
    if max_count < length:
        preset = preset.replace(train={"steps": 4000, "decay": "cosine", "curriculum": f"length=10..{max_count}"})
        laptop_note = laptop_note.replace("2,000 steps", f"4,000 steps, counts up to {max_count} instead of {length:,}")
    suffix = f" (up to {length:,})" if max_count < length else ""
    return Experiment(
        name=name,
        title=f"Counting up to {max_count:,}: output as many Bs as there were As",
        paper=f"{FEEDBACK}, table 1",
        scale=scale,
        columns=(Metric("sequence accuracy (%)", "sequence_accuracy"),),
        variants=both_models_and_lstm(preset, scale, 2 * max_count + 1, *((number + suffix,) for number in numbers)),
        claim="over long sequences Feedback counts more accurately than a Transformer",
        notes=(
            *((laptop_note, SHARED_KEYS_NOTE) if scale == "laptop" else (HYPERPARAMETERS_NOTE, KEYS_PER_LAYER_NOTE)),
            "The paper does not define its accuracy. Always predicting B would have 99.8% of the characters right at "
            "counts up to 1,000, more than either model's number, so ours is sequence accuracy: every B and the end "
            "token must be right.",
            "The memory holds a whole sequence.",
            INITIAL_STATE,
            LSTM_NOTE,
        ),
    )


def table1_counting_50(scale: Scale) -> Experiment:
    return counting_to("feedback.table1.counting-50", scale, 50, ("99.6", "99.7"))


def table1_counting_long(scale: Scale) -> Experiment:
    return counting_to("feedback.table1.counting-long", scale, 1000, ("82.4", "95.3"))


def table1_random_walk(scale: Scale) -> Experiment:
    preset, small = presets.random_walk(scale=scale), scale == "laptop"
    laptop_note = (
        "Laptop scale: models of 0.1 million parameters instead of 3.2, unlimited training episodes instead of 10,000, "
        "and the same curriculum over the length for every model (8 to 100, advancing at 92% accuracy)."
    )
    return Experiment(
        name="feedback.table1.random-walk",
        title="Random walk of 100 actions: the agent's position",
        paper=f"{FEEDBACK}, table 1",
        scale=scale,
        columns=ACCURACY,
        variants=(
            *random_walk_lstms(preset, scale),
            Variant("Transformer", with_core(preset, "transformer-xl", memory=101 if small else 100), ("68",)),
            Variant("Feedback", with_core(preset, "feedback", memory=16 if small else 100, share_kv=small), ("100",)),
        ),
        seeds=3 if small else 1,
        claim="Feedback tracks the agent without errors; a Transformer, which attends to every action, does not",
        notes=(
            *((laptop_note, SHARED_KEYS_NOTE) if small else (STEPS_NOTE, KEYS_PER_LAYER_NOTE)),
            *(("Feedback has a memory of 16 tokens, the paper's of 100.", RANDOM_WALK_LSTM_NOTE) if small else ()),
            LSTM_NOTE,
        ),
    )


ALGORITHMIC_NOTE = (
    "Laptop scale: models of 0.1 million parameters instead of 3.2, unlimited training programs instead of 10,000, and "
    "one curriculum over variables, statement types and length for all models. They are tested on programs of "
    f"{STATEMENTS} statements and on increasing lengths; the paper's programs have 100. Feedback has a memory of 16 "
    "tokens; the Transformer's 128 hold a program of 30 statements."
)


def on_more_variables(curriculum: str, variables: int) -> str:
    """Return a curriculum that ends with 3 variables, extended to more variables in its last stages."""
    if variables == 3:
        return curriculum
    stages = Curriculum.parse(curriculum).stages
    last = [stage for stage in stages if stage.get("variables", 3) == 3]
    stages = [stage for stage in stages if stage not in last[1:]]
    stages += [{**stage, "variables": variables} for stage in last]
    return ";".join(",".join(f"{name}={value}" for name, value in stage.items()) for stage in stages)


def programs(scale: Scale, variables: int, numbers: tuple[str, str, str, str]) -> Experiment:
    preset, small = presets.algorithmic(scale=scale), scale == "laptop"
    curriculum = on_more_variables(preset.option("train.curriculum"), variables)
    preset = preset.replace(task={"variables": variables}, train={"curriculum": curriculum})
    span, twice = 128 if small else 100, 2 * preset.core.layers
    lstm, transformer, deep, feedback = (paper_numbers(scale, number) for number in numbers)
    return Experiment(
        name=f"feedback.table1.algorithmic-{variables}",
        title=f"Programs with {variables} variables: the printed values",
        paper=f"{FEEDBACK}, table 1 and section 4.1.2",
        scale=scale,
        columns=algorithmic_columns(scale, "accuracy"),
        variants=(
            Variant("LSTM", with_core(preset, "lstm"), lstm),
            Variant(
                f"Transformer, {preset.core.layers} layers",
                with_core(preset, "transformer-xl", memory=span),
                transformer,
            ),
            Variant(
                f"Transformer, {twice} layers",
                with_core(preset, "transformer-xl", memory=span, layers=twice),
                deep,
            ),
            Variant("Feedback", with_core(preset, "feedback", memory=16 if small else 100, share_kv=small), feedback),
        ),
        claim=(
            "Transformers cannot track the variables, even with twice the layers; an LSTM tracks three variables but "
            "not five; Feedback tracks both"
        ),
        notes=(ALGORITHMIC_NOTE, SHARED_KEYS_NOTE)
        if small
        else (
            STEPS_NOTE,
            KEYS_PER_LAYER_NOTE,
            "The attention span is that of the random walk, 100, as section 7.4 says; a program has about 430 tokens.",
            "The LSTM's size is not given; ours has as many layers as the Transformer and about as many parameters.",
        ),
    )


def table1_algorithmic_3(scale: Scale) -> Experiment:
    return programs(scale, 3, ("82.8", "33.7", "47.4", "99.1"))


def table1_algorithmic_5(scale: Scale) -> Experiment:
    return programs(scale, 5, ("32.1", "37.5", "29.1", "92.6"))


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "feedback.table1.copy": table1_copy,
    "feedback.table1.reverse": table1_reverse,
    "feedback.table1.counting-50": table1_counting_50,
    "feedback.table1.counting-long": table1_counting_long,
    "feedback.table1.random-walk": table1_random_walk,
    "feedback.table1.algorithmic-3": table1_algorithmic_3,
    "feedback.table1.algorithmic-5": table1_algorithmic_5,
}
