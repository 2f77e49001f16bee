"""Models of equal size: how wide a model must be to have as many weights as another."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from stairwell.cores import build
from stairwell.experiments.experiment import Scale
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core


def weights(core: Any) -> int:
    """How many weights a core has, from its config alone."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(core).parameters())


def as_large_as(goal: RunConfig, experiment: RunConfig, symbols: int = 0) -> RunConfig:
    """The experiment with as many weights as another: by its inner width or, an LSTM, by its width, which the vectors
    of its `symbols` have too."""
    core, wanted = experiment.core, weights(goal.core)
    if experiment.core_name == "lstm":
        # 8 L (D^2 + D) weights in L layers of width D
        excess = lambda D: abs(8 * core.layers * D * (D + 1) + 2 * symbols * (D - goal.core.width) - wanted)  # noqa: E731
        return dataclasses.replace(
            experiment, core=dataclasses.replace(core, width=min(range(2, 8 * core.width, 2), key=excess))
        )
    least, next_one = (weights(dataclasses.replace(core, inner=inner)) for inner in (8, 16))
    inner = 8 * max(1, 1 + round((wanted - least) / (next_one - least)))
    return dataclasses.replace(experiment, core=dataclasses.replace(core, inner=inner))


def feedback_of(setting: RunConfig, scale: Scale, **own: Any) -> RunConfig:
    """Feedback with as many weights as the Transformer of its setting: with keys of its own in every layer at paper
    scale; with one pair, and a wider feed-forward instead, at laptop scale."""
    if scale == "paper":
        return with_core(setting, "feedback", share_kv=False, **own)
    return as_large_as(with_core(setting, "transformer-xl"), with_core(setting, "feedback", **own))
