"""The demo is fair, trains its models side by side to their end, stops cleanly, and does not train twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stairwell.cli import display
from stairwell.cli.experiments import run_demo
from stairwell.errors import UserError
from stairwell.experiments import beside, demo
from stairwell.train import Interrupted, Run
from tests.commands import PATIENCE, stairwell

ROOT = Path(__file__).parents[2]
TINY = {
    "train.batch": "4", "train.valid_batch": "10", "task.valid_episodes": "10", "task.test_episodes": "50",
    "core.width": "8", "core.layers": "1", "train.checkpoint_every": "0",
}  # fmt: skip


def tiny(monkeypatch: pytest.MonkeyPatch, **goals: str) -> None:
    """Small models; those that have a goal here stop once it is reached."""
    whole = demo.contender

    def contender(core: str, updates: int) -> Any:
        own = {"train.goal": goals[core]} if core in goals else {}
        return whole(core, updates).with_options({**TINY, **own})

    monkeypatch.setattr(demo, "contender", contender)


def test_all_get_the_same_and_the_transformer_sees_a_whole_episode() -> None:
    feedback, staircase, transformer = (demo.contender(core, 100) for core in demo.NAMES)
    assert feedback.train == staircase.train == transformer.train
    assert feedback.task == staircase.task == transformer.task
    assert transformer.core.memory > demo.LENGTH > feedback.core.memory
    assert staircase.core.chunk * staircase.core.passes - 1 == feedback.core.memory
    assert transformer.train.curriculum.endswith(f"length=8..{demo.LENGTH}")
    assert feedback.train.goal == demo.MASTERED


def test_all_train_at_once_until_mastered_and_are_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(monkeypatch, feedback="0.1")
    shown: list[dict[str, int]] = []
    told: list[dict[str, Any]] = []

    @contextmanager
    def show(models: dict[str, int]) -> Iterator[Any]:
        shown.append(models)
        yield told.append

    results = demo.face_off(tmp_path, 40, "cpu", "auto", show)
    assert shown == [dict.fromkeys(demo.NAMES.values(), 40)]
    assert results["feedback"]["updates"] < results["transformer-xl"]["updates"] == 40
    for core, name in demo.NAMES.items():
        assert [event for event in told if event["model"] == name] == [
            {"event": "metrics", "model": name, **record} for record in Run(tmp_path / core).metrics()
        ]
        assert results[core]["threads"] == results[core]["provenance"]["threads"]
        # Scores are of fresh episodes.
        assert results[core]["test"]["split"] == "test"
        assert results[core]["test"]["scored"] == 50 * demo.LENGTH == 5 * results[core]["valid_scored"]
    page = demo.write_report(tmp_path, results).read_text(encoding="utf-8")
    assert "68" in page and "Transformer-XL" in page and demo.fairness() in page
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert [row[-1] for row in demo.table(results).rows] == list(demo.PAPER.values())
    # Once more, as the command does it: nothing is trained, and it ends in a page to drive on.
    monkeypatch.setattr(demo, "train_together", lambda *_: pytest.fail("they have been trained"))
    run_demo(tmp_path, 40, "cpu", "auto", quiet=True)
    assert capsys.readouterr().out.endswith(f"drive the agent yourself: {tmp_path / 'drive.html'}\n")
    page = (tmp_path / "drive.html").read_text(encoding="utf-8")
    assert '"kind":"grid"' in page and 'id="parameters-0"' in page and 'id="parameters-2"' in page
    # What it was not trained with is refused, not ignored.
    with pytest.raises(UserError, match=r"^--engine reference: everything in .* is trained already \(engine: auto\); "):
        run_demo(tmp_path, 40, "cpu", "reference", quiet=True)
    with pytest.raises(UserError, match="another config, such as other --updates; choose another --out"):
        run_demo(tmp_path, 41, "cpu", "auto", quiet=True)


def test_only_one_model_is_trained_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(monkeypatch)
    run_demo(tmp_path, 4, "cpu", "auto", quiet=True, only=("Transformer-XL",))
    assert {path.parent.name for path in tmp_path.glob("*/result.json")} == {"transformer-xl"}
    out = capsys.readouterr().out
    assert "Transformer-XL" in out and "Cached Staircase" not in out and (tmp_path / "drive.html").exists()


REFUSED = {
    "--scale paper": "laptop scale only; try stairwell reproduce staircase.table1.random-walk --scale paper",
    "--scale huge": "--scale must be laptop or paper",
    "--seeds 2": "the demo trains every model once",
    "--jobs 1": "the demo trains all its models at once",
    "--core.width 8": "--core.width: the demo's models and task are fixed",
    "--task.length 9": "--task.length: the demo's models and task are fixed",
    "--train.batch 9": "--train.batch: the demo's models and task are fixed",
    "--train.steps 9": "give --updates",
    "--only Transformer": "did you mean 'Transformer-XL'?",
    "--only GRU": "there are: Feedback, Cached Staircase, Transformer-XL",
    "--device warp": "'warp' is not a device",
    "--engine warp": "--engine must be auto, fast or reference",
}


@pytest.mark.parametrize("options", REFUSED)
def test_options_that_the_demo_does_not_use_are_refused(tmp_path: Path, options: str) -> None:
    assert REFUSED[options] in stairwell(tmp_path, "reproduce", "demo", *options.split()).line
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_what_it_would_take_and_trains_nothing(tmp_path: Path) -> None:
    asked = ("reproduce", "demo", "--dry-run", "--out", "demo", "--updates", "700")
    ended = stairwell(tmp_path, *asked)
    assert ended.status == 0 and not (tmp_path / "demo").exists(), ended
    assert ended.out.count("1 of 1") == len(demo.NAMES) and ended.out.count(" 700 ") == len(demo.NAMES)
    assert "in all on this machine" in ended.out
    one = stairwell(tmp_path, *asked, "--only", "Feedback").out
    assert one.count("1 of 1") == 1 and "Feedback" in one and "Transformer-XL" not in one
    # What is done takes no time.
    (tmp_path / "demo" / "feedback").mkdir(parents=True)
    (tmp_path / "demo" / "feedback" / "result.json").write_text("{}")
    assert stairwell(tmp_path, *asked).out.count("1 of 1") == len(demo.NAMES) - 1


def test_a_plan_counts_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "machine_rate", lambda device: 1e12)
    monkeypatch.setattr(demo, "estimate", lambda experiment, rate: 60 * experiment.train.steps)
    planned = demo.plan_table(tmp_path, 5, "cpu")
    assert [row[-1] for row in planned.rows] == ["5.0 minutes"] * 3 and planned.caption.startswith("15.0 minutes ")
    assert [row[3] for row in planned.rows] == [f"{5 * demo.contender('feedback', 5).train.batch * 32:,}"] * 3
    for core, total in zip(demo.NAMES, ("10.0 minutes ", "5.0 minutes ", "nothing ")):
        (tmp_path / core).mkdir()
        (tmp_path / core / "result.json").write_text("{}")
        assert demo.plan_table(tmp_path, 5, "cpu").caption.startswith(total)


FAILS = "import sys; sys.exit('stairwell: the disk is full')"
WAITS = """
import signal, sys, time
def stop(*_):
    print("stopped and saved at update 5 of 9; go on with: ...", file=sys.stderr)
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(60)
"""


def pretended(name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> beside.Beside:
    """A process that behaves as a training does."""
    monkeypatch.setattr(beside, "command", lambda *_: [sys.executable, "-c", script])
    return beside.Beside(name, demo.contender("feedback", 1), Run("nowhere"), "cpu", "auto", 1)


def wait_until_ready(training: beside.Beside) -> None:
    give_up = time.monotonic() + PATIENCE
    while not os.fstat(training.output.fileno()).st_size:
        assert training.running and time.monotonic() < give_up
        time.sleep(0.01)


def test_one_that_fails_stops_the_others_which_save(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = pretended("Feedback", WAITS, monkeypatch)
    wait_until_ready(waits)
    fails = pretended("Transformer-XL", FAILS, monkeypatch)
    with pytest.raises(UserError, match=r"^Transformer-XL: the disk is full$"):
        beside.train_together([waits, fails], lambda event: None)
    assert waits.process.returncode == 130


def test_whoever_is_asked_to_stop_asks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = [pretended(name, WAITS, monkeypatch) for name in ("Feedback", "Transformer-XL")]
    for training in trainings:
        wait_until_ready(training)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(beside, "tell", lambda *_: os.kill(os.getpid(), signal.SIGTERM) if not told else None)
    with pytest.raises(Interrupted, match=r"^Feedback stopped and saved at update 5 of 9, Transformer-XL stopped and "):
        beside.train_together(trainings, told.append)
    assert told == [{"event": "stopping"}]


DEMO = """
import sys
from pathlib import Path
from stairwell.cli import main
from stairwell.experiments import demo

