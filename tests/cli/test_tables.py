"""Tables in a terminal do not truncate names or numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stairwell.cli.tables import groups, print_table
from stairwell.experiments import reproduce
from stairwell.report import Table

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("width", [40, 80, 120, None])
@pytest.mark.parametrize(
    "name", ["staircase.table1.random-walk", "feedback.figure4.translation", "extra.state-tracking.s5-4"]
)
def test_no_word_of_a_result_table_is_truncated(
    name: str, width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if width is None:
        monkeypatch.delenv("COLUMNS", raising=False)  # a pipe: as wide as necessary
    else:
        monkeypatch.setenv("COLUMNS", str(width))
    table = reproduce.table(json.loads((RESULTS / f"{name}-laptop.json").read_text(encoding="utf-8")))
    print_table(table)
    out = capsys.readouterr().out
    assert "…" not in out and max(map(len, out.splitlines())) <= (width or 1000)
    for text in (table.title, table.caption, *table.columns, *(str(cell) for row in table.rows for cell in row)):
        assert set(text.split()) <= set(out.split()), text
    if width is None:
        assert all(any(str(row[0]) in line for line in out.splitlines()) for row in table.rows)


def test_repeated_columns_stay_next_to_their_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["model", "size", "first", "best", "second", "best"]
    assert groups(columns) == [[1], [2, 3], [4, 5]]
    monkeypatch.setenv("COLUMNS", "34")
    print_table(Table("", columns, [["[red]A[/red]", 1234567, 1.5, 2.5, 3.5, 4.5]]))
    headings = [line.split() for line in capsys.readouterr().out.splitlines() if "model" in line]
    assert headings == [["model", "size"], ["model", "first", "best"], ["model", "second", "best"]]


def test_brackets_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table("a [bold]title[/bold]", ["model", "x"], [["[red]A[/red]", 1]], "to [/a/folder]"))
    out = capsys.readouterr().out
    assert "a [bold]title[/bold]" in out and "[red]A[/red]" in out and "to [/a/folder]" in out
