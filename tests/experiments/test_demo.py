"""The demo compares models fairly, trains them side by side, stops cleanly and does not train twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from stairwell.experiments.papers import find_experiments
from stairwell.experiments.papers.demo import LENGTH, STOPPING_THRESHOLD
from tests.commands import stairwell

ROOT = Path(__file__).parents[2]
TINY = [
    "--train.batch", "4", "--train.valid_batch", "10", "--task.valid_episodes", "10", "--task.test_episodes", "50",
    "--core.width", "8", "--core.layers", "1", "--train.checkpoint_every", "0", "--train.validate_every", "20",
]  # fmt: skip
DEMO = ["reproduce", "demo", "--out", "demo", *TINY, "--steps", "40"]


def test_all_models_get_the_same_data_and_the_transformer_attends_to_a_whole_episode() -> None:
    (demo,) = find_experiments("demo", "laptop")
    feedback, staircase, transformer = (variant.config for variant in demo.variants)
    assert feedback.train == staircase.train == transformer.train
    assert feedback.task == staircase.task == transformer.task
    assert transformer.core.memory > LENGTH > feedback.core.memory
    assert staircase.core.chunk * staircase.core.passes - 1 == feedback.core.memory
    assert feedback.train.curriculum == f"length=8..{LENGTH}"
    assert feedback.train.stopping_threshold == STOPPING_THRESHOLD


def test_all_models_train_at_once_and_are_not_trained_twice(tmp_path: Path) -> None:
    first = stairwell(tmp_path, *DEMO)
    assert first.status == 0 and "Feedback, seed 0 and Cached Staircase, seed 0 and Transformer-XL, seed 0" in first.err
    assert first.out.endswith("report: demo/report.html\ninteractive page: demo/drive.html\n"), first.out
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert [variant["paper"] for variant in result["variants"]] == [
        {"test accuracy (%)": number} for number in ("100", "99.9 (400 actions, C=4)", "68")
    ]
    assert "68" in first.out and "Transformer-XL" in first.out
    page = (tmp_path / "demo" / "drive.html").read_text(encoding="utf-8")
    assert 'id="parameters-0"' in page and 'id="parameters-2"' in page
    models = {path: path.stat().st_mtime_ns for path in tmp_path.glob("demo/*/seed-0/model.safetensors")}
    assert len(models) == 3
    assert stairwell(tmp_path, *DEMO).status == 0
    assert {path: path.stat().st_mtime_ns for path in models} == models
    # A finished folder rejects options that it was not trained with.
    assert "is trained already (engine: auto)" in stairwell(tmp_path, *DEMO, "--engine", "reference").error_line
    assert "is a run with another config" in stairwell(tmp_path, *DEMO, "--train.warmup", "7").error_line


def test_one_model_alone_is_trained_and_reported(tmp_path: Path) -> None:
    ended = stairwell(tmp_path, *DEMO, "--only", "Transformer-XL", "--quiet")
    assert ended.status == 0, ended
    assert {path.parts[-3] for path in tmp_path.glob("demo/*/*/result.json")} == {"transformer-xl"}
    assert (tmp_path / "demo" / "drive.html").exists()


def test_it_does_not_exist_at_paper_scale(tmp_path: Path) -> None:
    assert (
        "demo does not exist at paper scale" in stairwell(tmp_path, "reproduce", "demo", "--scale", "paper").error_line
    )


def test_ctrl_c_stops_all_models_saved_and_the_same_command_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stairwell", *DEMO[:-1], "100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    started: set[str] = set()
    while len(started) < 3:  # every model has logged a line
        line = process.stderr.readline()
        assert line, "it ended early"
        started |= {
            name for name in ("Feedback", "Cached", "Transformer-XL") if line.startswith(name) and "/100" in line
        }
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and errors.strip().endswith("the same command resumes"), errors
    assert len({path.parent for path in tmp_path.glob("demo/*/seed-0/checkpoints/*.safetensors")}) == 3
