"""Figure 5 of Fan et al. 2020: what the memory is made of."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import ByTime
from stairwell.experiments.papers.feedback.settings import BITS, CHAR_PTB_DATA, CHAR_PTB_NOTES, CHAR_PTB_SYMBOLS
from stairwell.runs import presets
from stairwell.runs.presets import match_parameters, matched_feedback, with_core


def figure5(scale: Scale) -> Experiment:
    setting, small = presets.char_ptb(scale=scale), scale == "laptop"
    transformer = with_core(setting, "transformer-xl")
    lstm = match_parameters(transformer, with_core(setting, "lstm"), CHAR_PTB_SYMBOLS)
    return Experiment(
        name="feedback.figure5",
        title="What the memory is made of: characters of the Penn Treebank",
        paper=f"{FEEDBACK}, figure 5",
        scale=scale,
        columns=(BITS, ByTime("valid bits per character after 2 minutes", "bits_per_character", 2))
        if small
        else (BITS,),
        variants=(
            *((Variant("LSTM", lstm),) if small else ()),
            Variant("Transformer", transformer),
            Variant("Feedback, recurrent memory", matched_feedback(setting, scale, memory_composition="recurrent")),
            Variant(
                "Feedback, top-only memory", matched_feedback(setting, scale, memory_composition=setting.core.layers)
            ),
            Variant("Feedback, memory of all layers", matched_feedback(setting, scale)),
        ),
        claim="all layers make the best memory, the top one alone is close; recurrence within a layer is not enough",
        notes=(
            *CHAR_PTB_NOTES[scale],
            *(("The LSTM is ours.", "Times are of this machine, validations not counted.") if small else ()),
        ),
        data=CHAR_PTB_DATA,
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.figure5": figure5}
