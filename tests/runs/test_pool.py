"""Runs in processes of their own: a failure or a signal stops all, which save."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stairwell.errors import UserError
from stairwell.runs import pool
from stairwell.runs.pool import Pool
from stairwell.runs.presets import preset
from stairwell.runs.run import Run
from stairwell.train import Interrupted

SUCCEEDS = """print('{"steps": 1}')"""
FAILS = "import sys; sys.exit('stairwell: the disk is full')"
WAITS = """
import pathlib, signal, sys, time
def stop(*_):
    print("stopped and saved at step 5 of 9; resume with: ...", file=sys.stderr)
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def run_scripts(
    scripts: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: int = 2, watch: Any = None
) -> dict[str, dict[str, Any]]:
    """Run scripts instead of training processes; return the results passed to `finish`."""
    command = lambda config, run, *_: [sys.executable, "-c", scripts[run.path.name], str(run.path) + ".ready"]  # noqa: E731
    monkeypatch.setattr(pool, "command", command)
    results: dict[str, dict[str, Any]] = {}
    runs = {name: (preset("parity/lstm"), Run(folder / name)) for name in scripts}
    Pool(jobs, "cpu", "auto", watch or (lambda event: None), results.__setitem__).train(runs)
    return results


def test_every_run_is_finished_with_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[dict[str, Any]] = []
    results = run_scripts(dict.fromkeys("abc", SUCCEEDS), tmp_path, monkeypatch, watch=events.append)
    assert {name: result["steps"] for name, result in results.items()} == {"a": 1, "b": 1, "c": 1}
    assert sorted(event["left"] for event in events if event["event"] == "finished") == [0, 1, 2]


def test_a_run_that_fails_stops_the_others_and_starts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {"waits": WAITS, "fails": FAILS, "later": SUCCEEDS}
    with pytest.raises(UserError, match=r"^fails: the disk is full$"):
        run_scripts(scripts, tmp_path, monkeypatch)


def test_an_error_in_finish_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, result: dict[str, Any]) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(pool, "command", lambda *_: [sys.executable, "-c", SUCCEEDS])
    with pytest.raises(OSError, match="the disk is full"):
        Pool(2, "cpu", "auto", lambda event: None, fail).train({"a": (preset("parity/lstm"), Run(tmp_path / "a"))})


def test_a_signal_stops_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[dict[str, Any]] = []

    def interrupt() -> None:
        while not all((tmp_path / f"{name}.ready").exists() for name in ("a", "b")):
            stop.wait(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    stop = threading.Event()
    threading.Thread(target=interrupt).start()
    with pytest.raises(
        Interrupted, match=r"^a stopped and saved at step 5 of 9, b stopped and saved at step 5 of 9; the "
    ):
        run_scripts({"a": WAITS, "b": WAITS, "c": WAITS}, tmp_path, monkeypatch, watch=events.append)
    assert {"event": "stopping"} in events and not (tmp_path / "c.ready").exists()
