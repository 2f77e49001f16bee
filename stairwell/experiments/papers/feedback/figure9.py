"""Figure 9 of Fan et al. 2020: depth at equal parameters."""

from __future__ import annotations

from typing import Any

from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, SweepPoint, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.shared import (
    CHAR_PTB_DATA,
    CHAR_PTB_NOTES,
    KEYS_PER_LAYER_NOTE,
    LINE_ENDS_NOTE,
    NO_NUMBERS_NOTE,
    TEST_BITS_PER_CHARACTER,
    WIKITEXT_DATA,
    WIKITEXT_NOTES,
)
from stairwell.runs import presets
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import match_parameters, matched_feedback, with_core

LAYERS = "layers, at equal parameters"


def by_depth(preset: RunConfig, scale: Scale, depths: tuple[int, ...]) -> tuple[Variant, ...]:
    """Return both models at each depth. Head width and inner width are inversely proportional to the depth, so the
    number of parameters is constant."""
    base = with_core(preset, "transformer-xl")
    transformer = base.core
    assert isinstance(transformer, TransformerXLConfig)
    variants = []
    for core, model in (("transformer-xl", "Transformer"), ("feedback", "Feedback")):
        for depth in depths:
            head_width, inner = (preset.core.layers * size // depth for size in (transformer.K, transformer.F))
            own: dict[str, Any] = {"layers": depth, "head_width": head_width, "inner": inner}
            if core == "feedback":
                own["share_kv"] = scale == "laptop"
            config = with_core(preset, core, **own)
            if depth == preset.core.layers:  # the run that other figures have too
                config = base if core == "transformer-xl" else matched_feedback(preset, scale)
            elif scale == "laptop":
                config = match_parameters(base, config)
            name = f"{model}, {depth} layer{'s' if depth > 1 else ''}"
            variants.append(Variant(name, config, points=(SweepPoint(LAYERS, model, depth),)))
    return tuple(variants)


DEPTH_CLAIM = "at equal parameters a Transformer improves with depth and Feedback hardly does"
DEPTHS_NOTE = "The text does not print the figure's depths; ours divide the parameters evenly."


def figure9_char_ptb(scale: Scale) -> Experiment:
    return Experiment(
        name="feedback.figure9.char-ptb",
        title="Depth at equal parameters, character-level Penn Treebank",
        paper=f"{FEEDBACK}, figure 9 (left)",
        scale=scale,
        columns=(TEST_BITS_PER_CHARACTER,),
        variants=by_depth(presets.char_ptb(scale=scale), scale, (1, 2, 4) if scale == "laptop" else (1, 2, 3, 4, 6, 8)),
        seeds=3 if scale == "laptop" else 1,
        claim=f"{DEPTH_CLAIM}: two layers are its best here",
        notes=(*CHAR_PTB_NOTES[scale], DEPTHS_NOTE),
        data=CHAR_PTB_DATA,
        axes=(LAYERS,),
    )


def figure9_wikitext_103(scale: Scale) -> Experiment:
    small = scale == "laptop"
    base = presets.small_wikitext(scale=scale).replace(
        core={"memory": 64 if small else 512}, train={"finetune_task": "end_of_line=true"}
    )
    return Experiment(
        name="feedback.figure9.wikitext-103",
        title="Depth at equal parameters, word-level Wikipedia",
        paper=f"{FEEDBACK}, figure 9 (right)",
        scale=scale,
        columns=(Metric("test perplexity", "perplexity"),),
        variants=by_depth(base, scale, (1, 2, 4) if small else (1, 2, 4, 8)),
        claim=DEPTH_CLAIM,
        notes=(
            *WIKITEXT_NOTES[scale],
            "The paper does not print the figure's model size: the small one of table 9, with 44 million parameters.",
            "All models have the same number of parameters: "
            + (
                "Feedback has a wider feed-forward layer to make up for shared key and value projections."
                if small
                else KEYS_PER_LAYER_NOTE
            ),
            LINE_ENDS_NOTE,
            DEPTHS_NOTE,
            NO_NUMBERS_NOTE,
        ),
        data=WIKITEXT_DATA[scale],
        axes=(LAYERS,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "feedback.figure9.char-ptb": figure9_char_ptb,
    "feedback.figure9.wikitext-103": figure9_wikitext_103,
}
