"""A score against the number that its models vary: one line a series, each seed a point, the paper's numbers hollow."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stairwell.report.compare import next_color, number_text
from stairwell.report.figures import DARK, as_svg
from stairwell.report.picture import INK, PALETTE, dress, new_figure, save_png

LINE = {"linewidth": 2.2}
MEAN = {"marker": "o", "markersize": 7, "markeredgecolor": "#ffffff", "markeredgewidth": 1.2}
LEVEL = {"linewidth": 1.8, "linestyle": (0, (3, 1.6))}
SEED = {"linestyle": "", "marker": "o", "markersize": 4.5, "markeredgewidth": 0, "clip_on": False}
PRINTED = {
    "linestyle": "", "marker": "D", "markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.5, "clip_on": False
}  # fmt: skip
EVEN = 3.9  # from here on, the largest x by the smallest, doublings are equally far apart


@dataclass(frozen=True)
class Point:
    """A model at its place: the scores of its seeds, and the paper's if it is of the same x."""

    series: str
    core: str
    x: float | None  # none: a model without that number, drawn as a level
    scores: tuple[float, ...]
    paper: float | None = None

    @property
    def mean(self) -> float:
        return statistics.mean(self.scores)


@dataclass(frozen=True)
class Panel:
    """One plot: a score, its x, and its points in the order of their series."""

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

    def is_level(self, series: str) -> bool:
        return self.line(series)[0].x is None

    def line(self, series: str) -> list[Point]:
        """The points of a series from left to right."""
        return sorted((point for point in self.points if point.series == series), key=lambda point: point.x or 0)


