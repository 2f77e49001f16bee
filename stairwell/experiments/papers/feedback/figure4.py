"""Figure 4 of Fan et al. 2020: the depth of a translator's decoder, and agents in a maze."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, SweepPoint, Variant
from stairwell.experiments.papers.feedback.agents import MAZE_NOTES, agents, maze_experiment
from stairwell.experiments.papers.feedback.pairs import (
    BLEU,
    DEPTH,
    OUR_CHOICES,
    SMALL,
    SPLIT_BLEU,
    VALID_BLEU,
    VALID_LOSS,
    WMT_DATA,
    WORDS_PER_SECOND,
    by_depth,
)
from stairwell.runs import presets
from stairwell.runs.presets import decoder_run

PRINTED: dict[str, tuple[str, ...]] = {"Transformer, 1 layer": ("27.3", ""), "Feedback, 1 layer": ("28.3", "")}


def translation(scale: Scale) -> Experiment:
    preset, small = presets.wmt(scale), scale == "laptop"
    variants = by_depth(preset, (1, 2, 4) if small else (1, 2, 4, 6), PRINTED if not small else {})
    if not small:
        deep = decoder_run(preset, "feedback", 2, model={"encoder_layers": 12, "encoder_layer_drop": 0.2})
        point = SweepPoint(DEPTH, "Feedback, encoder of 12", 2)
        variants += (Variant("Feedback, 2 layers, encoder of 12", deep, ("29.0", ""), (point,)),)
    return Experiment(
        name="feedback.figure4.translation",
        title="Translation: decoder depth",
        paper=f"{FEEDBACK}, figure 4 (left)",
        scale=scale,
        columns=(BLEU, VALID_BLEU, VALID_LOSS, WORDS_PER_SECOND) if small else (SPLIT_BLEU, WORDS_PER_SECOND),
        variants=variants,
        seeds=3 if small else 1,
        claim=(
            "Feedback's lead grows as the decoder gets shallower: 28.3 against 27.3 BLEU with one layer, which decodes "
            "4.2 times as fast as six"
        ),
        notes=SMALL
        if small
        else (*OUR_CHOICES, "The paper does not give the LayerDrop rate of the encoder with 12 layers; ours is 0.2."),
        data=WMT_DATA[scale],
        axes=(DEPTH,),
    )


def maze(scale: Scale) -> Experiment:
    claim = "Feedback converges to a higher reward than a Transformer"
    name, title, figure = "feedback.figure4.maze", "Maze Navigation", "figure 4 (right)"
    return maze_experiment(name, title, figure, claim, agents(presets.maze(scale=scale), 3), MAZE_NOTES[scale], scale)


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.figure4.translation": translation, "feedback.figure4.maze": maze}
