"""The progress display: training continues when stderr is closed, and logs show the remaining time."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from stairwell.cli.display import LiveDisplay, LogDisplay, display
from stairwell.runs import preset
from tests.commands import TIMEOUT, TINY, stairwell

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("redirection", ["2>&1 >result.txt | head -1", ">result.txt 2>&-"])
def test_training_continues_when_stderr_is_closed(redirection: str, tmp_path: Path) -> None:
    command = " ".join(
        [sys.executable, "-m stairwell train parity/lstm --steps 30 --out run --json", *map(quoted, TINY)]
    )
    shell = f"set -o pipefail; {command} {redirection}"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done
    assert done.stdout.count("\n") == ("head" in redirection) and done.stderr == ""
    assert '"steps": 30' in (tmp_path / "result.txt").read_text()
    assert (tmp_path / "run" / "checkpoints" / "step-000000030.safetensors").exists()
    assert (tmp_path / "run" / "metrics.jsonl").read_text().startswith('{"step": 3,')


def quoted(text: str) -> str:
    return text or "''"


# From the first extension module to the last: numpy swallows the exception, torch raises another one.
@pytest.mark.parametrize("loaded", ["_multiarray_umath", "libtorch", "libtorch_python", "_safetensors_rust"])
def test_an_interruption_while_loading_prints_one_line(loaded: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "stairwell", "train", "parity/lstm"],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + TIMEOUT
    while loaded not in Path(f"/proc/{process.pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1 and out == ""
    assert err == "interrupted before the command started\n"
    assert not list(tmp_path.iterdir())


def test_a_log_shows_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LogDisplay("title", 10_000)
    lines({"event": "metrics", "step": 50, "seconds": 50.0, "loss": 1.0})
    lines({"event": "metrics", "step": 50, "seconds": 50.0, "valid": {"loss": 1.0}})
    lines({"event": "metrics", "step": 10_000, "seconds": 9_000.0, "loss": 1.0})
    assert capsys.readouterr().err.splitlines()[1:] == [
        "step 50/10,000  loss 1.0000, 2:45:50 left",
        "step 50/10,000  valid: loss 1",
        "step 10,000/10,000  loss 1.0000",
    ]


def test_progress_of_agents_counts_frames(capsys: pytest.CaptureFixture[str]) -> None:
    event = {"event": "metrics", "step": 50, "seconds": 50.0, "loss": 1.0, "tokens_per_second": 1234.0}
    display("title", 50, 0, quiet=False, unit="frames")(event)
    assert capsys.readouterr().err.splitlines()[1] == "step 50/50  loss 1.0000, 1,234 frames/s"
    assert preset("rl/lstm").unit == "frames" and preset("parity/lstm").unit == "tokens"


def test_a_narrow_terminal_shows_the_whole_description_of_the_data() -> None:
    console = Console(width=40, file=io.StringIO())
    description = "translate english.txt to french.txt: 24,037 pairs; left out of train: 4 too long"
    console.print(LiveDisplay(f"translation/feedback\n{description}", 10).panel())
    assert description in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_training_shorter_than_its_warm_up_warns(tmp_path: Path) -> None:
    given = ("train", "parity/lstm", *TINY, "--train.warmup", "20")
    short = stairwell(tmp_path, *given, "--steps", "3", "--out", "short").err
    assert "the learning rate warms up for 20 steps but training has only 3: the model will hardly learn" in short
    assert "hardly learn" not in stairwell(tmp_path, *given, "--steps", "21", "--out", "long").err