def sweep_figure(panels: Sequence[Panel]) -> Any:
    """All panels, two beside each other; none where there is nothing to draw."""
    if not panels:
        return None
    rows, columns = -(-len(panels) // 2), min(len(panels), 2)
    width = 10.0 if columns > 1 else 7.0
    one_key = all(panel.series == panels[0].series for panel in panels)
    keys = [panels] if one_key else [[panel] for panel in panels]
    wide = width if one_key else width / columns - 0.6
    lines = max(-(-len(entries) // fitting(entries, wide)) for entries in map(legend_entries, keys))
    figure = new_figure(width, 3.5 * rows + (0.24 * lines if one_key else 0.26 * lines * rows))
    figure.get_layout_engine().set(wspace=0.05, hspace=0.05)
    same_score = len({panel.score for panel in panels}) == 1
    plots = figure.subplots(rows, columns, squeeze=False, sharey=same_score).flatten()
    for number, (plot, panel) in enumerate(zip(plots, panels)):
        colors = colors_of(panel)
        for series in panel.series:
            draw_series(plot, panel, series, colors[series])
        dress_sweep(plot, panel)
        if not same_score or number % columns == 0:
            plot.set_ylabel(panel.score, color=INK)
        if not one_key:
            write_legend(plot, plot, [panel], wide, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderaxespad=0.3)
    for plot in plots[len(panels) :]:
        plot.axis("off")
    if one_key:
        write_legend(figure, plots[0], panels, wide, loc="outside upper left")
    return figure


def colors_of(panel: Panel) -> dict[str, int]:
    """A color for each series: its core's if that is still free."""
    chosen: dict[str, int] = {}
    for point in panel.points:
        if point.series not in chosen:
            chosen[point.series] = next_color(point.core, list(chosen.values()))
    return chosen


def draw_series(plot: Any, panel: Panel, series: str, color: int) -> None:
    """The means as a line, or as a level across the plot; every seed and every number of the paper as a mark."""
    points, look = panel.line(series), {"color": PALETTE[color]}
    if panel.is_level(series):
        # Levels at one height show in turns.
        number = [name for name in panel.series if panel.is_level(name)].index(series)
        dashes = {**LEVEL, "linestyle": (4 * (number % 2), (4, 4))}
        plot.axhline(points[0].mean, label=series, zorder=2, **dashes, **look)
        return
    means = [point.mean for point in points]
    plot.plot([point.x for point in points], means, label=series, zorder=3, **look_of(panel, series), **look)
    lines = [name for name in panel.series if not panel.is_level(name)]
    most = panel.seeds
    for point in points:
        first = lines.index(series) * most
        for number, score in enumerate(point.scores if most > 1 else ()):
            aside = aside_of(first + number, len(lines) * most)
            plot.plot([point.x], [score], transform=moved(plot, aside), alpha=0.55, zorder=4, **SEED, **look)
        if point.paper is not None:
            aside = aside_of(lines.index(series), len(lines)) if most > 1 else 0
            plot.plot([point.x], [point.paper], transform=moved(plot, aside), zorder=5, **PRINTED, **look)


def look_of(panel: Panel, series: str) -> dict[str, Any]:
    """Where the seeds are shown, a mean needs no mark but where no line leads to it."""
    if panel.is_level(series):
        return LEVEL
    return LINE if panel.seeds > 1 and len(panel.line(series)) > 1 else {**LINE, **MEAN}


def aside_of(number: int, marks: int) -> float:
    """How far beside its place one of so many marks is drawn, in points, so that equal ones do not hide each other."""
    return (number - (marks - 1) / 2) * min(4.0, 26.0 / marks)


def moved(plot: Any, points: float) -> Any:
    from matplotlib.transforms import ScaledTranslation

    return plot.transData + ScaledTranslation(points / 72, 0, plot.figure.dpi_scale_trans)


def dress_sweep(plot: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    dress(plot)
    xs = panel.xs
    if xs[0] > 0 and xs[-1] / xs[0] > EVEN:
        plot.set_xscale("log", base=2)
    plot.set_xticks(xs, [f"{x:g}" for x in xs])
    plot.xaxis.set_minor_locator(NullLocator())
    plot.set_xlabel(panel.axis, color=INK)
    plot.margins(x=0.07)
    highest = max(score for point in panel.points for score in point.scores)
    if "(%)" in panel.score:
        plot.set_ylim(-3, 103)
    elif highest >= 1000:
        plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def marks(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """What the marks mean, where there are such marks."""
    placed = [point for panel in panels for point in panel.points if point.x is not None]
    found = {}
    if any(len(point.scores) > 1 for point in placed):
        found["each seed; the line is their mean"] = {**SEED, "alpha": 0.7}
    if any(point.paper is not None for point in placed):
        found["the paper's number"] = PRINTED
    return found


def legend_entries(panels: Sequence[Panel]) -> list[str]:
    return [*panels[0].series, *marks(panels)]


def fitting(names: list[str], width: float) -> int:
    """The columns of a legend so wide, which fills one after the other."""
    for columns in range(min(4, len(names)), 1, -1):
        longest = [max(map(len, column)) for column in np.array_split(names, columns)]
        if sum(0.6 + 0.078 * letters for letters in longest) <= width:
            return columns
    return 1


def write_legend(where: Any, plot: Any, panels: Sequence[Panel], width: float, **place: Any) -> None:
    """The series of a plot, which are those of all these panels, and what the marks mean."""
    from matplotlib.lines import Line2D

    lines, names = plot.get_legend_handles_labels()
    handles = [Line2D([], [], color=line.get_color(), **look_of(panels[0], name)) for line, name in zip(lines, names)]
    handles += [Line2D([], [], color=INK, **look) for look in marks(panels).values()]
    entries = legend_entries(panels)
    columns = fitting(entries, width)
    where.legend(handles, entries, ncols=columns, frameon=False, labelcolor=DARK, fontsize=9.5, **place)


def write_sweep_png(path: str | os.PathLike[str], panels: Sequence[Panel]) -> bool:
    """Draw the picture where there is something to draw."""
    return save_png(path, sweep_figure(panels))


def in_words(panels: Sequence[Panel]) -> str:
    """test error (%) against passes: Staircase 90.1 at 1, 3.2 at 2; LSTM 5.1"""
    told = []
    for panel in panels:
        lines = []
        for series in panel.series:
            numbers = [
                number_text(point.mean) + (f" at {number_text(point.x)}" if point.x is not None else "")
                for point in panel.line(series)
            ]
            lines.append(f"{series} {', '.join(numbers)}")
        told.append(f"{panel.score} against {panel.axis}: {'; '.join(lines)}")
    return ". ".join(told)


def sweep_section(panels: Sequence[Panel]) -> str:
    figure = sweep_figure(panels)
    if figure is None:
        return ""
    points = [point for panel in panels for point in panel.points]
    several = any(panel.seeds > 1 for panel in panels)
    words = ["A line is the mean over the seeds, a point one of them." if several else "One seed a point."]
    if any(point.x is None for point in points):
        words.append("Dashed levels are models without that number.")
    if any(point.paper is not None for point in points):
        words.append("Hollow marks are the paper's numbers.")
    width = ' style="max-width: 50rem"' if len(panels) == 1 else ""  # its letters as large as those of two
    return (
        f'<section><h2>What the number changes</h2><p class="note">{" ".join(words)}</p>'
        f'<div class="card"{width}>{as_svg(figure, in_words(panels))}</div></section>'
    )
