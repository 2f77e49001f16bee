"""Learning curves in published results: read them from run folders, join them, draw them.

A variant's `curves` has one entry per seed, None for a seed published without. An entry has the primary metric in
training and in validation: {"train": {"tokens": [...], "seconds": [...], "value": [...]}, "valid": {...}}.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stairwell.report import Curves, RunReport, ValidationPoint, write_png
from stairwell.report.collect import mean, replace_nonfinite
from stairwell.runs import RunConfig
from stairwell.runs.launch import primary_metric
from stairwell.runs.run import Run

POINTS = 60  # of a curve at most
DIGITS = 4  # of a value
# Metrics that are functions of the training loss, which is all that the training of a language model records.
OF_LOSS: dict[str, Callable[[float], float]] = {
    "bits_per_character": lambda loss: loss / math.log(2),
    "perplexity": math.exp,
}
NUMBERS = re.compile(r"\[\n[\s\d.,eE+\-nul]+\]")

Curve = dict[str, list[Any]]


def read(run: Run, metric: str) -> dict[str, Curve] | None:
    """Return the curves of a run folder with at most POINTS points each; None if the folder has no metrics."""
    records = run.metrics()
    train = [(record, training_value(record, metric)) for record in records if "loss" in record]
    valid = [(record, replace_nonfinite(record["valid"]).get(metric)) for record in records if "valid" in record]
    if not train and not valid:
        return None
    return {"train": averaged(train), "valid": thinned(valid)}


def training_value(record: dict[str, Any], metric: str) -> float | None:
    if metric in OF_LOSS:
        loss = mean([record["loss"]])
        return None if loss is None else OF_LOSS[metric](min(loss, 700.0))
    return mean([record.get(metric)])


def averaged(points: list[tuple[dict[str, Any], float | None]]) -> Curve:
    """Return a curve of the means of neighboring points."""
    size = -(-len(points) // POINTS) or 1
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return curve([(group[-1][0], mean([value for _, value in group])) for group in groups])


def thinned(points: list[tuple[dict[str, Any], float | None]]) -> Curve:
    """Return a curve of points at equal distances, the last one included."""
    size = -(-len(points) // POINTS) or 1
    return curve(points[::-1][::size][::-1])


def curve(points: list[tuple[dict[str, Any], float | None]]) -> Curve:
    values = [None if value is None else float(f"{value:.{DIGITS}g}") for _, value in points]
    if all(value is None for value in values):
        points, values = [], []
    return {
        "tokens": [record["tokens"] for record, _ in points],
        "seconds": [round(record["seconds"], 1) for record, _ in points],
        "value": values,
    }


def of_seeds(variant: dict[str, Any]) -> list[dict[str, Curve] | None]:
    """Return the curves of a published variant, one entry per seed."""
    return variant.get("curves") or [None] * len(variant["seeds"])


def stored(result: dict[str, Any]) -> bool:
    return any(curves for variant in result["variants"] for curves in of_seeds(variant))


def missing(result: dict[str, Any]) -> list[str]:
    """Return the models, with their seeds, that were run but have no stored curves."""
    names = []
    for variant in result["variants"]:
        seeds = [seed for seed, curves in zip(variant["seeds"], of_seeds(variant)) if not curves]
        if seeds == variant["seeds"] and seeds:
            names.append(variant["name"])
        elif seeds:
            names.append(f"{variant['name']} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})")
    return names


def draw(path: Path, result: dict[str, Any], title: str) -> None:
    """Draw the stored curves of all models."""
    runs = [
        report(variant, seed, curves)
        for variant in result["variants"]
        for seed, curves in zip(variant["seeds"], of_seeds(variant))
        if curves
    ]
    write_png(path, runs, title=title)


def report(variant: dict[str, Any], seed: int, curves: dict[str, Curve]) -> RunReport:
    """Return what the figure of learning curves needs to know about a run."""
    config = RunConfig.from_json(variant["config"], variant["name"])
    metric, higher_is_better = primary_metric(config)
    metric = metric.removeprefix("valid_")
    train, valid = curves["train"], curves["valid"]
    empty: list[float | None] = [None] * len(train["tokens"])
    return RunReport(
        name=variant["name"],
        folder="",
        task=config.task_name,
        core=config.core_name,
        about="",
        metric=metric,
        higher_is_better=higher_is_better,
        seed=seed,
        parameters=variant["parameters"],
        config=variant["config"],
        curves=Curves(
            tokens=train["tokens"],
            seconds=train["seconds"],
            loss=train["value"] if metric == "loss" else empty,
            accuracy=train["value"] if metric == "accuracy" else empty,
            stage=empty,
            rl_metrics={metric: train["value"]},
        ),
        validations=[
            ValidationPoint(tokens, seconds, {metric: value})
            for tokens, seconds, value in zip(valid["tokens"], valid["seconds"], valid["value"])
        ],
        scores={},
    )


def compact(text: str) -> str:
    """Return an indented JSON text with each list of numbers on one line."""
    return NUMBERS.sub(lambda numbers: re.sub(r"\s*\n\s*", " ", numbers[0]).replace("[ ", "[").replace(" ]", "]"), text)
