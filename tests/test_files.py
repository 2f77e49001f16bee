"""JSON and small files that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stairwell import files
from stairwell.errors import UserError
from stairwell.train.run import Run
from stairwell.train.run import read_config as read_run_config


def test_what_is_not_json_is_a_value_error_whatever_is_wrong_with_it() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for text in (deep, '{"a": "\\ud800"}', '{"\\uDFFF": 1}', "{", '{"a": ' + "9" * 5_000 + "}", b"\xff"):
        with pytest.raises(ValueError):
            files.parse_json(text)
    whole = {"a": "\U0001f600 \u00e9 \\ud800"}  # a pair, a letter, and a backslash that stands for itself
    assert files.parse_json(json.dumps(whole)) == whole
    assert files.parse_json(json.dumps(whole, ensure_ascii=False).encode()) == whole


def test_a_config_that_cannot_be_read_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    for text in ("[" * 100_000, '{"format": 1, "task": {"path": "\\ud800"}}', "9" * 5_000):
        path.write_text(text)
        with pytest.raises(UserError, match="is not readable JSON"):
            read_run_config(path)
    monkeypatch.setattr(files, "SMALL", 1 << 20)
    with pytest.raises(UserError, match="/dev/zero is larger than 1 MiB"):  # which has no end
        read_run_config(Path("/dev/zero"))


def test_metrics_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "tokens": 8, "seconds": 0.1}) for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "[" * 100_000, lines[1]]))
    assert [record["step"] for record in Run(tmp_path).metrics()] == [1, 2]
