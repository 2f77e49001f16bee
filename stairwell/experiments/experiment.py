"""An Experiment: one table or figure of a paper. Its variants are runs, its columns measurements.

    experiment = experiments("staircase.table7", "laptop")[0]        from stairwell.experiments.papers
    for variant in experiment.variants: variant.name, variant.config, variant.paper

Experiments are functions of a scale: `paper` has the papers' hyperparameters, `laptop` is made for two CPU cores.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stairwell import configs
from stairwell.cores import entry
from stairwell.errors import UserError, suggestion
from stairwell.runs.config import RunConfig, format_option
from stairwell.runs.run import Run

Scale = Literal["laptop", "paper"]
SCALES: tuple[Scale, ...] = ("laptop", "paper")

# Options that do not change the parameters.
WITHOUT_EFFECT = ("train.log_every", "train.checkpoint_every")

FEEDBACK = "Fan et al. 2020 (arXiv 2002.09402)"
STAIRCASE = "Ju et al. 2021 (arXiv 2106.04279)"


class Column(Protocol):
    """A measurement on a finished run. `measures.py` has all of them."""

    @property
    def title(self) -> str: ...

    def measure(self, run: Run, device: str, engine: str) -> float | None: ...


@dataclass(frozen=True)
class SweepPoint:
    """The position of a variant among variants that differ in one number: a point in the experiment's plot."""

    axis: str
    "The number with its unit, as the label of the x axis."
    series: str
    x: float
    printed: bool = True
    "Whether the paper's number belongs to this x. At laptop scale it may belong to another."


def folder_name(name: str) -> str:
    """Return the name of the folder of a variant."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class Variant:
    name: str
    "The paper's name of the model, with what distinguishes it from the other variants."
    config: RunConfig
    paper: tuple[str, ...] = ()
    "The paper's number for each column as printed; empty where the paper prints none."
    points: tuple[SweepPoint, ...] = ()
    "At most one per axis. An experiment plots those of the axes that it names."
    paper_name: str = ""
    "The published model that the numbers belong to, if it is not this variant; they are there for comparison."
    original: RunConfig | None = None
    "The experiment's config, if options have changed it."

    def point(self, axis: str) -> SweepPoint | None:
        return next((point for point in self.points if point.axis == axis), None)

    @property
    def folder(self) -> str:
        return folder_name(self.name)

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Options that were changed: the experiment's value and the present one. The path of a corpus that the
        experiment leaves open is not a change."""
        differences = self.original.differences(self.config) if self.original is not None else {}
        return {
            name: values
            for name, values in differences.items()
            if name not in WITHOUT_EFFECT and (name != "task.path" or values[0])
        }


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    title: str
    paper: str
    scale: Scale
    columns: tuple[Column, ...]
    variants: tuple[Variant, ...]
    seeds: int = 1
    first_seed: int = 0
    seeds_of: dict[str, int] = dataclasses.field(default_factory=dict)
    "Variants with another number of seeds."
    claim: str = ""
    "The paper's conclusion, in our words."
    notes: tuple[str, ...] = ()
    "What the papers leave open or contradict and what was assumed; what is smaller at laptop scale."
    data: str = ""
    "The corpus that --task.path must name; empty where the task generates its data or has a default corpus."
    axes: tuple[str, ...] = ()
    "The numbers that variants differ in, each the x axis of a plot. A variant without a point is a horizontal line."
    plotted: tuple[str, ...] = ()
    "The columns that are plotted against x; all of them if empty."
    jobs: int = 1
    "Runs at a time, if --jobs is not given."
    page: bool = False
    "Whether the report comes with an interactive page of the trained models."

    def __post_init__(self) -> None:
        folders = [variant.folder for variant in self.variants]
        assert len(set(folders)) == len(folders), f"{self.name}: two variants of one name"
        assert all(len(v.paper) in (0, len(self.columns)) for v in self.variants), f"{self.name}: numbers and columns"
        titles = {column.title for column in self.columns}
        assert set(self.plotted) <= titles, f"{self.name}: plots a column that is not measured"
        for axis in self.axes:
            taken = [(point.series, point.x) for variant in self.variants if (point := variant.point(axis))]
            assert taken, f"{self.name}: no variant has a point along '{axis}'"
            assert len(set(taken)) == len(taken), f"{self.name}: two variants at one point along '{axis}'"

    def runs(self, only: Sequence[str] = ()) -> list[tuple[Variant, int]]:
        """Return every variant and seed, or those of `only` some variants. All variants of a seed come before the next
        seed, so that an interrupted experiment has a result for each."""
        most = max((self.seeds_for(variant) for variant in self.variants), default=0)
        return [
            (variant, seed)
            for number, seed in enumerate(range(self.first_seed, self.first_seed + most))
            for variant in self.variants
            if number < self.seeds_for(variant) and (not only or variant.name in only)
        ]

    def seeds_for(self, variant: Variant) -> int:
        return self.seeds_of.get(variant.name, self.seeds)

    def changed(self, options: dict[str, str], seeds: int | None = None, first_seed: int = 0) -> Experiment:
        """Return the experiment with fields of its configs set from text, and other seeds. An option of a core applies
        to the variants whose core has it."""
        core_options = {f"core.{name}" for v in self.variants for name in configs.field_types(type(v.config.core))}
        variants = []
        for variant in self.variants:
            own = {f"core.{name}" for name in configs.field_types(type(variant.config.core))}
            fits = {name: text for name, text in options.items() if name in own or name not in core_options}
            config = variant.config.with_options(fits)
            variants.append(dataclasses.replace(variant, config=config, original=variant.config))
        changed = dataclasses.replace(self, variants=tuple(variants), first_seed=first_seed)
        return dataclasses.replace(changed, seeds=seeds, seeds_of={}) if seeds is not None else changed


def changes_text(variants: Sequence[Variant]) -> list[str]:
    """Return what options have changed, one text per value: "train.steps 700 (experiment: 4,000)"."""
    before: dict[tuple[str, str], dict[str, None]] = {}
    for variant in variants:
        for name, (original, present) in variant.changes.items():
            before.setdefault((name, format_option(present)), {})[format_option(original)] = None
    return [f"{name} {now} (experiment: {' or '.join(values)})" for (name, now), values in before.items()]


def check_variants(where: str, names: Sequence[str], only: Sequence[str]) -> None:
    """Reject names of variants that `where` does not have."""
    for name in only:
        if name not in names:
            raise UserError(f"--only '{name}': {where} has no such variant{suggestion(name, dict.fromkeys(names))}")


def context_of(config: RunConfig) -> str:
    """Return a description of the context that a model attends to."""
    return entry(config.core_name).context(config.core)


def mean_and_deviation(values: list[float]) -> str:
    """Return mean and standard deviation of several seeds, or the only value."""
    if len(values) < 2:
        return f"{values[0]:.4g}" if values else ""
    return f"{statistics.mean(values):.4g} ± {statistics.stdev(values):.2g}"


ExperimentFactory = Callable[[Scale], Experiment | None]  # None: not at this scale
