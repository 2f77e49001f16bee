"""Write a report as one self-contained HTML file, with its styles, scripts and data.

The template renders text, tables and plots. The scripts draw curves and episodes from the JSON in the page.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stairwell.outputs import OutputType, check_all, contains_bytes, write_output
from stairwell.provenance import provenance as process_provenance
from stairwell.report.attention import AttentionAverage
from stairwell.report.collect import RL_METRICS, RunReport, replace_nonfinite
from stairwell.report.colors import PALETTE
from stairwell.report.compare import (
    Model,
    first_run_with,
    format_cell,
    format_count,
    format_metric,
    format_score,
    format_seconds,
    group_models,
    summary,
    summary_sentence,
    unit_of,
)
from stairwell.report.memory_plots import analysis_table, format_analysis, memory_figure, write_memory_png
from stairwell.report.plots import FIGURE, to_svg
from stairwell.report.stream_plots import (
    evaluated_models,
    format_horizons,
    stream_figure,
    stream_table,
    write_stream_png,
)
from stairwell.report.sweep import Panel, format_sweep, sweep_figure, sweep_note
from stairwell.report.table import Cell, Table
from stairwell.report.templates import render

REPORT = OutputType("a stairwell report", contains_bytes(b'<meta name="generator" content="stairwell report '))
SCRIPTS = tuple(f"report/{name}.js" for name in ("dom", "tip", "charts", "player", "grid", "random_walk", "episodes"))
MAX_EPISODE_CHARACTERS = 900_000  # of all episodes in a page


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
    """Write a report.

    `lead` is the sentence at the top, by default the result according to the scores. `tables` defaults to a summary of
    the runs, and `notes` are listed below them. `provenance` is added to that of this process. The panels of `sweep`
    are plotted."""
    models = group_models(runs)
    episodes, omitted_episodes = collect_episodes(models)
    html = render(
        "report/page.html",
        generator="report",
        brand="stairwell report",
        scripts=SCRIPTS,
        title=title,
        lead=lead if lead is not None else summary_sentence(runs),
        models=models,
        colors={model.name: model.color for model in models},
        several_seeds=any(len(model.runs) > 1 for model in models),
        tables=tables or ([summary(runs)] if runs else []),
        notes=[*(notes or []), *outdated_notes(models)],
        sweep=sweep_context(sweep),
        streams=streams_context(models),
        memory_analyses=memory_contexts(models),
        omitted_episodes=omitted_episodes,
        runs_with_samples=list(first_run_with(models, lambda run: run.samples)),
        runs_with_layer_weights=list(first_run_with(models, lambda run: run.layer_weights)),
        runs_with_attention=runs_with_attention(models),
        provenance={name: str(value) for name, value in {**process_provenance(), **(provenance or {})}.items()},
        data=replace_nonfinite(page_data(models) | {"episodes": episodes}),
        **learning_context(runs),
        **HELPERS,
    )
    write_output(path, REPORT, lambda temporary: temporary.write_text(html, encoding="utf-8"))


def check_report(page: str | os.PathLike[str], figure: str | os.PathLike[str], option: str = "") -> None:
    """Raise an error if a report or one of its PNGs cannot be written."""
    page = Path(page)
    # How many memory analyses there are is not known yet: check the files that may be replaced.
    name = re.compile(re.escape(page.stem) + r"\.memory-\d+\.png")
    existing = sorted(path for path in page.parent.glob("*.png") if name.fullmatch(path.name))
    check_all(
        (option, page, REPORT),
        ("its plot of the curves", figure, FIGURE),
        ("its plot of long streams", page.parent / f"{page.stem}.horizon.png", FIGURE),
        *(("its plot of a memory analysis", path, FIGURE) for path in existing),
    )


def write_extra_pngs(page: str | os.PathLike[str], runs: list[RunReport]) -> list[Path]:
    """Write the PNGs besides the learning curves, of long streams and of memory analyses, next to a report. Return
    their paths."""
    models, page = group_models(runs), Path(page)
    paths = []
    if write_stream_png(path := page.with_suffix(".horizon.png"), models):
        paths.append(path)
    for index, (model, _, analysis) in enumerate(first_run_with(models, lambda run: run.memory_analysis), start=1):
        paths.append(page.with_suffix(f".memory-{index}.png"))
        write_memory_png(paths[-1], analysis, model.name, model.color)
    return paths


def outdated_notes(models: Sequence[Model]) -> list[str]:
    """Return which measurements of which runs are left out because they belong to earlier parameters."""
    return [f"{model.run_name(run)}: {text}" for model in models for run in model.runs for text in run.outdated]


def sweep_context(panels: Sequence[Panel]) -> dict[str, Any]:
    """Return the variable `sweep` of page.html: the plot and its note."""
    figure = sweep_figure(panels)
    return {
        "figure": to_svg(figure, format_sweep(panels)) if figure is not None else None,
        "note": sweep_note(panels),
        "narrow": len(panels) == 1,  # so that its text is as large as that of two panels
    }


def streams_context(models: list[Model]) -> dict[str, Any]:
    """Return the variable `streams` of page.html: the plots for wide and narrow screens, and the table."""
    texts = [f"{model.name}: {format_horizons(horizons)}" for model, horizons in evaluated_models(models)]
    figures = [stream_figure(models, stacked) for stacked in (False, True)]
    return {
        "figures": [to_svg(figure, "; ".join(texts)) for figure in figures if figure is not None],
        "table": stream_table(models),
    }


def memory_contexts(models: list[Model]) -> list[dict[str, Any]]:
    """Return the variable `memory_analyses` of page.html: a plot and a table per analyzed model."""
    contexts = []
    for model, _, analysis in first_run_with(models, lambda run: run.memory_analysis):
        figure = memory_figure(analysis, model.name, model.color)
        text = f"Memory of {model.name}: {format_analysis(analysis)}"
        contexts.append({"figure": to_svg(figure, text), "table": analysis_table(analysis)})
    return contexts


def learning_context(runs: list[RunReport]) -> dict[str, Any]:
    """Return the variables of page.html for the section of the learning curves."""
    names = sorted({run.curves.stage_name for run in runs if run.curves.stage_name})
    stage = f"{' or '.join(map(format_metric, names))} of the training episodes" if names else ""
    return {
        "several_validations": any(len(run.validations) > 1 for run in runs),
        "curriculum": "stage" if names == ["stage"] else stage,
        "curriculum_note": ", on the current stage of the curriculum" if names else "",
    }


def runs_with_attention(models: list[Model]) -> list[tuple[int, Model, RunReport, AttentionAverage]]:
    """Return the first run with attention of each model, with the index of the model and the attention."""
    indices = {model.name: i for i, model in enumerate(models)}
    runs = first_run_with(models, lambda run: run.attention)
    return [(indices[model.name], model, run, attention) for model, run, attention in runs]


def page_data(models: list[Model]) -> dict[str, Any]:
    """Return the data of the scripts."""
    runs = [run for model in models for run in model.runs]
    return {
        "metrics": curve_metrics(runs),
        "unit": unit_of(runs),
        "dashes": [" ".join(map(str, color.dashes)) for color in PALETTE],
        "models": [
            {"name": model.name, "color": model.color, "runs": [curves_json(run) for run in model.runs]}
            for model in models
        ],
        "walks": collect_walks(models),
        "attention": {
            index: {"attention": asdict(attention), "color": model.color}
            for index, model, _, attention in runs_with_attention(models)
        },
    }


def curves_json(run: RunReport) -> dict[str, Any]:
    """Return the seed, the training curves and the validations of a run, for charts.js."""
    validations = [asdict(validation) for validation in run.validations]
    curves = asdict(run.curves)
    rl_metrics = curves.pop("rl_metrics")
    return {"seed": run.seed, "curves": curves | rl_metrics, "validations": validations}


def curve_metrics(runs: list[RunReport]) -> list[str]:
    """Return the metrics that have curves: the primary metrics first, the loss last."""
    metrics = dict.fromkeys([*(run.metric for run in runs), "accuracy", *RL_METRICS, "loss"])
    return [
        metric
        for metric in metrics
        if any(
            any(value is not None for value in run.curves.of(metric))
            or any(point.scores.get(metric) is not None for point in run.validations)
            for run in runs
        )
    ]


def collect_walks(models: list[Model]) -> list[dict[str, Any]]:
    """Return the random walks, with the predictions of all models that have the same episodes, one run per model."""
    walks: dict[Any, dict[str, Any]] = {}
    for model, _, episodes in first_run_with(models, lambda run: run.walks):
        grid = episodes[0].grid
        key = (grid, tuple(tuple(episode.actions) for episode in episodes))
        truth = [{name: getattr(episode, name) for name in ("actions", "cells", "headings")} for episode in episodes]
        predictions = [{name: getattr(episode, name) for name in ("answers", "probabilities")} for episode in episodes]
        walk = walks.setdefault(key, {"grid": grid, "episodes": truth, "models": []})
        walk["models"].append({"name": model.name, "color": model.color, "predictions": predictions})
    return list(walks.values())


def collect_episodes(models: Sequence[Model]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one episode per model, and the names of the models whose episodes no longer fit into
    `MAX_EPISODE_CHARACTERS`, the limit for the whole page."""
    episodes: list[dict[str, Any]] = []
    omitted, characters = [], 0
    for model, _, episode in first_run_with(models, lambda run: run.episode):
        fields = asdict(episode)
        length = len(json.dumps(fields, separators=(",", ":")))
        if characters + length > MAX_EPISODE_CHARACTERS:
            omitted.append(model.name)
        else:
            characters += length
            episodes.append({"name": model.name, "color": model.color, **fields})
    return episodes, omitted