whole, tiny = demo.contender, {tiny!r}
demo.contender = lambda core, updates: whole(core, updates).with_options(tiny)
sys.argv = ["stairwell", "reproduce", "demo", "--out", "demo", "--updates", "{updates}"]
main()
"""


def begin(folder: Path, updates: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DEMO.format(tiny=TINY, updates=updates)], cwd=folder, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def test_ctrl_c_stops_all_and_saves_all(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    process = begin(tmp_path, 100_000)
    request.addfinalizer(lambda: process.poll() is None and process.send_signal(signal.SIGINT))  # nobody trains on
    runs = [Run(tmp_path / "demo" / core) for core in demo.NAMES]
    give_up = time.monotonic() + PATIENCE
    while not all(run.metrics() for run in runs):
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and out == "", err
    line = err.strip().splitlines()[-1]
    for name in demo.NAMES.values():
        assert f"{name} stopped and saved at update " in line
    assert line.endswith("the same command again goes on from there")
    assert all(run.newest_step > 0 for run in runs)
    assert "Traceback" not in err


def test_trainings_whose_demo_was_killed_save_and_end(tmp_path: Path) -> None:
    process = begin(tmp_path, 100_000)
    runs = [Run(tmp_path / "demo" / core) for core in demo.NAMES]
    give_up = time.monotonic() + PATIENCE
    while not all(run.metrics() for run in runs):
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.05)
    process.kill()
    process.wait()
    while not all(run.newest_step > 0 for run in runs):
        assert time.monotonic() < give_up, "nobody noticed"
        time.sleep(0.05)


def test_the_transformers_published_trainings_stand_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "% with it" in demo.fairness()
    title = "test error (%)"
    rows = [
        # By validation the first seed is the best; by the test split it would be the second.
        {"model": "Transformer-XL", "seeds": [0, 1], "measured": {title: [84.0, 80.0]}, "best": {title: 84.0}},
        {"model": "Transformer-XL, no curriculum", "seeds": [0], "measured": {title: [86.5]}, "best": {title: 86.5}},
        {"model": "Feedback", "seeds": [], "measured": {title: []}, "best": {}},
    ]
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(demo, "PUBLISHED", file)
    assert demo.fairness().endswith("its best seed by validation has 16.0% with it and 13.5% without it.")
    file.write_text(json.dumps({"rows": rows[:1]}))
    assert demo.fairness().endswith("16.0% with it; a training without it is not published yet.")


def test_the_live_display_has_a_panel_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    models = dict.fromkeys(demo.NAMES.values(), 100)
    shown = display.Together(models)
    record = {"step": 20, "tokens": 80, "seconds": 2.0, "loss": 1.5, "accuracy": 40.0, "tokens_per_second": 40.0}
    for name in models:
        shown({"event": "metrics", "model": name, **record})
        shown({"event": "metrics", "model": name, **record, "step": 40, "accuracy": 60.0})
    shown({"event": "stopping"})
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(shown.panel())
    text = console.export_text()
    assert text.index("Feedback") < text.index("Transformer-XL") < text.index("once more to stop at once")
    assert text.count("40/100") == text.count("accuracy 60.0%") == len(models)
    assert len(text.splitlines()) <= 24, "it fits a terminal"


def test_lines_say_whose_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = display.NamedLines({"Feedback": 100, "Transformer-XL": 100})
    shown({"event": "metrics", "model": "Feedback", "step": 20, "loss": 1.5, "tokens_per_second": 40.0})
    assert capsys.readouterr().err.splitlines() == [
        "Feedback and Transformer-XL train side by side",
        "Feedback         update 20/100  loss 1.5000, 40 tokens/s",
    ]
