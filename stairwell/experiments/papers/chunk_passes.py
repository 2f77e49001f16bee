"""Chunk size and passes of Ju et al. 2021, varied one at a time on the random walk.

Tables 6 and 7 keep the step size N C constant, so a larger chunk has fewer passes and the two effects cannot be told
apart. Here one series varies C at a fixed N and another N at a fixed C. Cached Staircase, which computes every chunk
once, varies C at a fixed step size as in table 7.
"""

from __future__ import annotations

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, SweepPoint, Variant
from stairwell.experiments.measures import LargestSolved
from stairwell.experiments.papers.staircase.shared import CHUNK, EPISODES_NOTE, NAMES, PASSES, TEST_ERROR
from stairwell.runs import presets
from stairwell.runs.presets import with_core

CHUNKS: dict[Scale, tuple[int, ...]] = {"laptop": (1, 2, 4, 8), "paper": (4, 8, 16, 32)}
PASS_COUNTS = (1, 2, 4, 8)  # of passes
FIXED: dict[Scale, tuple[int, int]] = {"laptop": (4, 2), "paper": (4, 8)}  # the fixed N and the fixed C
CONTEXT: dict[Scale, int] = {"laptop": 32, "paper": 256}  # Cached Staircase's step size
LENGTHS: dict[Scale, tuple[int, ...]] = {
    "laptop": (4, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 50),
    "paper": (4, 8, 12, 16, 24, 32, 48, 64, 100, 150, 200, 300, 400),
}


def variants(scale: Scale) -> tuple[Variant, ...]:
    """Return Staircases by chunk size, then by passes, and Cached Staircases by chunk size. The Staircase of both
    series is one variant."""
    preset, (fixed_passes, fixed_chunk) = presets.short_random_walk(scale=scale), FIXED[scale]

    def variant(core: str, N: int, C: int, *points: SweepPoint) -> Variant:
        config = with_core(preset, core, chunk=C, passes=N)
        return Variant(f"{NAMES[core]} (C={C}, N={N})", config, points=points)

    def staircase(N: int, C: int) -> Variant:
        series = {
            SweepPoint(CHUNK, f"Staircase, {fixed_passes} passes", C): fixed_passes == N,
            SweepPoint(PASSES, f"Staircase, chunks of {fixed_chunk}", N): fixed_chunk == C,
        }
        return variant("staircase", N, C, *(point for point, fits in series.items() if fits))

    def cached(C: int) -> Variant:
        point = SweepPoint(CHUNK, f"Cached Staircase, context of {CONTEXT[scale]} tokens", C)
        return variant("cached-staircase", CONTEXT[scale] // C, C, point)

    sizes = [*((fixed_passes, C) for C in CHUNKS[scale]), *((N, fixed_chunk) for N in PASS_COUNTS)]
    return (*(staircase(N, C) for N, C in dict.fromkeys(sizes)), *map(cached, CHUNKS[scale]))


def chunk_passes(scale: Scale) -> Experiment:
    base = presets.short_random_walk(scale=scale)
    train, length = base.train, base.option("task.length")
    small = (
        f"Laptop scale: episodes of {length} actions instead of 400, models of 0.1 million parameters instead "
        f"of 3.2, unlimited training episodes, one curriculum over the length (8 to {length}, advancing at "
        f"{base.option('train.curriculum_accuracy'):g}% accuracy), {train.steps:,} steps of {train.batch} streams, one "
        "seed. All models have 4 heads."
    )
    return Experiment(
        name="extra.chunk-passes",
        title="Random walk: chunk size and passes, varied one at a time",
        paper="our own ablation, after tables 6 and 7 and figure 2 of Ju et al. 2021 (arXiv 2106.04279)",
        scale=scale,
        columns=(*TEST_ERROR, LargestSolved("longest episodes at 90% accuracy (actions)", "length", LENGTHS[scale])),
        variants=variants(scale),
        seeds=1 if scale == "laptop" else 5,
        claim="larger chunks have a larger error, and two recurrent steps are enough to track a state",
        notes=(
            small if scale == "laptop" else EPISODES_NOTE,
            "The paper's tables keep the step size N C constant, so chunk size and passes change together. A Staircase "
            "with one pass attends to its own chunk only.",
            "The last column is the largest of several lengths up to which accuracy is at least 90%. It separates "
            "models that have similar errors on whole episodes.",
        ),
        axes=(CHUNK, PASSES),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.chunk-passes": chunk_passes}
