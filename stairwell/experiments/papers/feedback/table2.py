"""Table 2 of Fan et al. 2020: translation beside recurrent and hybrid architectures."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.feedback.pairs import SPLIT_BLEU, TAKEN, WMT_DATA
from stairwell.runs import presets
from stairwell.runs.presets import decoder_run


def table2(scale: Scale) -> Experiment | None:
    if scale == "laptop":
        return None
    setting = presets.wmt(scale)
    return Experiment(
        name="feedback.table2",
        title="Translation, English to German",
        paper=f"{FEEDBACK}, table 2",
        scale=scale,
        columns=(SPLIT_BLEU,),
        variants=(
            Variant("Transformer", decoder_run(setting, "transformer-xl", 6), ("28.4",)),
            Variant("Feedback", decoder_run(setting, "feedback", 6), ("29.5",)),
        ),
        claim="Feedback is better than recurrent and hybrid architectures and than the Transformer",
        notes=(
            *TAKEN,
            "Others' models of the table are not trained here: DenseNMT 25.5, RNMT+ 28.5, BiARN 28.9, SRU 28.4, "
            "Transformer of Ott et al. (2018), with a much larger batch, 29.3.",
            "At paper scale only: with Multi30k there is nothing to set beside these numbers.",
        ),
        data=WMT_DATA[scale],
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.table2": table2}
