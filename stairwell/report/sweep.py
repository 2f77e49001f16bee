"""Plot a score against a number that the models vary: one line per series, one point per seed, the paper's numbers."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stairwell.report.colors import MUTED, PALETTE, TEXT, assign_colors
from stairwell.report.compare import format_cell
from stairwell.report.plots import TITLE_HEIGHT, legend_title, new_figure, save_png, style_axes

LINE = {"linewidth": 2.2}
MEAN = {"marker": "o", "markersize": 7, "markeredgecolor": "#ffffff", "markeredgewidth": 1.2}
HORIZONTAL = {"linewidth": 1.8, "linestyle": (0, (3, 1.6))}
SEED = {"linestyle": "", "marker": "o", "markersize": 4.5, "markeredgewidth": 0, "clip_on": False}
PAPER = {
    "linestyle": "", "marker": "D", "markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.5, "clip_on": False
}  # fmt: skip
MIN_LOG_RATIO = 3.9  # of the largest x to the smallest, from which the x axis is logarithmic


@dataclass(frozen=True)
class Point:
    """The scores of a model's seeds at x, and the paper's number for the same x."""

    series: str
    core: str
    x: float | None  # None: the model does not have this number; drawn as a horizontal line
    scores: tuple[float, ...]
    paper: float | None = None

    @property
    def mean(self) -> float:
        return statistics.mean(self.scores)


@dataclass(frozen=True)
class Panel:
    """One plot: the label of its x axis, the name of the score, and the points."""

    axis: str
    score: str
    points: tuple[Point, ...]

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(point.series for point in self.points))

    @property
    def xs(self) -> list[float]:
        return sorted({point.x for point in self.points if point.x is not None})

    @property
    def seeds(self) -> int:
        return max(len(point.scores) for point in self.points)

    def is_horizontal(self, series: str) -> bool:
        return self.line(series)[0].x is None

    def line(self, series: str) -> list[Point]:
        """Return the points of a series from left to right."""
        return sorted((point for point in self.points if point.series == series), key=lambda point: point.x or 0)


def sweep_figure(panels: Sequence[Panel], title: str | None = None) -> Any:
    """Plot all panels, two per row; None if there are none."""
    if not panels:
        return None
    rows, columns = -(-len(panels) // 2), min(len(panels), 2)
    width = 10.0 if columns > 1 else 7.0
    one_legend = all(panel.series == panels[0].series for panel in panels)
    groups = [panels] if one_legend else [[panel] for panel in panels]
    legend_width = width if one_legend else width / columns - 0.6
    lines = max(-(-len(entries) // legend_columns(entries, legend_width)) for entries in map(legend_entries, groups))
    legend_height = 0.24 * lines if one_legend else 0.26 * lines * rows
    figure = new_figure(width, 3.5 * rows + legend_height + (TITLE_HEIGHT if title else 0))
    if title and not one_legend:
        figure.suptitle(title, x=0.01, ha="left", color=TEXT, fontsize=12)
    figure.get_layout_engine().set(wspace=0.05, hspace=0.05)
    same_score = len({panel.score for panel in panels}) == 1
    plots = figure.subplots(rows, columns, squeeze=False, sharey=same_score).flatten()
    for number, (plot, panel) in enumerate(zip(plots, panels)):
        for series, color in series_colors(panel).items():
            plot_series(plot, panel, series, PALETTE[color].light)
        style_panel(plot, panel)
        if not same_score or number % columns == 0:
            plot.set_ylabel(panel.score, color=MUTED)
        if not one_legend:
            add_legend(
                plot, plot, [panel], legend_width, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderaxespad=0.3
            )
    for plot in plots[len(panels) :]:
        plot.axis("off")
    if one_legend:
        add_legend(figure, plots[0], panels, legend_width, loc="outside upper left", **legend_title(title))
    return figure


def series_colors(panel: Panel) -> dict[str, int]:
    """Return the palette index of each series."""
    cores = [panel.line(series)[0].core for series in panel.series]
    return dict(zip(panel.series, assign_colors(cores)))


def plot_series(plot: Any, panel: Panel, series: str, color: str) -> None:
    """Plot the means as a line, the seeds as points and the paper's numbers as hollow markers."""
    points = panel.line(series)
    if panel.is_horizontal(series):
        # Shifted dashes keep two lines at the same height visible.
        number = [name for name in panel.series if panel.is_horizontal(name)].index(series)
        style = {**HORIZONTAL, "linestyle": (4 * (number % 2), (4, 4))}
        plot.axhline(points[0].mean, label=series, zorder=2, color=color, **style)
        return
    means = [point.mean for point in points]
    plot.plot([point.x for point in points], means, label=series, zorder=3, color=color, **mean_style(panel, series))
    lines = [name for name in panel.series if not panel.is_horizontal(name)]
    for point in points:
        first = lines.index(series) * panel.seeds
        for number, score in enumerate(point.scores if panel.seeds > 1 else ()):
            transform = shifted(plot, marker_offset(first + number, len(lines) * panel.seeds))
            plot.plot([point.x], [score], transform=transform, alpha=0.55, zorder=4, color=color, **SEED)
            plot.update_datalim([(point.x, score)])  # a shifted point does not count by itself
        if point.paper is not None:
            offset = marker_offset(lines.index(series), len(lines)) if panel.seeds > 1 else 0
            plot.plot([point.x], [point.paper], transform=shifted(plot, offset), zorder=5, color=color, **PAPER)
            plot.update_datalim([(point.x, point.paper)])


