"""Copy and reverse of Fan et al. 2020 (table 1) with position embeddings that can extrapolate: does the paper's claim
hold with any of them? The paper does not say how it treats distances beyond those of training."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.papers.feedback.table1 import copy_or_reverse
from stairwell.layers import CLAMPED, POSITIONS

NOTE = (
    "Position embeddings for distances beyond those of training. Learned: never trained. Clamped: all distances beyond "
    f"{CLAMPED} share one. None: no position embeddings. Random: an increasing sample of all 801 in each training "
    "call. Everything else is as in {base}."
)


def by_position_type(scale: Scale, reverse: bool) -> Experiment:
    base = copy_or_reverse(scale, reverse)
    variants = []
    for variant in base.variants:
        for positions in POSITIONS if variant.name != "LSTM" else ():
            config = variant.config.replace(core={"positions": positions})
            name = f"{variant.name}, {positions}"
            variants.append(Variant(name, config, variant.paper, paper_name=variant.name))
    task_name = "reverse" if reverse else "copy"
    return dataclasses.replace(
        base,
        name=f"extra.distances.{task_name}",
        title=f"{base.title}, four types of position embeddings",
        variants=tuple(variants),
        notes=(*base.notes[:-2], NOTE.format(base=base.name)),
    )


def copy(scale: Scale) -> Experiment:
    return by_position_type(scale, reverse=False)


def reverse(scale: Scale) -> Experiment:
    return by_position_type(scale, reverse=True)


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.distances.copy": copy, "extra.distances.reverse": reverse}
