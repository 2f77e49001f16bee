"""Table 3 of Fan et al. 2020: word-level Wikipedia."""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.shared import (
    ADAPTIVE_SPAN,
    LINE_ENDS_NOTE,
    SHARED_KEYS_NOTE,
    WIKITEXT_DATA,
    WIKITEXT_NOTES,
)
from stairwell.runs import presets
from stairwell.runs.presets import with_core


def table3(scale: Scale) -> Experiment:
    preset, small = presets.wikitext(scale=scale), scale == "laptop"
    span: dict[str, Any] = {"memory": 64} if small else ADAPTIVE_SPAN
    finetune = {"finetune_task": "end_of_line=true"}
    # In the best variants of table 6 the BPTT length grows for Feedback and not for the Transformer.
    grows = {} if small else {"segment_warmup": preset.option("train.segment") // 2}
    return Experiment(
        name="feedback.table3",
        title="Word-level Wikipedia",
        paper=f"{FEEDBACK}, table 3",
        scale=scale,
        columns=(Metric("test perplexity", "perplexity"),),
        variants=(
            Variant("Transformer", with_core(preset, "transformer-xl", train=finetune, **span), ("19.9",)),
            Variant("Feedback", with_core(preset, "feedback", train={**finetune, **grows}, **span), ("18.3",)),
        ),
        claim="Feedback is better than a Transformer of its size and equals a Transformer-XL twice as large",
        notes=(
            *WIKITEXT_NOTES[scale],
            SHARED_KEYS_NOTE,
            LINE_ENDS_NOTE,
            "Parameters in the paper: Transformer 140 million, Feedback 126 (ours at paper scale 139.3 and 124.6). It "
            "quotes Transformer-XL with 257 million at 18.3 and the state of the art at 15.8; these are not trained "
            "here.",
            "The segment length does not grow; the paper's best Feedback has a growing BPTT length, which makes no "
            "difference according to its table 6."
            if small
            else (
                "As in the best models of table 6: an adaptive span of up to 2,048, and for Feedback half the BPTT "
                "length in the first half of training."
            ),
        ),
        data=WIKITEXT_DATA[scale],
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.table3": table3}