def mean_style(panel: Panel, series: str) -> dict[str, Any]:
    """Return the style of the means. They need no marker if there are seeds and a line."""
    if panel.is_horizontal(series):
        return HORIZONTAL
    return LINE if panel.seeds > 1 and len(panel.line(series)) > 1 else {**LINE, **MEAN}


def marker_offset(number: int, markers: int) -> float:
    """Return the horizontal offset of a marker in points, so that equal scores do not hide each other."""
    return (number - (markers - 1) / 2) * min(4.0, 26.0 / markers)


def shifted(plot: Any, points: float) -> Any:
    from matplotlib.transforms import ScaledTranslation

    return plot.transData + ScaledTranslation(points / 72, 0, plot.figure.dpi_scale_trans)


def style_panel(plot: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    style_axes(plot)
    xs = panel.xs
    if xs[0] > 0 and xs[-1] / xs[0] > MIN_LOG_RATIO:
        plot.set_xscale("log", base=2)
    plot.set_xticks(xs, [f"{x:g}" for x in xs])
    plot.xaxis.set_minor_locator(NullLocator())
    plot.set_xlabel(panel.axis, color=MUTED)
    plot.margins(x=0.07)
    highest = max(score for point in panel.points for score in point.scores)
    if "(%)" in panel.score:
        plot.set_ylim(-3, 103)
    elif highest >= 1000:
        plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def marker_styles(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """Return the styles of the markers that occur, by their explanation."""
    points = [point for panel in panels for point in panel.points if point.x is not None]
    styles = {}
    if any(len(point.scores) > 1 for point in points):
        styles["each seed; the line is their mean"] = {**SEED, "alpha": 0.7}
    if any(point.paper is not None for point in points):
        styles["the paper's number"] = PAPER
    return styles


def legend_entries(panels: Sequence[Panel]) -> list[str]:
    return [*panels[0].series, *marker_styles(panels)]


def legend_columns(names: list[str], width: float) -> int:
    """Return how many columns of a legend, filled one after the other, fit into a width in inches."""
    for columns in range(min(4, len(names)), 1, -1):
        longest = [max(map(len, column)) for column in np.array_split(names, columns)]
        if sum(0.6 + 0.078 * letters for letters in longest) <= width:
            return columns
    return 1


def add_legend(parent: Any, plot: Any, panels: Sequence[Panel], width: float, **location: Any) -> None:
    """Add a legend of the series, which are the same in all these panels, and of the markers."""
    from matplotlib.lines import Line2D

    lines, names = plot.get_legend_handles_labels()
    handles = [
        Line2D([], [], color=line.get_color(), **mean_style(panels[0], name)) for line, name in zip(lines, names)
    ]
    handles += [Line2D([], [], color=MUTED, **style) for style in marker_styles(panels).values()]
    entries = legend_entries(panels)
    columns = legend_columns(entries, width)
    parent.legend(handles, entries, ncols=columns, frameon=False, labelcolor=TEXT, fontsize=9.5, **location)


def write_sweep_png(path: str | os.PathLike[str], panels: Sequence[Panel], title: str | None = None) -> bool:
    """Write the plot if there are panels. Return whether it was written."""
    return save_png(path, sweep_figure(panels, title))


def format_sweep(panels: Sequence[Panel]) -> str:
    """Return the numbers: test error (%) against passes: Staircase 90.1 at 1, 3.2 at 2; LSTM 5.1"""
    descriptions = []
    for panel in panels:
        lines = []
        for series in panel.series:
            numbers = [
                format_cell(point.mean) + (f" at {format_cell(point.x)}" if point.x is not None else "")
                for point in panel.line(series)
            ]
            lines.append(f"{series} {', '.join(numbers)}")
        descriptions.append(f"{panel.score} against {panel.axis}: {'; '.join(lines)}")
    return ". ".join(descriptions)


def sweep_note(panels: Sequence[Panel]) -> str:
    """Return an explanation of the lines and markers."""
    points = [point for panel in panels for point in panel.points]
    several = any(panel.seeds > 1 for panel in panels)
    note = "A line is the mean over the seeds, a point one seed." if several else "One seed per point."
    if any(point.x is None for point in points):
        note += " Dashed horizontal lines are models without that number."
    if any(point.paper is not None for point in points):
        note += " Hollow markers are the paper's numbers."
    return note
