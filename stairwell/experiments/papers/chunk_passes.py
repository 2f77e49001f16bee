"""Chunk and passes of Ju et al. 2021 one at a time, on the random walk.

Tables 6 and 7 hold the step size N C, so that a larger chunk has fewer passes: which of the two makes it worse they
cannot say. Here one line varies C at one N, another N at one C, and Cached Staircase, whose passes are always one,
varies C at one step size as in table 7.
"""

from __future__ import annotations

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, SweepPoint, Variant
from stairwell.experiments.measures import LargestSolved
from stairwell.experiments.papers.staircase.settings import CHUNK, EPISODES_NOT_PRINTED, NAMES, PASSES, TEST_ERROR
from stairwell.runs import presets
from stairwell.runs.presets import with_core

CHUNKS: dict[Scale, tuple[int, ...]] = {"laptop": (1, 2, 4, 8), "paper": (4, 8, 16, 32)}
COUNTS = (1, 2, 4, 8)  # of passes
USUAL: dict[Scale, tuple[int, int]] = {"laptop": (4, 2), "paper": (4, 8)}  # N where C varies, C where N does
IN_SIGHT: dict[Scale, int] = {"laptop": 32, "paper": 256}  # Cached Staircase's step size
REACHED: dict[Scale, tuple[int, ...]] = {
    "laptop": (4, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 50),
    "paper": (4, 8, 12, 16, 24, 32, 48, 64, 100, 150, 200, 300, 400),
}


def variants(scale: Scale) -> tuple[Variant, ...]:
    """Staircases by chunk, then by passes, Cached Staircases by chunk; the one of both lines is trained once."""
    setting, (usual_passes, usual_chunk) = presets.short_random_walk(scale=scale), USUAL[scale]

    def variant(core: str, N: int, C: int, *places: SweepPoint) -> Variant:
        experiment = with_core(setting, core, chunk=C, passes=N)
        return Variant(f"{NAMES[core]}, N = {N}, C = {C}", experiment, points=places)

    def staircase(N: int, C: int) -> Variant:
        lines = {
            SweepPoint(CHUNK, f"Staircase, {usual_passes} passes", C): usual_passes == N,
            SweepPoint(PASSES, f"Staircase, chunks of {usual_chunk}", N): usual_chunk == C,
        }
        return variant("staircase", N, C, *(place for place, fits in lines.items() if fits))

    def cached(C: int) -> Variant:
        place = SweepPoint(CHUNK, f"Cached Staircase, {IN_SIGHT[scale]} tokens in sight", C)
        return variant("cached-staircase", IN_SIGHT[scale] // C, C, place)

    sizes = [*((usual_passes, C) for C in CHUNKS[scale]), *((N, usual_chunk) for N in COUNTS)]
    return (*(staircase(N, C) for N, C in dict.fromkeys(sizes)), *map(cached, CHUNKS[scale]))


def chunk_passes(scale: Scale) -> Experiment:
    base = presets.short_random_walk(scale=scale)
    train, task = base.train, base.task
    small = (
        f"Laptop scale: episodes of {task.length} actions instead of 400, models of 0.1 million weights instead of "
        f"3.2, new episodes without end, one curriculum over the length (8 to {task.length}, the next at "
        f"{train.curriculum_accuracy:g}% accuracy), {train.steps:,} updates of {train.batch} rows, one seed; all "
        "models have 4 heads."
    )
    return Experiment(
        name="extra.chunk-passes",
        title="Random walk: chunk and passes, one at a time",
        paper="an ablation of ours, after tables 6 and 7 and figure 2 of Ju et al. 2021 (arXiv 2106.04279)",
        scale=scale,
        columns=(*TEST_ERROR, LargestSolved("longest walks at 90%, actions", "length", REACHED[scale])),
        variants=variants(scale),
        seeds=1 if scale == "laptop" else 5,
        claim="the larger a chunk the worse, and two recurrent steps are enough to track a state",
        notes=(
            small if scale == "laptop" else EPISODES_NOT_PRINTED,
            "The paper's tables hold the step size N C, so that chunk and passes change together. A Staircase of one "
            "pass sees its own chunk alone.",
            "The last column tells models apart that the error of whole walks does not: the longest of some lengths up "
            "to which at least 90% of the answers are right.",
        ),
        axes=(CHUNK, PASSES),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.chunk-passes": chunk_passes}
