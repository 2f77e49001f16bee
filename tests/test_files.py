"""Invalid JSON and files that are too large."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stairwell import files
from stairwell.errors import UserError
from stairwell.runs.run import Run
from stairwell.runs.run import read_config as read_run_config


def test_invalid_json_raises_a_value_error() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for text in (
        deep,
        '{"a": "\\ud800"}',
        '{"\\uDFFF": 1}',
        "{",
        '{"a": ' + "9" * 5_000 + "}",
        b"\xff",
        '{"a": {"b": 1, "b": 1}}',
    ):
        with pytest.raises(ValueError):
            files.parse_json(text)
    valid = {"a": "\U0001f600 \u00e9 \\ud800"}  # a surrogate pair, a letter, and an escaped backslash
    assert files.parse_json(json.dumps(valid)) == valid
    assert files.parse_json(json.dumps(valid, ensure_ascii=False).encode()) == valid


def test_an_unreadable_config_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    for text in (
        "[" * 100_000,
        '{"format": 1, "task": {"path": "\\ud800"}}',
        "9" * 5_000,
        '{"format": 2, "format": 2}',
    ):
        path.write_text(text)
        with pytest.raises(UserError, match="is not readable JSON"):
            read_run_config(path)
    monkeypatch.setattr(files, "MAX_SMALL_FILE", 1 << 20)
    with pytest.raises(UserError, match="/dev/zero is larger than 1 MiB"):
        read_run_config(Path("/dev/zero"))


def test_unreadable_lines_of_metrics_are_skipped(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "tokens": 8, "seconds": 0.1}) for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "[" * 100_000, lines[1]]))
    assert [record["step"] for record in Run(tmp_path).metrics()] == [1, 2]


def test_a_config_of_format_1_has_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"format": 1}')
    with pytest.raises(UserError, match="made by an older version; convert it with tools/convert_run"):
        Run(tmp_path).read_config()


def test_a_read_only_file_system_is_not_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="no permission"):
        Run(tmp_path).check_writable()
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(OSError, match="Read-only file system"):
        Run(tmp_path).check_writable()
