"""Copy and reverse of Fan et al. 2020 (table 1) with distances that can extrapolate: whether the paper's claim appears
with any of them. The paper does not say how it treated distances beyond those of training."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.feedback.table1 import copy_or_reverse
from stairwell.layers import CLAMPED, POSITIONS

NOTE = (
    "Distances beyond those of training (learned: never trained; clamped: all beyond "
    f"{CLAMPED} share a vector; none: no vectors; random: vectors drawn from all 801, in order, at each call in "
    "training). Everything else is as in {study}."
)


def of_every_kind(scale: Scale, reverse: bool) -> Experiment:
    study = copy_or_reverse(scale, reverse)
    variants = []
    for variant in study.variants:
        for kind in POSITIONS if variant.name != "LSTM" else ():
            core = dataclasses.replace(variant.config.core, positions=kind)
            experiment = dataclasses.replace(variant.config, core=core)
            variants.append(Variant(f"{variant.name}, {kind}", experiment, variant.paper))
    what = "reverse" if reverse else "copy"
    return dataclasses.replace(
        study,
        name=f"extra.distances.{what}",
        title=f"{study.title}, four kinds of distances",
        variants=tuple(variants),
        notes=(*study.notes[:-2], NOTE.format(study=study.name)),
    )


def copy(scale: Scale) -> Experiment:
    return of_every_kind(scale, reverse=False)


def reverse(scale: Scale) -> Experiment:
    return of_every_kind(scale, reverse=True)


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.distances.copy": copy, "extra.distances.reverse": reverse}
