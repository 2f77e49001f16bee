"""The picture of a sweep shows every seed, their mean and the paper's numbers where they belong."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from stairwell.report import Panel, Point, write_html, write_sweep_png
from stairwell.report.compare import CORE_COLORS
from stairwell.report.plots import PALETTE
from stairwell.report.sweep import colors_of, fitting, in_words, sweep_figure, sweep_section

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


def alone(panel: Panel) -> Panel:
    """With one seed."""
    return replace(panel, points=tuple(replace(point, scores=point.scores[:1]) for point in panel.points))


def named(plot: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in plot.get_lines() if not line.get_label().startswith("_")}


def marks(plot: Any, marker: str) -> list[tuple[str, float, float]]:
    """Color and place of marks that no line goes through."""
    loose = [line for line in plot.get_lines() if line.get_marker() == marker and line.get_linestyle() == "None"]
    return [(line.get_color(), *line.get_xdata(), *line.get_ydata()) for line in loose]


def test_a_line_is_the_mean_from_left_to_right_in_the_models_color() -> None:
    (plot,) = sweep_figure([PANEL]).axes
    lines = named(plot)
    assert list(lines) == ["Feedback", "Transformer", "LSTM"]
    assert [list(lines["Feedback"].get_xdata()), list(lines["Feedback"].get_ydata())] == [[2, 8], [15, 2]]
    assert list(lines["Transformer"].get_ydata()) == [85, 50]
    for name, core in (("Feedback", "feedback"), ("Transformer", "transformer-xl"), ("LSTM", "lstm")):
        assert lines[name].get_color() == PALETTE[CORE_COLORS.get(core, 0)]
    assert list(lines["LSTM"].get_xdata()) == [0, 1] and list(lines["LSTM"].get_ydata()) == [40, 40], "a level"


def test_every_seed_is_a_point_and_every_number_of_the_paper_hollow() -> None:
    (plot,) = sweep_figure([PANEL]).axes
    blue, red = (PALETTE[CORE_COLORS.get(core, 0)] for core in ("feedback", "transformer-xl"))
    assert sorted(marks(plot, "o")) == sorted(
        (color, x, score)
        for color, x, scores in ((blue, 2, (10, 20)), (blue, 8, (1, 3)), (red, 2, (80, 90)), (red, 8, (60, 40)))
        for score in scores
    )
    assert sorted(marks(plot, "D")) == sorted([(blue, 8, 0.5), (red, 2, 84)])
    hollow = [line for line in plot.get_lines() if line.get_marker() == "D"]
    assert all(line.get_markerfacecolor() == "none" for line in hollow)


def test_equal_scores_do_not_hide_each_other() -> None:
    same = replace(PANEL, points=(Point("Feedback", "feedback", 2, (1.0, 1.0, 1.0)), PANEL.points[0]))
    figure = sweep_figure([same])
    (plot,) = figure.axes
    figure.draw_without_rendering()
    drawn = [line for line in plot.get_lines() if line.get_linestyle() == "None" and list(line.get_xdata()) == [2]]
    places = [line.get_transform().transform((2, 1.0))[0] for line in drawn]
    gaps = [right - left for left, right in pairwise(places)]
    assert len(places) == 3 and min(gaps) > 3, "pixels"
    middle = plot.transData.transform((2, 1.0))[0]
    assert abs(places[0] - middle) < 40, "and stay near their place"


def test_axes_are_labeled_and_have_a_tick_at_every_x() -> None:
    (plot,) = sweep_figure([PANEL]).axes
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("memory (frames)", "test error (%)")
    assert [tick.get_text() for tick in plot.get_xticklabels()] == ["2", "8"] and plot.get_xscale() == "log"
    low, high = plot.get_ylim()
    assert low <= 0 and high >= 100, "errors and accuracies are seen on the whole scale"
    near = replace(PANEL, points=tuple(replace(p, x=p.x and p.x + 10) for p in PANEL.points), score="reach at 90%")
    (plot,) = sweep_figure([near]).axes
    assert plot.get_xscale() == "linear" and plot.get_ylim()[0] > -3 - 1e-9 and plot.get_ylim()[1] < 100


def legend(figure: Any) -> list[list[str]]:
    found = [*figure.legends, *(plot.get_legend() for plot in figure.axes if plot.get_legend())]
    return [[text.get_text() for text in one.get_texts()] for one in found]


def test_the_legend_explains_the_marks_there_are() -> None:
    names = ["Feedback", "Transformer", "LSTM"]
    seeds, paper = "each seed; the line is their mean", "the paper's number"
    assert legend(sweep_figure([PANEL])) == [[*names, seeds, paper]]
    plain = replace(PANEL, points=tuple(replace(point, paper=None) for point in PANEL.points))
    assert legend(sweep_figure([plain])) == [[*names, seeds]]
    assert legend(sweep_figure([alone(plain)])) == [names]
    # The second plot alone has a number of the paper: one legend speaks for both.
    assert legend(sweep_figure([plain, replace(PANEL, score="loss")])) == [[*names, seeds, paper]]
    # Other series have a legend of their own.
    other = replace(alone(plain), axis="passes", points=(Point("Staircase, chunks of 2", "staircase", 1, (3.0,)),))
    assert legend(sweep_figure([alone(plain), other])) == [names, ["Staircase, chunks of 2"]]


def test_one_seed_is_a_mark_on_the_line() -> None:
    (plot,) = sweep_figure([alone(PANEL)]).axes
    assert marks(plot, "o") == [] and named(plot)["Feedback"].get_marker() == "o"
    assert named(sweep_figure([PANEL]).axes[0])["Feedback"].get_marker() == "None"


def test_series_of_one_core_have_different_colors() -> None:
    two = (Point("N = 2", "staircase", 1, (1.0,)), Point("N = 4", "staircase", 1, (2.0,)))
    assert len(set(colors_of(Panel("chunk", "error", two)).values())) == 2


def test_long_names_make_a_legend_of_fewer_columns() -> None:
    assert fitting(["a", "b", "c", "d"], 7) == 4 and fitting(["a" * 36] * 4, 7) == 2 and fitting(["a" * 80], 7) == 1


def test_there_is_no_picture_where_there_is_nothing_to_draw(tmp_path: Path) -> None:
    assert not write_sweep_png(tmp_path / "sweep.png", []) and sweep_section([]) == ""
    assert not (tmp_path / "sweep.png").exists()
    assert write_sweep_png(tmp_path / "sweep.png", [PANEL] * 3) and (tmp_path / "sweep.png").stat().st_size > 5000


def test_the_page_has_the_picture_in_its_own_colors_and_in_words(tmp_path: Path) -> None:
    nasty = replace(PANEL, points=(*PANEL.points, Point('<b>"&', "staircase", 2, (5.0,))))
    write_html(tmp_path / "page.html", "A page", [], sweep=[nasty])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "What the number changes" in page and page.count('<svg class="figure"') == 1
    assert (
        "test error (%) against memory (frames): Feedback 15 at 2, 2 at 8; Transformer 85 at 2, 50 at 8; LSTM 40"
        in page
    )
    assert "<b>" not in page.partition("What the number changes")[2].partition("</section>")[0]
    figure = page.partition('<svg class="figure"')[2].partition("</svg>")[0]
    assert f"var(--c{CORE_COLORS['feedback']})" in figure and PALETTE[0] not in figure
    assert 'href="http' not in figure.replace('xlink:href="#', "")
    assert "Dashed levels" in page and "Hollow marks" in page and "mean over the seeds" in page
    plain = sweep_section([replace(alone(PANEL), points=alone(PANEL).points[1:2])])
    assert "One seed a point." in plain and "Dashed" not in plain and "Hollow" not in plain
    write_html(tmp_path / "none.html", "A page", [])
    assert "What the number changes" not in (tmp_path / "none.html").read_text(encoding="utf-8")


def test_words_tell_every_panel() -> None:
    words = in_words([alone(PANEL), replace(alone(PANEL), axis="passes", points=PANEL.points[-1:])])
    assert words.startswith("test error (%) against memory (frames): Feedback 10 at 2, 1 at 8; Transformer 80 at 2")
    assert words.endswith(". test error (%) against passes: LSTM 40")
