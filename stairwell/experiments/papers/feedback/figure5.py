"""Figure 5 of Fan et al. 2020: memory composition."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import ByTime
from stairwell.experiments.papers.feedback.shared import (
    CHAR_PTB_DATA,
    CHAR_PTB_NOTES,
    CHAR_PTB_VOCABULARY,
    TEST_BITS_PER_CHARACTER,
)
from stairwell.runs import presets
from stairwell.runs.presets import match_parameters, matched_feedback, with_core


def figure5(scale: Scale) -> Experiment:
    preset, small = presets.char_ptb(scale=scale), scale == "laptop"
    transformer = with_core(preset, "transformer-xl")
    lstm = match_parameters(transformer, with_core(preset, "lstm"), CHAR_PTB_VOCABULARY)
    return Experiment(
        name="feedback.figure5",
        title="Memory composition, character-level Penn Treebank",
        paper=f"{FEEDBACK}, figure 5",
        scale=scale,
        columns=(TEST_BITS_PER_CHARACTER, ByTime("valid bits per character after 2 minutes", "bits_per_character", 2))
        if small
        else (TEST_BITS_PER_CHARACTER,),
        variants=(
            *((Variant("LSTM", lstm),) if small else ()),
            Variant("Transformer", transformer),
            Variant("Feedback, recurrent memory", matched_feedback(preset, scale, memory_composition="recurrent")),
            Variant(
                "Feedback, top-only memory",
                matched_feedback(preset, scale, memory_composition=preset.core.layers),
            ),
            Variant("Feedback, memory of all layers", matched_feedback(preset, scale)),
        ),
        seeds=3 if small else 1,
        claim=(
            "memory composed of all layers is best, the top layer alone is close; recurrence within each layer is not "
            "enough"
        ),
        notes=(
            *CHAR_PTB_NOTES[scale],
            *(("The LSTM is ours.", "Times were measured on this machine, without validation.") if small else ()),
        ),
        data=CHAR_PTB_DATA,
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.figure5": figure5}
