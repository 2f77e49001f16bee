"""Pictures and tables of horizons say what horizon.json says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stairwell.report import RunReport, gather, write_html, write_stream_pngs
from stairwell.report.compare import models
from stairwell.report.stream_plots import accuracy, horizon_figure, horizon_table, in_words, standing
from stairwell.runs.launch import fit
from stairwell.runs.long_streams import FollowedStream, Horizon, measure
from stairwell.runs.presets import preset


def horizon(tokens: int, *firsts: int | None) -> Horizon:
    streams = tuple(FollowedStream(0, row, first, 0 if first is None else 2) for row, first in enumerate(firsts))
    return Horizon(tokens, 40, streams, (1, 10, 100), (9, 90, 1), (0, 9, 1))


def test_a_stream_stands_until_its_first_mistake_and_counts_as_far_as_it_was_followed() -> None:
    places, shares = standing([horizon(100, None, 20, 50, None)])
    assert list(zip(places, shares)) == [(1, 100), (20, 75), (50, 50), (100, 50)]
    places, shares = standing([horizon(100, None, 20), horizon(1000, 500)])
    assert dict(zip(places, shares)) == {
        1: 100,
        20: pytest.approx(200 / 3),
        100: pytest.approx(200 / 3),
        101: 100,
        500: 0,
        1000: 0,
    }
    assert in_words([horizon(100, None, 20), horizon(1000, 500)]) == (
        "1 of 2 streams without a mistake in 100 tokens, 0 of 1 in 1,000"
    )


def test_streams_that_end_by_themselves_count_as_far_as_they_go() -> None:
    streams = (FollowedStream(0, 0, None, 0, 20), FollowedStream(0, 1, 30, 5, 40), FollowedStream(0, 2, None, 0, 40))
    found = Horizon(40, 20, streams, (1, 10), (27, 73), (0, 5))
    places, shares = standing([found])
    assert dict(zip(places, shares)) == {1: 100.0, 20: 100.0, 21: 100.0, 30: 50.0, 40: 50.0}
    assert in_words([found]) == "2 of 3 streams without a mistake in up to 40 tokens"


def test_the_curve_is_the_share_of_right_answers_in_each_bin() -> None:
    middles, values = accuracy([horizon(100, 10)])
    # The last bin has been begun only, and is told with the one before.
    assert middles == [3.0, pytest.approx(1000**0.5)] and values == [100, pytest.approx(100 - 100 * 10 / 91)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunReport]:
    place = tmp_path_factory.mktemp("runs")
    small = {"core.width": "8", "train.batch": "4", "train.steps": "2", "train.segment": "8", "train.curriculum": ""}
    for core in ("feedback", "lstm"):
        fit(preset(f"parity/{core}").with_options({**small, "task.valid_episodes": "4"}), place / core, "cpu")
    measure(place / "feedback", 300, rows=3, device="cpu")
    return [gather(place / "feedback"), gather(place / "lstm")]


def test_a_page_shows_the_horizons_there_are(runs: list[RunReport], tmp_path: Path) -> None:
    feedback, lstm = runs
    assert feedback.horizon is not None and lstm.horizon is None
    write_html(tmp_path / "page.html", "A page", runs)
    page = (tmp_path / "page.html").read_text()
    assert "How far they hold" in page and page.count('<svg class="figure"') == 1
    assert "Feedback: 0 of 3 streams without a mistake in 300 tokens" in page
    assert write_stream_pngs(tmp_path / "page.html", runs) == [tmp_path / "page.horizon.png"]
    write_html(tmp_path / "none.html", "A page", [lstm])
    assert "How far they hold" not in (tmp_path / "none.html").read_text()
    assert write_stream_pngs(tmp_path / "none.html", [lstm]) == []


def test_the_table_names_the_earliest_mistake(runs: list[RunReport]) -> None:
    table = horizon_table(models(runs))
    written = runs[0].horizon
    assert table is not None and written is not None
    (row,) = table.rows
    assert row[:5] == ["Feedback", 1, 3, "300", 0] and row[5] == written.first_mistakes[0]
    assert row[6] == written.first_mistakes[1] and row[7] == sum(stream.mistakes for stream in written.streams)


def test_several_models_are_on_one_picture(runs: list[RunReport], tmp_path: Path) -> None:
    from dataclasses import replace

    found = models([replace(runs[0], horizon=horizon(100, None)), replace(runs[1], horizon=horizon(100, 7))])
    left, right = horizon_figure(found).axes
    assert [line.get_label().partition(":")[0] for line in left.get_lines()[::2]] == ["Feedback", "LSTM"]
    assert len(right.get_lines()) == 2


def test_a_damaged_file_is_no_horizon(runs: list[RunReport], tmp_path: Path) -> None:
    from stairwell.runs import long_streams as files

    for content in ("", "[]", "{}", json.dumps({"tokens": 1, "trained_on": 1, "streams": [{}], "curve": {}})):
        (tmp_path / "horizon.json").write_text(content)
        assert files.read(tmp_path) is None
