"""The page: one HTML file with its styles, scripts and numbers inside, which needs no network and no other file.

Text, tables and pictures that stand still are written here; the scripts draw what moves from the JSON that the
page carries. Whatever comes from outside (names, notes, configs) is escaped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from stairwell.outputs import Kind, check_all, marked, write_output
from stairwell.report import parts
from stairwell.report.collect import MEASURED, RunReport, finite
from stairwell.report.compare import Model, models, one_run_each, primary_metric, summary, unit_of
from stairwell.report.drift_picture import drift_section, looked_into, write_drift_png
from stairwell.report.long_streams import horizon_section, write_horizon_png
from stairwell.report.picture import FIGURE
from stairwell.report.played_page import gather_played, played_section
from stairwell.report.sweep import Panel, sweep_section
from stairwell.report.table import Table
from stairwell.report.written_page import written_section
from stairwell.version import __version__

REPORT = Kind("a report of stairwell", marked(b'<meta name="generator" content="stairwell report '))
SCRIPTS = ("charts.js", "player.js", "belief.js", "played.js")


def write_html(
    path: str | os.PathLike[str],
    title: str,
    runs: list[RunReport],
    tables: list[Table] | None = None,
    notes: list[str] | None = None,
    lead: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    sweep: Sequence[Panel] = (),
) -> None:
    """Write the report.

    `lead` is the result in one sentence, made from the scores if not given; without `tables` the runs are summed up in
    one; `provenance` says how the report was made if this process does not know; `sweep` is drawn where the models vary
    a number."""
    found = models(runs)
    walks = gather_walks(found)
    played, left_out = gather_played(found)
    sections = [
        parts.tables(tables or ([summary(runs)] if runs else []), notes or [], found),
        sweep_section(sweep),
        parts.walks(walks, seeds=any(len(model.runs) > 1 for model in found)),
        played_section(found, played, left_out),
        horizon_section(found),
        drift_section(found),
        parts.learning(found),
        written_section(found),
        parts.learned(found),
        parts.attention(found),
        parts.provenance(found, provenance or {}),
    ]
    text = Template(resource("page.html")).substitute(
        title=escape(title),
        lead=escape(lead if lead is not None else primary_metric(runs)),
        cards=parts.cards(found),
        sections="\n".join(section for section in sections if section),
        version=escape(__version__),
        css=resource("page.css"),
        theme=resource("theme.js"),
        script="".join(map(resource, SCRIPTS)),
        data=embed(page_data(found, walks) | {"played": played}),
    )
    write_output(path, REPORT, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def check_report(page: str | os.PathLike[str], figure: str | os.PathLike[str], option: str = "") -> None:
    """Find out, before anything is measured, whether a page, the figure of its curves and that of long streams can be
    written."""
    streams = Path(page).parent / f"{Path(page).stem}.horizon.png"
    check_all((option, page, REPORT), ("its figure", figure, FIGURE), ("its figure", streams, FIGURE))


def write_stream_pngs(page: str | os.PathLike[str], runs: list[RunReport]) -> list[Path]:
    """Beside a page, where there is something to draw: how far the models hold, and a look inside each."""
    found, place = models(runs), Path(page)
    written = []
    if write_horizon_png(horizon := place.with_suffix(".horizon.png"), found):
        written.append(horizon)
    for number, (model, drift) in enumerate(looked_into(found), start=1):
        written.append(place.with_suffix(f".inside-{number}.png"))
        write_drift_png(written[-1], drift, model.name, model.color)
    return written


def resource(name: str) -> str:
    return (files("stairwell.report") / name).read_text(encoding="utf-8")


def embed(data: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(found: list[Model], walks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the scripts draw from."""
    return {
        "metrics": metrics(found),
        "unit": unit_of([run for model in found for run in model.runs]),
        "models": [
            {"name": model.name, "color": model.color, "runs": [curves_of(run) for run in model.runs]}
            for model in found
        ],
        "walks": walks,
        "attention": {
            number: {"attention": asdict(attention), "color": model.color}
            for number, model, _, attention in parts.with_attention(found)
        },
    }


def curves_of(run: RunReport) -> dict[str, Any]:
    validations = [asdict(validation) for validation in run.validations]
    curves = asdict(run.curves)
    return {"seed": run.seed, "curves": curves | curves.pop("measured"), "validations": validations}


def metrics(found: list[Model]) -> list[str]:
    """What can be drawn against tokens and time: the scores that decide first, then the loss."""
    runs = [run for model in found for run in model.runs]
    wanted = dict.fromkeys([*(run.metric for run in runs), "accuracy", *MEASURED, "loss"])
    return [
        metric
        for metric in wanted
        if any(
            any(value is not None for value in run.curves.of(metric))
            or any(point.scores.get(metric) is not None for point in run.validations)
            for run in runs
        )
    ]


def gather_walks(found: list[Model]) -> list[dict[str, Any]]:
    """Random walks of the same episodes side by side, one run a model."""
    walks: dict[Any, dict[str, Any]] = {}
    for model, _, beliefs in one_run_each(found, lambda run: run.beliefs):
        grid = beliefs[0].grid
        episodes = [{name: getattr(belief, name) for name in ("actions", "cells", "headings")} for belief in beliefs]
        minds = [{name: getattr(belief, name) for name in ("answers", "probabilities")} for belief in beliefs]
        same = (grid, tuple(tuple(belief.actions) for belief in beliefs))
        walk = walks.setdefault(same, {"grid": grid, "episodes": episodes, "models": []})
        walk["models"].append({"name": model.name, "color": model.color, "minds": minds})
    return list(walks.values())
