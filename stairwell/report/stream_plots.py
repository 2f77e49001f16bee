"""Plots and table of long-stream evaluations: streams without a mistake, and accuracy, by position in the stream."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from stairwell.report.colors import MUTED, RULE, TEXT
from stairwell.report.compare import Model
from stairwell.report.plots import line_style, new_figure, save_png, set_log_x, style_axes
from stairwell.report.table import Table
from stairwell.runs.long_streams import Horizon

SMALLER_SAMPLE_DASHES = (0, (2, 1.5))  # of a second sample, with streams of another length


@dataclass(frozen=True)
class PositionBin:
    """Positions of streams: the last one, and how many are scored and wrong."""

    end: int = 0
    scored: int = 0
    wrong: int = 0


def evaluated_models(models: list[Model]) -> list[tuple[Model, list[Horizon]]]:
    """Return the models with a long-stream evaluation, and the evaluations of their runs."""
    pairs = [(model, [run.horizon for run in model.runs if run.horizon is not None]) for model in models]
    return [(model, horizons) for model, horizons in pairs if horizons]


def survival(horizons: list[Horizon]) -> tuple[list[int], list[float]]:
    """Return the share (%) of streams without a mistake as a step function: positions, and the share from there on.
    After the end of a stream the share is that of the longer streams, so it can rise."""
    streams = [
        (stream.first_mistake, stream.tokens or horizon.tokens) for horizon in horizons for stream in horizon.streams
    ]
    lengths = {tokens for _, tokens in streams}
    after_ends = {tokens + 1 for tokens in lengths if tokens < max(lengths)}
    positions = sorted({1, *(first for first, _ in streams if first), *lengths, *after_ends})
    shares = []
    for position in positions:
        first_mistakes = [first for first, tokens in streams if tokens >= position]
        shares.append(100 * sum(first is None or first > position for first in first_mistakes) / len(first_mistakes))
    return positions, shares


def accuracy(horizons: list[Horizon]) -> tuple[list[float], list[float]]:
    """Return the accuracy (%) in bins of positions: geometric centers of the bins, and the accuracies."""
    bins: dict[int, PositionBin] = {}  # by first position
    for horizon in horizons:
        ends = [*(position - 1 for position in horizon.positions[1:]), horizon.tokens]
        for first, end, scored, wrong in zip(horizon.positions, ends, horizon.scored, horizon.wrong, strict=True):
            before = bins.get(first, PositionBin())
            bins[first] = PositionBin(max(before.end, end), before.scored + scored, before.wrong + wrong)
    starts = sorted(bins)
    # The last bin is merged with the one before if the streams cover only a small part of it.
    if len(starts) > 1 and bins[starts[-1]].scored < bins[starts[-2]].scored / 4:
        before, last = bins[starts[-2]], bins.pop(starts[-1])
        bins[starts[-2]] = PositionBin(last.end, before.scored + last.scored, before.wrong + last.wrong)
    points = [
        ((start * bin_.end) ** 0.5, 100 - 100 * bin_.wrong / bin_.scored) for start, bin_ in bins.items() if bin_.scored
    ]
    centers, values = zip(*sorted(points)) if points else ((), ())
    return list(centers), list(values)


def group_by_length(horizons: list[Horizon]) -> list[list[Horizon]]:
    """Return the evaluations grouped by the length of their streams, the group with the most streams first."""
    groups: dict[int, list[Horizon]] = {}
    for horizon in horizons:
        groups.setdefault(horizon.tokens if horizon.equal else 0, []).append(horizon)
    return sorted(groups.values(), key=lambda group: -sum(len(horizon.streams) for horizon in group))


def format_horizons(horizons: list[Horizon]) -> str:
    """Return a summary: 53 of 64 streams without a mistake in 160,000 tokens, 2 of 4 in 1,000,000"""
    parts: list[str] = []
    for tokens in sorted({horizon.tokens for horizon in horizons}):
        same = [horizon for horizon in horizons if horizon.tokens == tokens]
        error_free, streams = sum(horizon.error_free for horizon in same), sum(len(horizon.streams) for horizon in same)
        length = f"{tokens:,}" if all(horizon.equal for horizon in same) else f"up to {tokens:,}"
        if parts:
            parts.append(f"{error_free} of {streams} in {length}")
        else:
            parts.append(f"{error_free} of {streams} streams without a mistake in {length} tokens")
    return ", ".join(parts)


def stream_figure(models: list[Model], stacked: bool = False) -> Any:
    """Return a matplotlib figure of the streams without a mistake, and of the accuracy, by position; None if no model
    was evaluated. `stacked`: one plot above the other, for narrow screens."""
    evaluated = evaluated_models(models)
    if not evaluated:
        return None
    legend = 0.21 * len(evaluated)
    figure = new_figure(5.2, 6.8 + legend) if stacked else new_figure(10, 3.7 + legend)
    survival_axes, accuracy_axes = figure.subplots(2, 1) if stacked else figure.subplots(1, 2, sharex=True)
    for i, (model, horizons) in enumerate(evaluated):
        # Earlier lines are wider, so that they stay visible below later ones.
        style = {"linewidth": 2 + 1.6 * (len(evaluated) - 1 - i), "zorder": 2 + i}
        model_style = line_style(model.color)
        style["color"] = model_style["color"]
        label = f"{model.name}: {format_horizons(horizons)}"
        dashes = model_style["linestyle"] if len(evaluated) < 3 else "-"
        for j, sample in enumerate(group_by_length(horizons)):
            # Samples of other lengths are other streams: joined, the curve would jump where one of them ends.
            line = style if j == 0 else {**style, "linewidth": 1.3, "zorder": 2 + len(evaluated) + i}
            positions, shares = survival(sample)
            survival_axes.step(
                positions, shares, where="post", solid_capstyle="butt", label=None if j else label, **line,
                linestyle="-" if j == 0 else SMALLER_SAMPLE_DASHES,
            )  # fmt: skip
            survival_axes.plot(
                positions[-1:], shares[-1:], marker="o", markersize=6, markerfacecolor="white", clip_on=False, **line
            )
            accuracy_axes.plot(*accuracy(sample), **line, linestyle=dashes if j == 0 else SMALLER_SAMPLE_DASHES)
    if any(len(group_by_length(horizons)) > 1 for _, horizons in evaluated):
        survival_axes.plot(
            [],
            [],
            color=MUTED,
            linewidth=1.3,
            linestyle=SMALLER_SAMPLE_DASHES,
            label="a smaller sample of longer streams",
        )
    longest = max(horizon.tokens for _, horizons in evaluated for horizon in horizons)
    trained_on = {horizon.trained_on for _, horizons in evaluated for horizon in horizons} - {0}
    for axes, title, label in (
        (survival_axes, "Streams without a mistake", "streams without a mistake so far, %"),
        (accuracy_axes, "Accuracy by position", "accuracy, %"),
    ):
        style_axes(axes)
        set_log_x(axes, "position in the stream, tokens")
        axes.set_xlim(1, longest)
        axes.set_ylim(-2, 104)
        axes.set_ylabel(label, color=MUTED)
        axes.set_title(title, loc="left", fontsize=11, color=TEXT)
        if len(trained_on) == 1:
            (length,) = trained_on
            axes.axvspan(1, length, color=RULE, alpha=0.45, linewidth=0, zorder=0)
            axes.text(length**0.5, 3, f"trained on\nup to {length}", ha="center", color=MUTED, fontsize=8.5)
    figure.legend(loc="outside upper left", frameon=False, labelcolor=TEXT, fontsize=8.5 if stacked else 9.5)
    return figure


def write_stream_png(path: str | os.PathLike[str], models: list[Model]) -> bool:
    """Write the plot if a model was evaluated. Return whether it was written."""
    return save_png(path, stream_figure(models))


def stream_table(models: list[Model]) -> Table:
    """Return a table of the long-stream results, one row per model."""
    rows: list[list[Any]] = []
    for model, horizons in evaluated_models(models):
        streams = [stream for horizon in horizons for stream in horizon.streams]
        first_mistakes = sorted(first for horizon in horizons for first in horizon.first_mistakes)
        median = statistics.median_low([stream.first_mistake or np.inf for stream in streams])
        # At least this: of a stream without a mistake its end counts.
        lasted = [s.first_mistake or s.tokens or horizon.tokens for horizon in horizons for s in horizon.streams]
        lengths = sorted({(horizon.tokens, horizon.equal) for horizon in horizons})
        rows.append(
            [
                model.name,
                len(horizons),
                len(streams),
                " or ".join(f"{tokens:,}" if equal else f"up to {tokens:,}" for tokens, equal in lengths),
                sum(horizon.error_free for horizon in horizons),
                first_mistakes[0] if first_mistakes else "none",
                f">{statistics.median_low(lasted):,}" if median == np.inf else int(median),
                sum(stream.mistakes for stream in streams),
            ]
        )
    columns = ["model", "runs", "streams", "tokens per stream", "without a mistake", "earliest mistake at",
               "median first mistake at", "mistakes in total"]  # fmt: skip
    caption = "Positions are counted from 1. A stream starts with an empty memory and is never reset."
    return Table("First mistakes", columns, rows, caption)
