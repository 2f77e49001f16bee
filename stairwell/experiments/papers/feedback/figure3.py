"""Figure 3 of Fan et al. 2020: reward in a corridor against the size of the memory."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, SweepPoint, Variant
from stairwell.experiments.papers.feedback.agents import CORRIDOR_NOTES, RETURN
from stairwell.runs import presets
from stairwell.runs.presets import with_core

MEMORY = "size of the memory (frames)"
MEMORIES: dict[Scale, tuple[int, ...]] = {"laptop": (2, 4, 8, 16, 24), "paper": (5, 10, 25, 50, 100)}


def corridor(scale: Scale) -> Experiment:
    preset = presets.corridor(scale=scale)
    return Experiment(
        name="feedback.figure3",
        title="Corridor: reward against memory size",
        paper=f"{FEEDBACK}, figure 3",
        scale=scale,
        columns=(RETURN,),
        variants=tuple(
            Variant(
                f"{model}, memory {memory}",
                with_core(preset, core, memory=memory),
                points=(SweepPoint(MEMORY, model, memory),),
            )
            for model, core in (("Transformer", "transformer-xl"), ("Feedback", "feedback"))
            for memory in MEMORIES[scale]
        ),
        seeds=3,
        claim="a Transformer fails with a small memory, Feedback remembers with the smallest",
        notes=CORRIDOR_NOTES[scale],
        axes=(MEMORY,),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.figure3": corridor}
