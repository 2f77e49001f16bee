"""Table 5 of Fan et al. 2020: speed of training and of inference."""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import DecodingSpeed, TrainingSpeed
from stairwell.experiments.papers.feedback.agents import MAZE_NOTES
from stairwell.experiments.papers.feedback.pairs import OUR_CHOICES, SMALL, WMT_DATA, WORDS_PER_SECOND
from stairwell.experiments.papers.feedback.shared import WIKITEXT_DATA, WIKITEXT_NOTES
from stairwell.runs import presets
from stairwell.runs.presets import decoder_run, with_core

GPUS = "The paper's numbers were measured on unspecified GPUs; only the ratio of the two models can be compared."


def words(scale: Scale) -> Experiment:
    preset, small = presets.wikitext(scale=scale), scale == "laptop"
    budget = 1 << 22 if small else 1 << 31
    short = {"steps": 100, "finetune_steps": 0, "log_every": 10, "validate_every": 0, "valid_tokens": 20_000}
    memory = 64 if small else 512
    return Experiment(
        name="feedback.table5.words",
        title="Training and inference speed, language modeling",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(
            TrainingSpeed("training (tokens/s)"),
            DecodingSpeed(f"inference, states of {budget >> 20} MB (tokens/s)", budget),
        ),
        variants=(
            Variant("Transformer", with_core(preset, "transformer-xl", train=short, memory=memory), ("296K", "592")),
            Variant("Feedback", with_core(preset, "feedback", train=short, memory=memory), ("84.4K", "2176")),
        ),
        claim="Feedback trains 3.5 times more slowly and generates almost 4 times as fast",
        notes=(
            *WIKITEXT_NOTES[scale],
            "100 steps, to measure speed only. Both models have the same sizes and span. Inference runs as many streams"
            " as fit into states of the same total size: Feedback's state has one vector per token instead of one per "
            "token and layer.",
            GPUS,
        ),
        data=WIKITEXT_DATA[scale],
    )


def translation(scale: Scale) -> Experiment:
    preset, small = presets.wmt(scale), scale == "laptop"
    short: dict[str, Any] = {"steps": 100, "log_every": 10, "validate_every": 0, "average": 0}
    return Experiment(
        name="feedback.table5.translation",
        title="Training and inference speed, translation",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(TrainingSpeed("training (tokens/s)"), WORDS_PER_SECOND),
        variants=(
            Variant("Transformer", decoder_run(preset, "transformer-xl", 2, train=short), ("280K", "3190")),
            Variant("Feedback", decoder_run(preset, "feedback", 2, train=short), ("126K", "5410")),
        ),
        claim="Feedback trains at less than half the speed and translates 1.7 times as fast",
        notes=(
            *(SMALL if small else OUR_CHOICES),
            "100 steps, to measure speed only, with a decoder of 2 layers. Translations of untrained models run to the "
            "length limit.",
            GPUS,
        ),
        data=WMT_DATA[scale],
    )


def agents(scale: Scale) -> Experiment:
    preset = presets.maze(scale=scale)
    short = {"steps": 96, "log_every": 16, "validate_every": 0}
    return Experiment(
        name="feedback.table5.agents",
        title="Training speed, maze agents",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(TrainingSpeed("training (frames/s)"),),
        variants=(
            Variant("Transformer", with_core(preset, "transformer-xl", train=short), ("22.3K",)),
            Variant("Feedback", with_core(preset, "feedback", train=short), ("22.3K",)),
        ),
        claim="where frames arrive one at a time, Feedback trains as fast as a Transformer",
        notes=(*MAZE_NOTES[scale], "96 steps, to measure speed only.", GPUS),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "feedback.table5.words": words,
    "feedback.table5.translation": translation,
    "feedback.table5.agents": agents,
}
