"""Generalization over lengths: copy, reverse, and counting with a short memory.

Copy and reverse of Fan et al. 2020 (table 1) with spread lengths: our hypothesis about its test set.

Table 1 has 6.2% of the sequences but 59.1% of the characters right "at 400". With a fixed length of 400 a model with
59% of the characters right has next to no sequence right; with lengths spread from 1 to 400 both numbers fit.

Counting up to 200 is solved by every model whose memory holds the sequence. With a memory of 32 tokens the count has
to be carried: a Transformer of 2 layers reaches 64 tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.table1 import copy_or_reverse, counting_to

CLIP = {"max_grad_norm": 0.1}
CURVE = (40, 80, 120, 200, 400)
POSITIONS = ("learned", "clamped", "random")
NOTE = (
    "Our hypothesis, not stated in the paper: sequences of 1 to 40 digits in training and of 1 to 400 in the test. The "
    "columns of one length show the accuracy beyond the training lengths. Everything else is as in {base}, but "
    "gradients are clipped at 0.1 as in the papers; positions as in extra.distances."
)


COUNT, MEMORY = 200, 32
COUNTING_NOTES = (
    f"Our experiment: as feedback.table1.counting-long, but with a memory of {MEMORY} tokens instead of a whole "
    f"sequence of up to {2 * COUNT}: a Transformer of L layers reaches {MEMORY} L tokens. Clamped positions have "
    f"{MEMORY // 2} embeddings.",
    "Sequence accuracy: every B and the end token must be right.",
)


def with_positions(variant: Variant, positions: str, **sections: Any) -> Variant:
    """Return a variant with other position embeddings, which an LSTM does not have."""
    core = {"positions": positions} if positions else {}
    name = f"{variant.name}, {positions} positions" if positions else variant.name
    return dataclasses.replace(variant, name=name, config=variant.config.replace(core=core, **sections))


def positions_of(variant: Variant) -> tuple[str, ...]:
    return POSITIONS if variant.name != "LSTM" else ("",)


def spread(scale: Scale, reverse: bool) -> Experiment:
    base = copy_or_reverse(scale, reverse)
    variants = []
    for variant in base.variants:
        paper = (*variant.paper[1:], *("" for _ in CURVE)) if variant.paper else ()
        for positions in positions_of(variant):
            changed = with_positions(variant, positions, task={"min_length": 1}, train=CLIP)
            variants.append(dataclasses.replace(changed, paper=paper, paper_name=variant.name))
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


def counting(scale: Scale) -> Experiment:
    base = counting_to("extra.lengths.counting", scale, 1000, ("", ""))
    variants = []
    for variant in base.variants:
        # The paper-scale preset counts up to 1,000.
        config = variant.config.replace(
            task={"length": COUNT}, core={"memory": MEMORY} if positions_of(variant)[0] else {}
        )
        short = dataclasses.replace(variant, config=config, paper=())
        for positions in positions_of(variant):
            changed = with_positions(short, positions, train=CLIP)
            if positions == "clamped":
                config = changed.config.replace(core={"position_embeddings": MEMORY // 2})
                changed = dataclasses.replace(changed, config=config)
            variants.append(changed)
    return dataclasses.replace(
        base,
        title=f"Counting up to {COUNT} with a memory of {MEMORY} tokens",
        columns=(
            Metric(f"sequence accuracy up to {COUNT} (%)", "sequence_accuracy"),
            Metric(f"up to {2 * COUNT} (%)", "sequence_accuracy", task={"test_length": 2 * COUNT}),
        ),
        variants=tuple(variants),
        claim="Feedback can carry a count beyond its memory; a Transformer cannot",
        notes=(base.notes[0], *COUNTING_NOTES),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {
    "extra.lengths.copy": copy,
    "extra.lengths.reverse": reverse,
    "extra.lengths.counting": counting,
}
