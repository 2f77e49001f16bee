"""Group runs by model, compare their scores in a sentence and in a table, and format numbers for people."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, TypeVar

from stairwell.report.collect import RunReport
from stairwell.report.colors import assign_colors
from stairwell.report.table import Cell, Table
from stairwell.runs.config import flat_options, format_option

Part = TypeVar("Part")
MAX_LABEL_OPTIONS = 2  # in the label of a run
MAX_DIFFERENCES = 12  # rows of the table of differences


@dataclass(frozen=True)
class Model:
    """The runs of one model, which differ only in their seed. All models of a report are scored on the same split."""

    name: str
    color: int
    split: str
    runs: list[RunReport]

    @property
    def scores(self) -> list[float]:
        values = [run.scores.get(f"{self.split}_{run.metric}") for run in self.runs]
        return [value for value in values if value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def split_name(self) -> str:
        return {"valid": "validation"}.get(self.split, self.split)

    def run_name(self, run: RunReport) -> str:
        return f"{self.name}, seed {run.seed}" if len(self.runs) > 1 else self.name


def group_models(runs: list[RunReport]) -> list[Model]:
    """Group runs by name, in their order, and assign colors."""
    groups: dict[str, list[RunReport]] = {}
    for run in with_unique_names(runs):
        groups.setdefault(run.name, []).append(run)
    colors = assign_colors([group[0].core for group in groups.values()])
    tested = all(run.score is None or run.score[0] == "test" for run in runs)
    split = "test" if tested else "valid"
    return [Model(name, color, split, group) for (name, group), color in zip(groups.items(), colors)]


def with_unique_names(runs: list[RunReport]) -> list[RunReport]:
    """Add what distinguishes them to the names of runs that share a name but are not seeds of one config: the options
    that differ, if they are few, or else the name of the folder or its path."""
    by_name: dict[str, list[RunReport]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    names: dict[int, str] = {}
    for name, group in by_name.items():
        if not are_distinct(group, [""] * len(group)):
            labels = next(labels for labels in labelings(group) if are_distinct(group, labels))
            names |= {id(run): f"{name} ({label})" for run, label in zip(group, labels)}
    return [replace(run, name=names.get(id(run), run.name)) for run in runs]


def labelings(runs: Sequence[RunReport]) -> Iterator[list[str]]:
    """Yield the ways to label runs of one name, the best first."""
    options = differing_options(runs)
    if 0 < len(options) <= MAX_LABEL_OPTIONS:
        configs = [own_options(run) for run in runs]
        yield [", ".join(f"{name} {format_option(config.get(name))}" for name in options) for config in configs]
    yield [PurePath(run.folder).name for run in runs]
    yield [run.folder for run in runs]
    yield [f"{run.folder}, {number}" for number, run in enumerate(runs, start=1)]


def are_distinct(runs: Sequence[RunReport], labels: Sequence[str]) -> bool:
    """Return whether runs with the same label are different seeds of one config."""
    groups: dict[str, list[RunReport]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault(label, []).append(run)
    return all(
        len({run.seed for run in group}) == len(group) and not differing_options(group) for group in groups.values()
    )


def own_options(run: RunReport) -> dict[str, Any]:
    """Return the options of a run except its seed, with its task and core as `run`."""
    options = {"run": f"{run.task}/{run.core}", **flat_options(run.config)}
    return {name: value for name, value in options.items() if name != "train.seed"}


def differing_options(runs: Sequence[RunReport]) -> list[str]:
    """Return the names of the options that are not the same in all runs."""
    configs = [own_options(run) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


def differences(runs: list[RunReport]) -> Table | None:
    """Return a table of the options that differ between models: core.memory 16, 4. Options that only some cores have
    are left out. None if nothing differs."""
    models = group_models(runs)
    configs = [own_options(model.runs[0]) for model in models]
    names = [
        name
        for name in differing_options([model.runs[0] for model in models])
        if all(name in config for config in configs)
    ]
    if not names:
        return None
    rows: list[list[Cell]] = [
        [name, *(format_option(config[name]) for config in configs)] for name in names[:MAX_DIFFERENCES]
    ]
    more = f"{len(names) - MAX_DIFFERENCES} more are in the configs below." if len(names) > MAX_DIFFERENCES else ""
    return Table("Differences", ["option", *(model.name for model in models)], rows, more)


def first_run_with(
    models: Sequence[Model], part: Callable[[RunReport], Part | None]
) -> Iterator[tuple[Model, RunReport, Part]]:
    """Yield the first run of each model that has a part, such as an episode, and that part."""
    for model in models:
        for run in model.runs:
            if value := part(run):
                yield model, run, value
                break


def summary_sentence(runs: list[RunReport]) -> str:
    """Return the result in one sentence: the models with the same task as the first, best first."""
    scored = [model for model in group_models(runs) if model.mean is not None]
    if not scored:
        return "There are no scores yet."
    first = scored[0].runs[0]
    comparable = [model for model in scored if same_task(model.runs[0], first)]
    best, *rest = sorted(comparable, key=lambda model: model.mean or 0.0, reverse=first.higher_is_better)
    result = f"{best.name} reaches {format_score(best.mean, first.metric)} {format_metric(first.metric)}"
    if rest:
        others = [f"{model.name} {format_score(model.mean, first.metric)}" for model in rest]
        result += ", " + (f"{', '.join(others[:-1])} and {others[-1]}" if len(others) > 1 else others[0])
    # The description of the data without the sizes of its splits.
    data = re.split(r"[:;,] (?:train|unlimited|[\d,]+ training)", first.about)[0].replace(": ", ", ", 1)
    # The name of an environment is not capitalized.
    data = data if first.task == "rl" else f"{data[:1].upper()}{data[1:]}"
    seeds = f", means of {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    return f"{data}: {result} ({best.split_name}{seeds})."


def same_task(one: RunReport, other: RunReport) -> bool:
    """Return whether two runs were scored on the same data, whatever the paths to it were called."""
    tasks = [{**run.config.get("task", {}), "path": "", "labels": ""} for run in (one, other)]
    return one.task == other.task and tasks[0] == tasks[1] and one.about == other.about


def summary(runs: list[RunReport]) -> Table:
    """Return a table of scores, parameters, tokens and time, one row per model, averaged over seeds."""
    rows: list[list[Cell]] = []
    models = group_models(runs)
    metrics = {run.metric for run in runs}
    for model in models:
        run = model.runs[0]
        score = format_score(model.mean, run.metric)
        if model.deviation is not None:
            score += f" ± {format_score(model.deviation, run.metric).rstrip('%')}"
        if len(metrics) > 1:
            score += f" {format_metric(run.metric)}"
        tokens = format_count(statistics.mean(run.tokens for run in model.runs))
        seconds = format_seconds(statistics.mean(run.seconds for run in model.runs))
        rows.append([model.name, score, model.split_name, run.parameters, tokens, seconds, len(model.runs)])
    metric = format_metric(metrics.pop()) if len(metrics) == 1 else "score"
    columns = ["model", metric, "scored on", "parameters", f"{unit_of(runs)} trained on", "training time", "seeds"]
    caption = "Mean and standard deviation over the seeds." if any(len(model.runs) > 1 for model in models) else ""
    return Table("Scores and training cost", columns, rows, caption)


def unit_of(runs: list[RunReport]) -> str:
    """Return what the runs count, tokens or frames; tokens if they differ."""
    units = {run.unit for run in runs}
    return units.pop() if len(units) == 1 else "tokens"


def is_percent(metric: str) -> bool:
    return metric.endswith(("accuracy", "error"))


def format_metric(metric: str) -> str:
    return metric.replace("_", " ")


def format_score(value: float | None, metric: str) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.1f}%" if is_percent(metric) else format_cell(value)


def format_cell(value: Cell) -> str:
    """Return the text of a table cell; numbers get four significant digits."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def format_count(value: float) -> str:
    """Return 1,234,567 as 1.23 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def format_seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:.2g} h"
