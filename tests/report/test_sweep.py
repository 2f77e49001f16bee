"""The sweep plot shows every seed, their mean and the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from stairwell.report import Panel, Point, write_html, write_sweep_png
from stairwell.report.colors import CORE_COLORS, PALETTE
from stairwell.report.sweep import format_sweep, legend_columns, series_colors, sweep_figure, sweep_note

PANEL = Panel(
    "memory (frames)",
    "test error (%)",
    (
        Point("Feedback", "feedback", 8, (1.0, 3.0), paper=0.5),
        Point("Feedback", "feedback", 2, (10.0, 20.0)),
        Point("Transformer", "transformer-xl", 2, (80.0, 90.0), paper=84.0),
        Point("Transformer", "transformer-xl", 8, (60.0, 40.0)),
        Point("LSTM", "lstm", None, (30.0, 50.0)),
    ),
)


def one_seed(panel: Panel) -> Panel:
    """Return the panel with the first seed only."""
    return replace(panel, points=tuple(replace(point, scores=point.scores[:1]) for point in panel.points))


def labeled_lines(plot: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in plot.get_lines() if not line.get_label().startswith("_")}


def markers(plot: Any, marker: str) -> list[tuple[str, float, float]]:
    """Return the color and the position of markers without a line."""
    lines = [line for line in plot.get_lines() if line.get_marker() == marker and line.get_linestyle() == "None"]
    return [(line.get_color(), *line.get_xdata(), *line.get_ydata()) for line in lines]


def test_line_is_the_mean_in_the_color_of_the_core() -> None:
    (plot,) = sweep_figure([PANEL]).axes
    lines = labeled_lines(plot)
    assert list(lines) == ["Feedback", "Transformer", "LSTM"]
    assert [list(lines["Feedback"].get_xdata()), list(lines["Feedback"].get_ydata())] == [[2, 8], [15, 2]]
    assert list(lines["Transformer"].get_ydata()) == [85, 50]
    for name, core in (("Feedback", "feedback"), ("Transformer", "transformer-xl"), ("LSTM", "lstm")):
        assert lines[name].get_color() == PALETTE[CORE_COLORS[core]].light
    assert list(lines["LSTM"].get_xdata()) == [0, 1] and list(lines["LSTM"].get_ydata()) == [40, 40]


def test_a_title_is_above_the_legend() -> None:
    (legend,) = sweep_figure([PANEL], "A title").legends
    assert legend.get_title().get_text() == "A title"
    other = replace(PANEL, points=tuple(point for point in PANEL.points if point.series == "Feedback"))
    assert sweep_figure([PANEL, other], "A title").get_suptitle() == "A title"
    assert sweep_figure([PANEL]).legends[0].get_title().get_text() == ""


def test_all_seeds_and_printed_numbers_are_inside_the_plot() -> None:
    points = (Point("Feedback", "feedback", 2, (10.0, 30.0), 50.0), Point("Feedback", "feedback", 8, (20.0, 20.0)))
    (plot,) = sweep_figure([replace(PANEL, score="loss", points=points)]).axes
    lowest, highest = plot.get_ylim()
    assert lowest < 10 and highest > 50


def test_seeds_are_points_and_the_papers_numbers_hollow() -> None:
    (plot,) = sweep_figure([PANEL]).axes
    blue, red = (PALETTE[CORE_COLORS[core]].light for core in ("feedback", "transformer-xl"))
    assert sorted(markers(plot, "o")) == sorted(
        (color, x, score)
        for color, x, scores in ((blue, 2, (10, 20)), (blue, 8, (1, 3)), (red, 2, (80, 90)), (red, 8, (60, 40)))
        for score in scores
    )
    assert sorted(markers(plot, "D")) == sorted([(blue, 8, 0.5), (red, 2, 84)])
    hollow = [line for line in plot.get_lines() if line.get_marker() == "D"]
    assert all(line.get_markerfacecolor() == "none" for line in hollow)


def test_equal_scores_do_not_overlap() -> None:
    same = replace(PANEL, points=(Point("Feedback", "feedback", 2, (1.0, 1.0, 1.0)), PANEL.points[0]))
    figure = sweep_figure([same])
    (plot,) = figure.axes
    figure.draw_without_rendering()
    drawn = [line for line in plot.get_lines() if line.get_linestyle() == "None" and list(line.get_xdata()) == [2]]
    positions = [line.get_transform().transform((2, 1.0))[0] for line in drawn]
    gaps = [right - left for left, right in pairwise(positions)]
    assert len(positions) == 3 and min(gaps) > 3  # pixels
    center = plot.transData.transform((2, 1.0))[0]
    assert abs(positions[0] - center) < 40


def test_axes_are_labeled_and_have_a_tick_at_every_x() -> None:
    (plot,) = sweep_figure([PANEL]).axes
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("memory (frames)", "test error (%)")
    assert [tick.get_text() for tick in plot.get_xticklabels()] == ["2", "8"] and plot.get_xscale() == "log"
    low, high = plot.get_ylim()
    assert low <= 0 and high >= 100  # percentages use the whole scale
    near = replace(PANEL, points=tuple(replace(p, x=p.x and p.x + 10) for p in PANEL.points), score="reach at 90%")
    (plot,) = sweep_figure([near]).axes
    assert plot.get_xscale() == "linear" and plot.get_ylim() != (-3, 103)


def legends(figure: Any) -> list[list[str]]:
    all_legends = [*figure.legends, *(plot.get_legend() for plot in figure.axes if plot.get_legend())]
    return [[text.get_text() for text in legend.get_texts()] for legend in all_legends]


def test_legend_explains_the_markers() -> None:
    names = ["Feedback", "Transformer", "LSTM"]
    seeds, paper = "each seed; the line is their mean", "the paper's number"
    assert legends(sweep_figure([PANEL])) == [[*names, seeds, paper]]
    plain = replace(PANEL, points=tuple(replace(point, paper=None) for point in PANEL.points))
    assert legends(sweep_figure([plain])) == [[*names, seeds]]
    assert legends(sweep_figure([one_seed(plain)])) == [names]
    # Only the second plot has a number of the paper; both share one legend.
    assert legends(sweep_figure([plain, replace(PANEL, score="loss")])) == [[*names, seeds, paper]]
    # Plots with different series have their own legends.
    other = replace(one_seed(plain), axis="passes", points=(Point("Staircase, chunks of 2", "staircase", 1, (3.0,)),))
    assert legends(sweep_figure([one_seed(plain), other])) == [names, ["Staircase, chunks of 2"]]


def test_single_seed_is_a_marker_on_the_line() -> None:
    (plot,) = sweep_figure([one_seed(PANEL)]).axes
    assert markers(plot, "o") == [] and labeled_lines(plot)["Feedback"].get_marker() == "o"
    assert labeled_lines(sweep_figure([PANEL]).axes[0])["Feedback"].get_marker() == "None"


def test_series_of_one_core_have_different_colors() -> None:
    two = (Point("N = 2", "staircase", 1, (1.0,)), Point("N = 4", "staircase", 1, (2.0,)))
    assert len(set(series_colors(Panel("chunk", "error", two)).values())) == 2


def test_long_names_need_fewer_legend_columns() -> None:
    assert (
        legend_columns(["a", "b", "c", "d"], 7) == 4
        and legend_columns(["a" * 36] * 4, 7) == 2
        and legend_columns(["a" * 80], 7) == 1
    )


def test_no_panels_no_plot(tmp_path: Path) -> None:
    assert not write_sweep_png(tmp_path / "sweep.png", [])
    assert not (tmp_path / "sweep.png").exists()
    assert write_sweep_png(tmp_path / "sweep.png", [PANEL] * 3) and (tmp_path / "sweep.png").stat().st_size > 5000


def test_page_has_the_plot_in_its_colors_with_a_description(tmp_path: Path) -> None:
    unsafe = replace(PANEL, points=(*PANEL.points, Point('<b>"&', "staircase", 2, (5.0,))))
    write_html(tmp_path / "page.html", "A page", [], sweep=[unsafe])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h2>Sweep</h2>" in page and page.count('<svg class="figure"') == 1
    assert (
        "test error (%) against memory (frames): Feedback 15 at 2, 2 at 8; Transformer 85 at 2, 50 at 8; LSTM 40"
        in page
    )
    assert "<b>" not in page.partition("<h2>Sweep</h2>")[2].partition("</section>")[0]
    figure = page.partition('<svg class="figure"')[2].partition("</svg>")[0]
    assert f"var(--c{CORE_COLORS['feedback']})" in figure and PALETTE[0].light not in figure
    assert 'href="http' not in figure.replace('xlink:href="#', "")
    assert "Dashed horizontal lines" in page and "Hollow markers" in page and "mean over the seeds" in page
    note = sweep_note([replace(one_seed(PANEL), points=one_seed(PANEL).points[1:2])])
    assert note == "One seed per point."
    write_html(tmp_path / "none.html", "A page", [])
    assert "<h2>Sweep</h2>" not in (tmp_path / "none.html").read_text(encoding="utf-8")


def test_description_has_all_panels() -> None:
    description = format_sweep([one_seed(PANEL), replace(one_seed(PANEL), axis="passes", points=PANEL.points[-1:])])
    assert description.startswith(
        "test error (%) against memory (frames): Feedback 10 at 2, 1 at 8; Transformer 80 at 2"
    )
    assert description.endswith(". test error (%) against passes: LSTM 40")
