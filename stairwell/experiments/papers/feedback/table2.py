"""Table 2 of Fan et al. 2020: translation compared with recurrent and hybrid architectures."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.feedback.pairs import OUR_CHOICES, SPLIT_BLEU, WMT_DATA
from stairwell.runs import presets
from stairwell.runs.presets import decoder_run


def table2(scale: Scale) -> Experiment | None:
    if scale == "laptop":
        return None
    preset = presets.wmt(scale)
    return Experiment(
        name="feedback.table2",
        title="Translation, English to German",
        paper=f"{FEEDBACK}, table 2",
        scale=scale,
        columns=(SPLIT_BLEU,),
        variants=(
            Variant("Transformer", decoder_run(preset, "transformer-xl", 6), ("28.4",)),
            Variant("Feedback", decoder_run(preset, "feedback", 6), ("29.5",)),
        ),
        claim="Feedback is better than recurrent and hybrid architectures and than the Transformer",
        notes=(
            *OUR_CHOICES,
            "The table's other models are not trained here: DenseNMT 25.5, RNMT+ 28.5, BiARN 28.9, SRU 28.4, "
            "Transformer of Ott et al. (2018), with a much larger batch size, 29.3.",
            "Paper scale only: Multi30k has no comparable numbers.",
        ),
        data=WMT_DATA[scale],
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.table2": table2}