def model_facts(model: Model) -> list[str]:
    """Return the size and the training of a model, as texts: "12,345 parameters", "1.2M tokens", "3.4 minutes"."""
    run = model.runs[0]
    facts = [f"{run.parameters:,} parameters"] if run.parameters is not None else []
    facts += [f"{format_count(run.tokens)} {run.unit}", format_seconds(run.seconds)]
    return [*facts, f"{len(model.runs)} seeds"] if len(model.runs) > 1 else facts


def run_facts(run: RunReport) -> dict[str, str]:
    """Return the provenance, the data and the training of a run, by title."""
    trained = f"{run.tokens:,} {run.unit}, {format_seconds(run.seconds)}"
    return {**run.provenance, "data": run.about, "trained": trained}


def numeric_columns(table: Table) -> list[bool]:
    """Return whether each column is right-aligned: it has only numbers, texts that start with one, missing values."""
    columns = [[row[i] for row in table.rows if i < len(row)] for i in range(len(table.columns))]
    return [bool(table.rows) and all(map(is_numeric, column)) for column in columns]


def is_numeric(value: Cell) -> bool:
    return not isinstance(value, str) or value.lstrip("<>≤≥~≈+-−")[:1].isdigit() or value in ("", "–", "-", "none")


def layer_weight_bars(layer_weights: list[list[float]]) -> list[list[tuple[str, float, str]]]:
    """Return the bars of the learned weights of the embedding and of each layer in a memory vector, for every memory:
    name of the layer, share, text."""
    names = ["embedding", *(f"layer {l}" for l in range(1, len(layer_weights[0])))]
    return [[(name, share, f"{100 * share:.1f}%") for name, share in zip(names, shares)] for shares in layer_weights]


