"""The demo is fair, goes to its end, and does not train twice."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from stairwell.cli.studies import run_demo
from stairwell.experiments import demo


def test_both_get_the_same_and_the_transformer_sees_a_whole_episode() -> None:
    feedback, transformer = (demo.contender(core, 100) for core in ("feedback", "transformer-xl"))
    assert feedback.train == transformer.train
    assert feedback.task == transformer.task
    assert transformer.core.memory > demo.LENGTH > feedback.core.memory
    assert transformer.train.curriculum.endswith(f"length=8..{demo.LENGTH}")


def test_the_face_off_ends_in_a_report_and_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = demo.contender

    def tiny(core: str, updates: int) -> Any:
        options = {
            "train.batch": "4",
            "train.valid_rows": "10",
            "task.valid_episodes": "10",
            "task.test_episodes": "50",
        }
        return small(core, updates).with_options(options)

    monkeypatch.setattr(demo, "contender", tiny)
    shown: list[str] = []

    def show(title: str, total: int, done: int) -> Any:
        shown.append(title)
        return nullcontext(lambda event: None)

    results = demo.face_off(tmp_path, 2, "cpu", "auto", show)
    assert len(shown) == 2
    assert {result["updates"] for result in results.values()} == {2}
    page = demo.write_report(tmp_path, results).read_text(encoding="utf-8")
    assert "68" in page and "Transformer-XL" in page
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert [row[-1] for row in demo.table(results).rows] == ["100", "68"]
    assert demo.face_off(tmp_path, 2, "cpu", "auto", show) == results
    assert len(shown) == 2


def test_the_demo_ends_in_a_page_to_drive_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = demo.contender
    options = {"train.batch": "4", "train.valid_rows": "10", "task.valid_episodes": "10", "task.test_episodes": "50"}
    monkeypatch.setattr(demo, "contender", lambda core, updates: small(core, updates).with_options(options))
    run_demo(tmp_path, 1, "cpu", "auto", lambda *_: nullcontext(lambda event: None))
    assert capsys.readouterr().out.endswith(f"drive the agent yourself: {tmp_path / 'drive.html'}\n")
    page = (tmp_path / "drive.html").read_text(encoding="utf-8")
    assert '"kind":"grid"' in page and 'id="parameters-0"' in page and 'id="parameters-1"' in page
