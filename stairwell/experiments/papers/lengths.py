"""Copy and reverse of Fan et al. 2020 (table 1) with spread lengths: our hypothesis about its test set.

Table 1 has 6.2% of the sequences but 59.1% of the characters right "at 400". With a fixed length of 400 a model with
59% of the characters right has next to no sequence right; with lengths spread from 1 to 400 both numbers fit.
"""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.table1 import copy_or_reverse

CLIP = {"max_grad_norm": 0.1}
CURVE = (40, 80, 120, 200, 400)
POSITIONS = ("learned", "clamped", "random")
NOTE = (
    "Our hypothesis, not stated in the paper: sequences of 1 to 40 digits in training and of 1 to 400 in the test. The "
    "columns of one length show the accuracy beyond the training lengths. Everything else is as in {base}, but "
    "gradients are clipped at 0.1 as in the papers; positions as in extra.distances."
)


def spread(scale: Scale, reverse: bool) -> Experiment:
    base = copy_or_reverse(scale, reverse)
    variants = []
    for variant in base.variants:
        for positions in POSITIONS if variant.name != "LSTM" else ("",):
            core = {"positions": positions} if positions else {}
            config = variant.config.replace(core=core, task={"min_length": 1}, train=CLIP)
            name = f"{variant.name}, {positions} positions" if positions else variant.name
            paper = (*variant.paper[1:], *("" for _ in CURVE)) if variant.paper else ()
            variants.append(Variant(name, config, paper, paper_name=variant.name))
    task_name = "reverse" if reverse else "copy"
    return dataclasses.replace(
        base,
        name=f"extra.lengths.{task_name}",
        title=f"{task_name.capitalize()} digits: trained on 1 to 40, tested on 1 to 400",
        columns=(
            Metric("character accuracy at 1 to 400 (%)", "accuracy"),
            Metric("sequence accuracy at 1 to 400 (%)", "sequence_accuracy"),
            *(
                Metric(f"character accuracy at {n} (%)", "accuracy", task={"min_length": n, "test_length": n})
                for n in CURVE
            ),
        ),
        variants=tuple(variants),
        notes=(*base.notes[:-2], NOTE.format(base=base.name)),
    )


def copy(scale: Scale) -> Experiment:
    return spread(scale, reverse=False)


def reverse(scale: Scale) -> Experiment:
    return spread(scale, reverse=True)


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.lengths.copy": copy, "extra.lengths.reverse": reverse}
