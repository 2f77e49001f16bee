"""Checks before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stairwell import startup
from tests.commands import TINY, stairwell

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("platform", ["win32", "cygwin", "emscripten"])
def test_an_unsupported_platform_is_rejected_before_torch_is_imported(platform: str) -> None:
    code = f"import sys; sys.platform = {platform!r}; sys.modules['torch'] = None; import stairwell"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = process.stderr.splitlines()[-1]
    assert line.startswith(f"RuntimeError: stairwell supports Linux and macOS, not '{platform}'")
    assert "use WSL" in line and "STAIRWELL_ANY_PLATFORM=1" in line


def test_the_command_rejects_a_platform_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "argv", ["stairwell", "info"])
    with pytest.raises(SystemExit) as ended:
        startup.reject_platform()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith("stairwell: stairwell supports Linux and macOS")
    assert error.count("\n") == 1


def test_any_platform_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not startup.is_supported_platform()
    monkeypatch.setenv("STAIRWELL_ANY_PLATFORM", "1")
    assert startup.is_supported_platform()


def test_an_interrupt_while_the_config_is_read_does_not_report_a_saved_run(tmp_path: Path) -> None:
    assert stairwell(tmp_path, "train", "parity/lstm", *TINY, "--steps", "2", "--quiet", "--out", "run").status == 0
    command = ["train", "--config", "run/config.json", "--out", "other"]
    ended = stairwell(tmp_path, *command, TEST_INTERRUPT_AT="run/config.json")
    assert (ended.status, ended.out, ended.err) == (1, "", "stairwell: interrupted before the command started\n")
    assert not (tmp_path / "other").exists()
