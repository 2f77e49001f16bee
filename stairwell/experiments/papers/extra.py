"""Two state-tracking baselines that are in neither paper: parity and the word problem of S5."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import Column, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.shared import NO_CURRICULUM
from stairwell.runs import presets
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core


def state_tracking_baseline(
    name: str, title: str, preset: RunConfig, scale: Scale, tested: tuple[int, ...]
) -> Experiment:
    columns: tuple[Column, ...] = tuple(
        Metric(f"accuracy at {length} (%)", "accuracy", task={"test_length": length}) for length in tested
    )
    last = Metric(f"last token at {tested[-1]} (%)", "last_accuracy", task={"test_length": tested[-1]})
    train, large = preset.train, "Sizes and training are those of the first paper's random walk."
    layers = f"{preset.core.layers} layers of width {preset.core.width}"
    small = f"Laptop scale: {layers}, {train.steps:,} steps of {train.batch} streams."
    sizes = small if scale == "laptop" else large
    return Experiment(
        name=name,
        title=title,
        paper="not in the papers; a state-tracking baseline",
        scale=scale,
        columns=(*columns, last),
        variants=(
            Variant("LSTM", with_core(preset, "lstm")),
            Variant("Transformer-XL", with_core(preset, "transformer-xl", memory=64)),
            Variant(
                "Transformer-XL, no curriculum", with_core(preset, "transformer-xl", None, NO_CURRICULUM, memory=64)
            ),
            Variant("Feedback", with_core(preset, "feedback", memory=8)),
            Variant("Staircase (C=2, N=4)", with_core(preset, "staircase", chunk=2, passes=4)),
            Variant("Cached Staircase (C=1, N=9)", with_core(preset, "cached-staircase", chunk=1, passes=9)),
            Variant("Global Cached Staircase", with_core(preset, "global-cached-staircase", chunk=1, distances=128)),
            Variant(
                "Global Cached Staircase, 16 distances",
                with_core(preset, "global-cached-staircase", chunk=1, distances=16),
            ),
        ),
        notes=(
            f"Trained on lengths up to {preset.option('task.length')} with the same curriculum for all models; "
            f"Transformer-XL is also trained without it. {sizes}",
            "Transformer-XL attends to 64 tokens, more than a training sequence has. The other models carry a state and"
            " attend to 8 or 9 tokens; Global Cached Staircase attends to the whole sequence, with 128 position "
            "embeddings, of which training reaches 40, or with 16, the last of which all larger distances share.",
        ),
    )


def extra_parity(scale: Scale) -> Experiment:
    title = "Parity: trained on 40 bits, tested on up to 400"
    return state_tracking_baseline("extra.parity", title, presets.parity(scale=scale), scale, tested=(40, 80, 400))


def extra_s5(scale: Scale) -> Experiment:
    title = "Products of permutations (S5): trained on 40 factors, tested on up to 200"
    base = state_tracking_baseline("extra.s5", title, presets.s5(scale=scale), scale, tested=(20, 40, 200))
    if scale == "paper":
        return base
    factors = "Laptop scale: the factors are a swap and a cycle, which generate all 120 permutations."
    lstm, *others = base.variants
    high_lr = Variant(
        "LSTM, learning rate 0.003", with_core(presets.s5(scale=scale), "lstm", train={"learning_rate": 3e-3})
    )
    return dataclasses.replace(base, variants=(lstm, high_lr, *others), notes=(*base.notes, factors))


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.parity": extra_parity, "extra.s5": extra_s5}
