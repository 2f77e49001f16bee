"""A study: one table or figure of a paper, its rows as trainings, its columns as measurements, its numbers beside ours.

    study = studies("staircase.table7", "laptop")[0]        from stairwell.experiments.papers
    for row in study.rows: row.model, row.experiment, row.paper

Studies are functions of a scale: `paper` has the papers' hyperparameters, `laptop` is made for two CPU cores, with one
recipe for all the models of a table.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stairwell import configs
from stairwell.cores import entry
from stairwell.errors import UserError, nearest
from stairwell.runs.config import RunConfig
from stairwell.train.run import Run

Scale = Literal["laptop", "paper"]
SCALES: tuple[Scale, ...] = ("laptop", "paper")

FEEDBACK = "Fan et al. 2020 (arXiv 2002.09402)"
STAIRCASE = "Ju et al. 2021 (arXiv 2106.04279)"


class Column(Protocol):
    """Something that is measured on a finished training; `measures.py` has the kinds there are."""

    @property
    def title(self) -> str: ...

    def measure(self, run: Run, device: str, engine: str) -> float | None: ...


@dataclass(frozen=True)
class Place:
    """Where a row stands among rows that differ in one number: a point of a line in the study's picture."""

    axis: str
    "the number with its unit, as it is written along x"
    series: str
    x: float
    printed: bool = True
    "whether the paper's number is of this x too; at a laptop's scale it may be of another"


@dataclass(frozen=True)
class Row:
    model: str
    "as the paper calls it, with what sets it apart from its neighbors"
    experiment: RunConfig
    paper: tuple[str, ...] = ()
    "the paper's number for each column as it is printed; empty where it prints none"
    places: tuple[Place, ...] = ()
    "one an axis at most; a study draws those of the axes that it names"

    def place(self, axis: str) -> Place | None:
        return next((place for place in self.places if place.axis == axis), None)

    @property
    def folder(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.model.lower()).strip("-")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    title: str
    paper: str
    scale: Scale
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    seeds: int = 1
    seeds_of: dict[str, int] = dataclasses.field(default_factory=dict)
    "rows with another number of seeds"
    claim: str = ""
    "what the paper concludes, in our words"
    notes: tuple[str, ...] = ()
    "what the papers leave open or contradict, and what was taken; what a laptop's scale makes smaller"
    data: str = ""
    "the corpus that --task.path must name; empty where the task makes its own data or has one at hand"
    axes: tuple[str, ...] = ()
    "what its rows vary, each the x of a picture; a row without a place there is drawn as a level"
    drawn: tuple[str, ...] = ()
    "the columns that are drawn against x; all of them if none is named"

    def __post_init__(self) -> None:
        folders = [row.folder for row in self.rows]
        assert len(set(folders)) == len(folders), f"{self.name}: two rows of one name"
        assert all(len(row.paper) in (0, len(self.columns)) for row in self.rows), f"{self.name}: numbers and columns"
        titles = {column.title for column in self.columns}
        assert set(self.drawn) <= titles, f"{self.name}: draws what it does not measure"
        for axis in self.axes:
            taken = [(place.series, place.x) for row in self.rows if (place := row.place(axis))]
            assert taken, f"{self.name}: no row has a place along '{axis}'"
            assert len(set(taken)) == len(taken), f"{self.name}: two rows in one place along '{axis}'"

    def trainings(self) -> list[Training]:
        """Every row and seed, seed by seed, so that a study that was cut short has seen all its rows."""
        most = max((self.seeds_for(row) for row in self.rows), default=0)
        return [Training(row, seed) for seed in range(most) for row in self.rows if seed < self.seeds_for(row)]

    def seeds_for(self, row: Row) -> int:
        return self.seeds_of.get(row.model, self.seeds)

    def changed(self, options: dict[str, str], seeds: int | None = None) -> Experiment:
        """The study with fields of its experiments set from text, and another number of seeds. An option of a core is
        for the rows whose core has it."""
        known = {f"core.{name}" for row in self.rows for name in configs.field_types(type(row.experiment.core))}
        rows = []
        for row in self.rows:
            own = {f"core.{name}" for name in configs.field_types(type(row.experiment.core))}
            fits = {name: text for name, text in options.items() if name in own or name not in known}
            rows.append(dataclasses.replace(row, experiment=row.experiment.with_options(fits)))
        changed = dataclasses.replace(self, rows=tuple(rows))
        return dataclasses.replace(changed, seeds=seeds, seeds_of={}) if seeds is not None else changed


@dataclass(frozen=True)
class Training:
    row: Row
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row.model}, seed {self.seed}"

    @property
    def folder(self) -> str:
        return f"{self.row.folder}/seed-{self.seed}"

    @property
    def experiment(self) -> RunConfig:
        train = dataclasses.replace(self.row.experiment.train, seed=self.seed)
        return dataclasses.replace(self.row.experiment, train=train)


def check_models(where: str, known: Sequence[str], only: Sequence[str]) -> None:
    """Refuse names of models that `where` does not have."""
    for name in only:
        if name not in known:
            raise UserError(f"--only '{name}': {where} has no such model{nearest(name, dict.fromkeys(known))}")


def memory_in_words(experiment: RunConfig) -> str:
    """How far a model looks back, which is what models of one table differ in."""
    return entry(experiment.core_name).in_sight(experiment.core)


def spread_in_words(values: list[float]) -> str:
    """Mean and deviation of several seeds, or the one value there is."""
    if len(values) < 2:
        return f"{values[0]:.4g}" if values else ""
    return f"{statistics.mean(values):.4g} ± {statistics.stdev(values):.2g}"


ExperimentFactory = Callable[[Scale], Experiment | None]  # none: not at this scale
