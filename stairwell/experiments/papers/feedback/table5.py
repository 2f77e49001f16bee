"""Table 5 of Fan et al. 2020: speed of training and of inference."""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import DecodingSpeed, TrainingSpeed
from stairwell.experiments.papers.feedback.agents import MAZE_NOTES
from stairwell.experiments.papers.feedback.pairs import SMALL, TAKEN, WMT_DATA, WORDS_A_SECOND
from stairwell.experiments.papers.feedback.settings import WIKITEXT_DATA, WIKITEXT_NOTES
from stairwell.runs import presets
from stairwell.runs.presets import decoder_run, with_core

GPUS = "The paper's numbers are of GPUs that it does not name; only the ratio of the two rows can be compared."


def words(scale: Scale) -> Experiment:
    setting, small = presets.wikitext(scale=scale), scale == "laptop"
    budget = 1 << 22 if small else 1 << 31
    short = {"steps": 100, "finetune_steps": 0, "log_every": 10, "validate_every": 0, "valid_tokens": 20_000}
    memory = 64 if small else 512
    return Experiment(
        name="feedback.table5.words",
        title="Speed of training and of inference, words",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(
            TrainingSpeed("training (tokens/s)"),
            DecodingSpeed(f"inference, states of {budget >> 20} MB (tokens/s)", budget),
        ),
        variants=(
            Variant("Transformer", with_core(setting, "transformer-xl", train=short, memory=memory), ("296K", "592")),
            Variant("Feedback", with_core(setting, "feedback", train=short, memory=memory), ("84.4K", "2176")),
        ),
        claim="Feedback trains three and a half times slower and generates almost four times faster",
        notes=(
            *WIKITEXT_NOTES[scale],
            "100 updates, for the speed alone. Both models have the same sizes and span. Inference is with as many "
            "rows as have states of equal size in all: Feedback's has one vector a token instead of one a layer.",
            GPUS,
        ),
        data=WIKITEXT_DATA[scale],
    )


def translation(scale: Scale) -> Experiment:
    setting, small = presets.wmt(scale), scale == "laptop"
    short: dict[str, Any] = {"steps": 100, "log_every": 10, "validate_every": 0, "average": 0}
    return Experiment(
        name="feedback.table5.translation",
        title="Speed of training and of inference, translation",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(TrainingSpeed("training (tokens/s)"), WORDS_A_SECOND),
        variants=(
            Variant("Transformer", decoder_run(setting, "transformer-xl", 2, train=short), ("280K", "3190")),
            Variant("Feedback", decoder_run(setting, "feedback", 2, train=short), ("126K", "5410")),
        ),
        claim="Feedback trains at less than half the speed and translates 1.7 times as fast",
        notes=(
            *(SMALL if small else TAKEN),
            "100 updates, for the speed alone; a decoder of 2 layers. What hardly trained models write is as long as "
            "they are allowed to.",
            GPUS,
        ),
        data=WMT_DATA[scale],
    )


def agents(scale: Scale) -> Experiment:
    setting = presets.maze(scale=scale)
    short = {"steps": 96, "log_every": 16, "validate_every": 0}
    return Experiment(
        name="feedback.table5.agents",
        title="Speed of training, agents in a maze",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(TrainingSpeed("training (frames/s)"),),
        variants=(
            Variant("Transformer", with_core(setting, "transformer-xl", train=short), ("22.3K",)),
            Variant("Feedback", with_core(setting, "feedback", train=short), ("22.3K",)),
        ),
        claim="where frames come one after the other anyway, Feedback trains as fast as a Transformer",
        notes=(*MAZE_NOTES[scale], "96 updates, for the speed alone.", GPUS),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "feedback.table5.words": words,
    "feedback.table5.translation": translation,
    "feedback.table5.agents": agents,
}
