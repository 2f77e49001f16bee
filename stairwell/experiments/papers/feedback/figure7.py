"""Figure 7 of Fan et al. 2020: the decoder's depth on a small translation corpus and in summarization."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.feedback.pairs import (
    BLEU,
    DEPTH,
    IWSLT_DATA,
    OUR_CHOICES,
    ROUGE,
    SMALL,
    SMALL_SUMMARIES,
    SUMMARY_DATA,
    VALID_BLEU,
    WORDS_PER_SECOND,
    by_depth,
)
from stairwell.runs import presets


def iwslt(scale: Scale) -> Experiment:
    small = scale == "laptop"
    return Experiment(
        name="feedback.figure7.iwslt",
        title="Decoder depth on a small translation corpus",
        paper=f"{FEEDBACK}, figure 7 (left)",
        scale=scale,
        columns=(BLEU, VALID_BLEU, WORDS_PER_SECOND) if small else (BLEU, WORDS_PER_SECOND),
        variants=by_depth(presets.iwslt(scale), (1, 2, 4) if small else (1, 2, 4, 6), {}),
        seeds=3 if small else 1,
        claim="shallow Feedback decoders are better than shallow Transformer decoders",
        notes=(*SMALL, "The runs are those of figure 4 (left): IWSLT is not available to us.")
        if small
        else (
            *OUR_CHOICES,
            ("The paper's tokenized BLEU is sacrebleu's 13a here; the text does not print the figure's numbers."),
        ),
        data=IWSLT_DATA[scale],
        axes=(DEPTH,),
    )


def summaries(scale: Scale) -> Experiment:
    small = scale == "laptop"
    return Experiment(
        name="feedback.figure7.summarization",
        title="Decoder depth in summarization",
        paper=f"{FEEDBACK}, figure 7 (right)",
        scale=scale,
        columns=(ROUGE, WORDS_PER_SECOND),
        variants=by_depth(presets.summaries(scale), (1, 2, 4) if small else (1, 2, 4, 6), {}),
        claim="Feedback summarizes better than a Transformer at every decoder depth",
        notes=SMALL_SUMMARIES
        if small
        else (*OUR_CHOICES, ("The first 400 words of an article; no repeated 3-grams (no_repeat_ngram_size 3).")),
        data=SUMMARY_DATA[scale],
        axes=(DEPTH,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "feedback.figure7.iwslt": iwslt,
    "feedback.figure7.summarization": summaries,
}
