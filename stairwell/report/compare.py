"""Runs put into words and tables: which model reached what, and with how much."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from stairwell.cores import CORES
from stairwell.report.collect import RunReport
from stairwell.report.table import Cell, Table

Part = TypeVar("Part")
# One color a model, the same in every report: an entry's place in the palette (Okabe and Ito, 2008).
COLORS = 8


@dataclass(frozen=True)
class Model:
    """The runs of one name: one model, a seed each. All models of a report are scored on the same split."""

    name: str
    color: int
    split: str
    runs: list[RunReport] = field(default_factory=list)

    @property
    def scores(self) -> list[float]:
        found = [run.scores.get(f"{self.split}_{run.metric}") for run in self.runs]
        return [value for value in found if value is not None]

    @property
    def score(self) -> float | None:
        return statistics.mean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def scored_on(self) -> str:
        return {"valid": "validation"}.get(self.split, self.split)


def tell_apart(runs: list[RunReport]) -> list[RunReport]:
    """Runs of one name must differ in their seed alone; others get their folder's name too."""
    kinds: dict[str, list[Any]] = {}
    for run in runs:
        kinds.setdefault(run.name, []).append((run.seed, without_seed(run.config)))
    unclear = {
        name
        for name, found in kinds.items()
        if len({seed for seed, _ in found}) < len(found) or any(config != found[0][1] for _, config in found)
    }
    return [replace(run, name=f"{run.name} ({run.folder})") if run.name in unclear else run for run in runs]


def without_seed(config: dict[str, Any]) -> dict[str, Any]:
    """What makes a model; a training that was allowed more updates is still the same one."""
    train = {name: value for name, value in config.get("train", {}).items() if name != "seed"}
    return {**config, "train": train, "stairwell": None}


def models(runs: list[RunReport]) -> list[Model]:
    """The runs by model, in the order they came, each model with its color."""
    found: dict[str, Model] = {}
    tested = all(run.score is None or run.score[0] == "test" for run in runs)
    for run in tell_apart(runs):
        if run.name not in found:
            color = next_color(run.core, [model.color for model in found.values()])
            found[run.name] = Model(run.name, color, "test" if tested else "valid")
        found[run.name].runs.append(run)
    return list(found.values())


def one_run_each(
    found: Sequence[Model], part: Callable[[RunReport], Part | None]
) -> Iterator[tuple[Model, RunReport, Part]]:
    """Of each model the first run that has a part, such as an episode, and that part."""
    for model in found:
        for run in model.runs:
            if there := part(run):
                yield model, run, there
                break


def next_color(core: str, taken: list[int]) -> int:
    """The core's own color, or one that is still free, of no other core if there is such a one."""
    reserved = {entry.color for entry in CORES.values()}
    wanted = CORES[core].color if core in CORES else None
    free = [color for color in range(COLORS) if color not in taken]
    others = [color for color in free if color not in reserved] or free or [len(taken) % COLORS]
    return wanted if wanted is not None and wanted in free else others[0]


def primary_metric(runs: list[RunReport]) -> str:
    """The result in one sentence, of all models that did the same task as the first."""
    scored = [model for model in models(runs) if model.score is not None]
    if not scored:
        return "Nothing has been scored yet."
    first = scored[0].runs[0]
    alike = [model for model in scored if same_task(model.runs[0], first)]
    ranked = sorted(alike, key=lambda model: model.score or 0.0, reverse=first.higher_is_better)
    best, rest = ranked[0], ranked[1:]
    words = f"{best.name} reaches {score_text(best.score, first.metric)} {metric_text(first.metric)}"
    if rest:
        others = [f"{model.name} {score_text(model.score, first.metric)}" for model in rest]
        words += ", " + (f"{', '.join(others[:-1])} and {others[-1]}" if len(others) > 1 else others[0])
    # The data, without the sizes of its parts.
    about = re.split(r"[;,] (?:train|an? |episodes without)", first.about)[0].replace(": ", ", ", 1)
    seeds = f", means of {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    # An environment's name is written as it is.
    about = about if first.task == "rl" else f"{about[:1].upper()}{about[1:]}"
    return f"{about}: {words} ({best.scored_on}{seeds})."


def same_task(one: RunReport, other: RunReport) -> bool:
    return (one.task, one.config.get("task")) == (other.task, other.config.get("task"))


def summary(runs: list[RunReport]) -> Table:
    """What each model reached and what it took; seeds are summed up."""
    rows: list[list[Cell]] = []
    found = models(runs)
    metrics = {run.metric for run in runs}
    for model in found:
        run = model.runs[0]
        score = score_text(model.score, run.metric)
        if model.deviation is not None:
            score += f" ± {score_text(model.deviation, run.metric).rstrip('%')}"
        value = score if len(metrics) == 1 else f"{score} {metric_text(run.metric)}"
        tokens = statistics.mean(run.tokens for run in model.runs)
        seconds = statistics.mean(run.seconds for run in model.runs)
        rows.append(
            [model.name, value, model.scored_on, run.weights, count_text(tokens), time_text(seconds), len(model.runs)]
        )
    name = metric_text(metrics.pop()) if len(metrics) == 1 else "score"
    columns = ["model", name, "scored on", "weights", f"{unit_of(runs)} trained on", "training time", "seeds"]
    note = "Mean and standard deviation over the seeds." if any(len(model.runs) > 1 for model in found) else ""
    return Table("What each model reached", columns, rows, note)


def unit_of(runs: list[RunReport]) -> str:
    """What is counted along their trainings; where they differ, tokens."""
    units = {run.unit for run in runs}
    return units.pop() if len(units) == 1 else "tokens"


def metric_text(metric: str) -> str:
    return metric.replace("_", " ")


def is_percent(metric: str) -> bool:
    return metric.endswith(("accuracy", "error"))


def score_text(value: float | None, metric: str) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.1f}%" if is_percent(metric) else number_text(value)


def number_text(value: Cell) -> str:
    """A cell of a table: text as it is, numbers to the digits that people read."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def count_text(value: float) -> str:
    """1,234,567 as 1.23 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def time_text(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:.2g} h"
