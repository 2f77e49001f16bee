"""Runs and results written before version 0.2 are converted: one run per family gives the scores it had."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stairwell.runs.families import FAMILIES, EvalOptions
from stairwell.runs.load import config_of, evaluate_run
from stairwell.runs.run import Run
from tools.convert_run import SCORES, convert, convert_config

OLD = Path(__file__).with_name("old_runs")
RUNS = ("lm", "labelled", "translation", "rl", "walk")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of the old runs, which their configs name relative to the current folder."""
    for name in ("text.txt", "mine.tokens", "mine.labels"):
        shutil.copy(OLD / name, tmp_path)
    shutil.copytree(OLD / "pairs", tmp_path / "pairs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_a_converted_run_has_the_scores_it_had(name: str, folder: Path) -> None:
    convert(OLD / name, folder / "run")
    before = json.loads((OLD / f"{name}.json").read_text(encoding="utf-8"))
    options = EvalOptions(segment=64) if name == "lm" else EvalOptions()
    now = evaluate_run(Path("run"), "test", options=options, device="cpu")
    assert now["step"] == before["update"]
    for metric in set(before) - {"run", "data", "update", "split"}:
        expected = before[metric] if isinstance(before[metric], str) else pytest.approx(before[metric], rel=1e-6)
        assert now[SCORES.get(metric, metric)] == expected, metric


def test_the_families_are_all_covered(folder: Path) -> None:
    families = set()
    for name in RUNS:
        convert(OLD / name, folder / name)
        families.add(config_of(Run(folder / name)).family.name)
    assert families == set(FAMILIES)


def test_nothing_is_overwritten(folder: Path) -> None:
    convert(OLD / "walk", folder / "run")
    with pytest.raises(SystemExit, match="exists already"):
        convert(OLD / "walk", folder / "run")
    with pytest.raises(SystemExit, match="no run"):
        convert(folder / "pairs", folder / "other")


def test_a_config_from_before_the_start_embedding_has_none() -> None:
    assert convert_config({"experiment": "parity/lstm"})["model"] == {"start_embedding": False}
