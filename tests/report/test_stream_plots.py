"""Plots and tables of long-stream evaluations show the numbers of horizon.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stairwell.report import RunReport, gather, write_extra_pngs, write_html
from stairwell.report.compare import group_models
from stairwell.report.stream_plots import (
    accuracy,
    format_horizons,
    group_by_length,
    stream_figure,
    stream_table,
    survival,
)
from stairwell.runs.launch import fit
from stairwell.runs.load import evaluate_run, save_test_scores
from stairwell.runs.long_streams import Horizon, StreamResult, measure
from stairwell.runs.presets import preset

FOLDERS: list[Path] = []  # where the runs of the fixture are


def horizon(tokens: int, *firsts: int | None) -> Horizon:
    streams = tuple(StreamResult(0, row, first, 0 if first is None else 2) for row, first in enumerate(firsts))
    return Horizon(tokens, 40, streams, (1, 10, 100), (9, 90, 1), (0, 9, 1))


def test_share_of_streams_without_a_mistake() -> None:
    positions, shares = survival([horizon(100, None, 20, 50, None)])
    assert list(zip(positions, shares)) == [(1, 100), (20, 75), (50, 50), (100, 50)]
    positions, shares = survival([horizon(100, None, 20), horizon(1000, 500)])
    assert dict(zip(positions, shares)) == {
        1: 100,
        20: pytest.approx(200 / 3),
        100: pytest.approx(200 / 3),
        101: 100,
        500: 0,
        1000: 0,
    }
    assert format_horizons([horizon(100, None, 20), horizon(1000, 500)]) == (
        "1 of 2 streams without a mistake in 100 tokens, 0 of 1 in 1,000"
    )


def test_streams_of_different_lengths() -> None:
    streams = (StreamResult(0, 0, None, 0, 20), StreamResult(0, 1, 30, 5, 40), StreamResult(0, 2, None, 0, 40))
    evaluated = Horizon(40, 20, streams, (1, 10), (27, 73), (0, 5))
    positions, shares = survival([evaluated])
    assert dict(zip(positions, shares)) == {1: 100.0, 20: 100.0, 21: 100.0, 30: 50.0, 40: 50.0}
    assert format_horizons([evaluated]) == "2 of 3 streams without a mistake in up to 40 tokens"


def test_samples_of_different_lengths_are_apart() -> None:
    """A curve over both would rise where the streams with mistakes end."""
    many, few, more = horizon(100, None, 20, 30), horizon(1000, None), horizon(100, 40)
    assert group_by_length([few, many, more]) == [[many, more], [few]]


def test_accuracy_in_bins_of_positions() -> None:
    centers, values = accuracy([horizon(100, 10)])
    # The last bin is incomplete and merged with the one before.
    assert centers == [3.0, pytest.approx(1000**0.5)] and values == [100, pytest.approx(100 - 100 * 10 / 91)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunReport]:
    root = tmp_path_factory.mktemp("runs")
    FOLDERS.append(root)
    small = {"core.width": "8", "train.batch": "4", "train.steps": "2", "train.segment": "8", "train.curriculum": ""}
    for core in ("feedback", "lstm"):
        fit(preset(f"parity/{core}").with_options({**small, "task.valid_episodes": "4"}), root / core, "cpu")
    measure(root / "feedback", 300, streams=3, device="cpu")
    return [gather(root / "feedback"), gather(root / "lstm")]


def test_page_shows_long_streams_if_evaluated(runs: list[RunReport], tmp_path: Path) -> None:
    feedback, lstm = runs
    assert feedback.horizon is not None and lstm.horizon is None
    write_html(tmp_path / "page.html", "A page", runs)
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Long streams</h2>" in page
    assert page.count('<svg class="figure"') == 2, "side by side, and stacked for phones"
    assert "Feedback: 0 of 3 streams without a mistake in 300 tokens" in page
    assert write_extra_pngs(tmp_path / "page.html", runs) == [tmp_path / "page.horizon.png"]
    write_html(tmp_path / "none.html", "A page", [lstm])
    assert "<h2>Long streams</h2>" not in (tmp_path / "none.html").read_text()
    assert write_extra_pngs(tmp_path / "none.html", [lstm]) == []


def test_results_of_earlier_parameters_are_left_out(runs: list[RunReport], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(FOLDERS[-1] / "feedback", folder)
    assert gather(folder).horizon is not None and gather(folder).outdated == []
    measured = json.loads((folder / "horizon.json").read_text())
    (folder / "horizon.json").write_text(json.dumps({**measured, "step": measured["step"] - 1}))
    run = gather(folder)
    assert run.horizon is None
    assert run.outdated == [
        f"long streams were measured at step {measured['step'] - 1}, before training continued; run again: "
        f"stairwell eval {folder} --horizon 300"
    ]
    write_html(tmp_path / "page.html", "A page", [run])
    page = (tmp_path / "page.html").read_text()
    assert "Feedback: long streams were measured at step" in page and "<h2>Long streams</h2>" not in page


def test_table_of_first_mistakes(runs: list[RunReport]) -> None:
    (row,) = stream_table(group_models(runs)).rows
    evaluated = runs[0].horizon
    assert evaluated is not None
    assert row[:5] == ["Feedback", 1, 3, "300", 0] and row[5] == evaluated.first_mistakes[0]
    assert row[6] == evaluated.first_mistakes[1] and row[7] == sum(stream.mistakes for stream in evaluated.streams)


def test_the_median_first_mistake_is_beyond_the_end_if_most_streams_have_none(runs: list[RunReport]) -> None:
    from dataclasses import replace

    measured = horizon(3000, None)
    (row,) = stream_table(group_models([replace(runs[0], horizon=measured)])).rows
    assert row[5:7] == ["none", ">3,000"]
    shorter = replace(measured, streams=tuple(replace(stream, tokens=700) for stream in measured.streams))
    (row,) = stream_table(group_models([replace(runs[0], horizon=shorter)])).rows
    assert row[6] == ">700"


def test_a_report_shows_the_test_scores_of_eval_unless_training_continued(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(FOLDERS[-1] / "feedback", folder)
    before = gather(folder).score
    assert before is not None and before[0] == "valid"
    result = evaluate_run(folder, "test", device="cpu")
    save_test_scores(folder, result)
    report = gather(folder)
    assert report.score == ("test", pytest.approx(result[report.metric])) and "test_step" not in report.scores
    save_test_scores(folder, {**result, "step": result["step"] - 1})
    assert gather(folder).score == before


def test_plot_has_a_line_per_model(runs: list[RunReport], tmp_path: Path) -> None:
    from dataclasses import replace

    models = group_models([replace(runs[0], horizon=horizon(100, None)), replace(runs[1], horizon=horizon(100, 7))])
    left, right = stream_figure(models).axes
    assert [line.get_label().partition(":")[0] for line in left.get_lines()[::2]] == ["Feedback", "LSTM"]
    assert len(right.get_lines()) == 2


def test_damaged_file_is_ignored(runs: list[RunReport], tmp_path: Path) -> None:
    from stairwell.runs import long_streams as files

    for content in ("", "[]", "{}", json.dumps({"tokens": 1, "trained_on": 1, "streams": [{}], "curve": {}})):
        (tmp_path / "horizon.json").write_text(content)
        assert files.read(tmp_path) is None
