"""Figures of the state-tracking benchmark are drawn from results alone and show what was not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stairwell.errors import UserError
from stairwell.experiments.measures import ErrorFreeStreams, LateAccuracy
from stairwell.experiments.papers import find_experiments
from stairwell.experiments.papers.state_tracking import FIRST
from stairwell.runs import long_streams
from stairwell.runs.launch import fit
from stairwell.runs.long_streams import FILE
from stairwell.runs.presets import preset
from stairwell.runs.run import Run
from tools import state_tracking


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "lstm"
    small = {"core.width": "8", "train.batch": "4", "train.steps": "2", "train.segment": "8", "train.curriculum": ""}
    fit(preset("parity/lstm").with_options({**small, "task.valid_episodes": "4"}), folder, "cpu")
    return folder


def variant(model: str, measured: list[float], validated: float = 50.0) -> dict[str, object]:
    valid = [{"valid_accuracy": validated} for _ in measured]
    return {"name": model, "measured": {"accuracy": measured}, "valid": valid}


def test_cells_are_means_of_what_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_tracking, "RESULTS", tmp_path)
    assert state_tracking.ours() == {}
    for name in state_tracking.TASKS:
        variants = [
            variant("Feedback", [90.0, 100.0]),
            variant("Staircase (C=1, N=2)", [50.0] if name != "even-pairs" else []),
            variant("Cached Staircase (C=1, N=3)", [70.0]),
            variant("LSTM", [80.0], validated=60.0),
            variant("LSTM, one layer, learning rate 0.01", [75.0], validated=65.0),
            variant("DeltaNet, 2 products", []),
        ]
        content = {"columns": ["accuracy"], "variants": variants}
        (tmp_path / f"extra.state-tracking.{name}-laptop.json").write_text(json.dumps(content))
    cells = state_tracking.with_mean(state_tracking.ours())
    assert cells["Feedback", "parity-check"] == cells["Feedback", "mean"] == 95
    assert ("Staircase (C=1, N=2)", "mean") not in cells and ("DeltaNet", "parity-check") not in cells
    assert cells["LSTM", "mean"] == 75, "of two variants the one with the better validation"
    state_tracking.draw_table(tmp_path / "state-tracking.png")
    assert (tmp_path / "state-tracking.png").stat().st_size > 1000


def test_the_picture_of_the_readme_is_drawn_from_results(tmp_path: Path) -> None:
    state_tracking.draw_headline(tmp_path / "million-tokens.png")
    assert (tmp_path / "million-tokens.png").stat().st_size > 1000


def test_the_published_means_are_those_that_are_printed() -> None:
    printed = {"LSTM": 100, "PD-SSM": 98.8, "Gated DeltaProduct": 79.5, "xLSTM[1:1]": 72.8, "RWKV-7": 54.6}
    cells = state_tracking.with_mean(state_tracking.published())
    for model, mean in {**printed, "Transformer": 47.7}.items():
        assert cells[model, "mean"] == pytest.approx(mean, abs=0.06)


def test_long_stream_results_are_collected_and_plotted_without_their_runs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_tracking, "RESULTS", tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        state_tracking.draw_horizon(tmp_path / "horizon.png")
    column = ErrorFreeStreams("", 200, 3)
    saved_run = Run(run)
    assert LateAccuracy("").measure(saved_run, "cpu", "auto") is None
    assert column.measure(saved_run, "cpu", "auto") == 0
    measured = json.loads((run / FILE).read_text())
    late = [i for i, position in enumerate(measured["curve"]["positions"]) if position >= 20]
    wrong, scored = (sum(measured["curve"][name][i] for i in late) for name in ("wrong", "scored"))
    assert LateAccuracy("").measure(saved_run, "cpu", "auto") == pytest.approx(100 - 100 * wrong / scored)

    named = {**measured, "provenance": {**measured["provenance"], "command": f"stairwell eval {run} --horizon 200"}}
    (run / "horizon.json").write_text(json.dumps(named))
    state_tracking.collect([("LSTM", run), ("LSTM", run)])
    collected = json.loads((tmp_path / "horizon.json").read_text())["runs"]
    expected = {**measured["provenance"], "command": f"stairwell eval {run.name} --horizon 200"}  # no local path
    assert collected[0]["core"] == "lstm" and collected[0]["provenance"] == expected
    state_tracking.collect([("Another", run)], add=True)
    assert json.loads((tmp_path / "horizon.json").read_text())["runs"][:2] == collected
    state_tracking.collect([("Elsewhere", run)], add=True, stem="other")
    assert [each["name"] for each in json.loads((tmp_path / "other.json").read_text())["runs"]] == ["Elsewhere"]
    assert json.loads((tmp_path / "horizon.json").read_text())["runs"][:2] == collected
    (model,) = state_tracking.stream_models(collected)
    assert len(model.runs) == 2 and model.runs[0].horizon is not None
    state_tracking.draw_horizon(tmp_path / "horizon.png")
    assert (tmp_path / "horizon.png").stat().st_size > 1000


def test_an_interrupted_evaluation_interrupts_the_experiment(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_streams, "measure", lambda *_, **__: {"interrupted": True})
    with pytest.raises(KeyboardInterrupt):
        ErrorFreeStreams("", 200, 3).measure(Run(run), "cpu", "auto")


def test_long_stream_experiments_train_on_forty_tokens_with_a_label_at_each() -> None:
    for scale in ("laptop", "paper"):
        experiments = find_experiments("extra.long-streams", scale)  # type: ignore[arg-type]
        assert [experiment.name for experiment in experiments] == ["extra.long-streams.parity", "extra.long-streams.s5"]
        for experiment in experiments:
            names = [model for model in FIRST if scale == "laptop" or not model.endswith("learning rate 0.01")]
            if experiment.name == "extra.long-streams.parity":  # parity does not need four products
                names = [model for model in names if "4 products" not in model]
            assert [variant.name for variant in experiment.variants] == names
            for variant in experiment.variants:
                assert (variant.config.task.length, variant.config.task.label) == (40, "every")
