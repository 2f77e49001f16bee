"""Figure 8 of Fan et al. 2020: which layer makes the best memory."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, SweepPoint, Variant
from stairwell.experiments.papers.feedback.shared import CHAR_PTB_DATA, CHAR_PTB_NOTES, TEST_BITS_PER_CHARACTER
from stairwell.runs import presets
from stairwell.runs.presets import matched_feedback, with_core

LAYER = "layer that makes the memory (0: the embedding)"


def figure8(scale: Scale) -> Experiment:
    preset = presets.char_ptb(scale=scale)
    single = (
        Variant(
            f"Feedback, memory of layer {layer} alone",
            matched_feedback(preset, scale, memory_composition=layer),
            points=(SweepPoint(LAYER, "Feedback, memory of one layer", layer),),
        )
        for layer in range(preset.core.layers + 1)
    )
    return Experiment(
        name="feedback.figure8",
        title="Memory from a single layer, character-level Penn Treebank",
        paper=f"{FEEDBACK}, figure 8",
        scale=scale,
        columns=(TEST_BITS_PER_CHARACTER,),
        variants=(
            Variant("Transformer", with_core(preset, "transformer-xl")),
            *single,
            Variant("Feedback, average of all layers", matched_feedback(preset, scale, memory_composition="average")),
            Variant("Feedback, weighted sum of all layers", matched_feedback(preset, scale)),
        ),
        seeds=3 if scale == "laptop" else 1,
        claim=(
            "memory from a higher layer is better; the first layer is no better than a Transformer, the average is "
            "fair, and the weighted sum matches the best"
        ),
        notes=(*CHAR_PTB_NOTES[scale], "Layer 0 is the token embedding."),
        data=CHAR_PTB_DATA,
        axes=(LAYER,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.figure8": figure8}
