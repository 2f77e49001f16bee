"""Residual dropout in a translator's decoder: a mask sampled at each token compounds in a recurrence.

Both models get the same four settings. Figure 4 (left) of Fan et al. 2020 then uses the best one of each model."""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.feedback.pairs import SMALL, VALID_BLEU, VALID_LOSS, WMT_DATA
from stairwell.runs import presets
from stairwell.runs.presets import decoder_run

DROPOUT: dict[str, dict[str, Any]] = {
    "no residual dropout": {"residual_dropout": 0.0},
    "0.1 per token": {"residual_dropout": 0.1},
    "0.3 per token": {"residual_dropout": 0.3},
    "0.3 per sentence": {"residual_dropout": 0.3, "locked_dropout": True},
}
MODELS = {"transformer-xl": "Transformer", "feedback": "Feedback"}


def decoder_dropout(scale: Scale) -> Experiment | None:
    if scale == "paper":
        return None
    return Experiment(
        name="extra.decoder-dropout",
        title="Residual dropout in a decoder of one layer",
        paper="not in the papers; an ablation for figure 4 (left) of Fan et al. 2020",
        scale=scale,
        columns=(VALID_LOSS, VALID_BLEU),
        variants=tuple(
            Variant(f"{model}, {name}", decoder_run(presets.wmt(scale), core, 1, **options))
            for name, options in DROPOUT.items()
            for core, model in MODELS.items()
        ),
        notes=(*SMALL, "One seed; embeddings and encoder keep their dropout of 0.3."),
        data=WMT_DATA[scale],
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.decoder-dropout": decoder_dropout}
