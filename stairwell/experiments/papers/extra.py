"""Two yardsticks of ours that are in neither paper: parity and the word problem of S5."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import Column, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.settings import PLAIN
from stairwell.runs import presets
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core


def yardstick(name: str, title: str, setting: RunConfig, scale: Scale, tested: tuple[int, ...]) -> Experiment:
    columns: tuple[Column, ...] = tuple(
        Metric(f"accuracy at {length} (%)", "accuracy", task={"test_length": length}) for length in tested
    )
    last = Metric(f"last token at {tested[-1]} (%)", "last_accuracy", task={"test_length": tested[-1]})
    train, large = setting.train, "as the first paper's random walk has them"
    layers = f"{setting.core.layers} layers of width {setting.core.width}"
    small = f"laptop scale, {layers}, {train.steps:,} updates of {train.batch} rows"
    sizes = f"Sizes and training are {small if scale == 'laptop' else large}."
    return Experiment(
        name=name,
        title=title,
        paper="not in the papers; a yardstick of state tracking",
        scale=scale,
        columns=(*columns, last),
        variants=(
            Variant("LSTM", with_core(setting, "lstm")),
            Variant("Transformer-XL", with_core(setting, "transformer-xl", memory=64)),
            Variant("Transformer-XL, no curriculum", with_core(setting, "transformer-xl", None, PLAIN, memory=64)),
            Variant("Feedback", with_core(setting, "feedback", memory=8)),
            Variant("Staircase", with_core(setting, "staircase", chunk=2, passes=4)),
            Variant("Cached Staircase", with_core(setting, "cached-staircase", chunk=1, passes=9)),
            Variant("Global Cached Staircase", with_core(setting, "global-cached-staircase", chunk=1, distances=128)),
            Variant(
                "Global Cached Staircase, 16 distances",
                with_core(setting, "global-cached-staircase", chunk=1, distances=16),
            ),
        ),
        notes=(
            f"Trained on lengths up to {setting.task.length}, by the same curriculum for all, Transformer-XL "
            f"without it too. {sizes}",
            "Transformer-XL sees 64 tokens, more than a training sequence has; the others carry a state on and see 8 "
            "or 9, Global Cached Staircase all of a sequence: with 128 vectors of distances, of which training reaches "
            "40, or with 16, the last for all that is farther.",
        ),
    )


def extra_parity(scale: Scale) -> Experiment:
    title = "Parity: trained on 40 bits, tested on up to 400"
    return yardstick("extra.parity", title, presets.parity(scale=scale), scale, tested=(40, 80, 400))


def extra_s5(scale: Scale) -> Experiment:
    title = "Products of permutations (S5): trained on 40 factors, tested on up to 200"
    study = yardstick("extra.s5", title, presets.s5(scale=scale), scale, tested=(20, 40, 200))
    if scale == "paper":
        return study
    factors = "Laptop scale: the factors are a swap and a cycle, of which all 120 permutations are made."
    lstm, *others = study.variants
    quicker = Variant("LSTM, rate 0.003", with_core(presets.s5(scale=scale), "lstm", train={"learning_rate": 3e-3}))
    return dataclasses.replace(study, variants=(lstm, quicker, *others), notes=(*study.notes, factors))


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.parity": extra_parity, "extra.s5": extra_s5}
