"""What is seen to before torch is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stairwell import startup
from tests.commands import TINY, stairwell

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("platform", ["win32", "cygwin", "emscripten"])
def test_a_platform_that_is_not_supported_says_so_in_a_line(platform: str) -> None:
    """Before torch, which may not be there, and as no ImportError."""
    asked = f"import sys; sys.platform = {platform!r}; sys.modules['torch'] = None; import stairwell"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    line = told.stderr.splitlines()[-1]
    assert line.startswith(f"RuntimeError: stairwell supports Linux and macOS, not '{platform}'")
    assert "use WSL" in line and "STAIRWELL_ANY_PLATFORM=1" in line


def test_the_command_says_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "argv", ["stairwell", "info"])
    with pytest.raises(SystemExit) as ended:
        startup.refuse_platform()
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.startswith("stairwell: stairwell supports Linux and macOS")
    assert told.count("\n") == 1


def test_who_wants_to_may_try_any_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not startup.is_supported()
    monkeypatch.setenv("STAIRWELL_ANY_PLATFORM", "1")
    assert startup.is_supported()


def test_a_training_interrupted_while_it_reads_its_config_does_not_claim_to_be_saved(tmp_path: Path) -> None:
    assert stairwell(tmp_path, "train", "parity/lstm", *TINY, "--steps", "2", "--quiet", "--out", "run").status == 0
    command = ["train", "--config", "run/config.json", "--out", "other"]
    ended = stairwell(tmp_path, *command, TEST_INTERRUPT_AT="run/config.json")
    assert (ended.status, ended.out, ended.err) == (1, "", "stairwell: interrupted before the command started\n")
    assert not (tmp_path / "other").exists()