def span_bars(run: RunReport) -> list[tuple[str, float, str]]:
    """Return the bars of the learned spans: name of a head, share of the longest possible span, tokens."""
    memory = run.config.get("core", {}).get("memory", 1)
    longest = max([memory, *(span for heads in run.spans for span in heads)])
    return [
        (f"layer {l + 1}, head {h + 1}", span / longest, f"{span:.0f}")
        for l, heads in enumerate(run.spans)
        for h, span in enumerate(heads)
    ]


def column_path(weights: list[float], highest: float) -> str:
    """Return a bar chart as an SVG path in a box of height 1, of 1 per bar. Heights are square roots, so that small
    weights remain visible; the margins are 0.04 above and 0.08 on both sides of a bar."""
    heights = [0.96 * (weight / (highest or 1)) ** 0.5 for weight in weights]
    return "".join(f"M{x + 0.08:.2f} 1V{1 - h:.3f}H{x + 0.92:.2f}V1Z" for x, h in enumerate(heights) if h > 0)


def format_json(value: Any) -> str:
    return json.dumps(replace_nonfinite(value), indent=2)


HELPERS = {
    function.__name__: function
    for function in (
        column_path, format_cell, format_json, format_metric, format_score, layer_weight_bars, model_facts,
        numeric_columns, run_facts, span_bars,
    )
}  # fmt: skip
