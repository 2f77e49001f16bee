"""Published results keep the learning curves of all their runs, also of runs that were measured at other times."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from stairwell.report import plots
from stairwell.runs.run import Run
from tools import learning_curves, publish

NAME = "feedback.table1.random-walk"
BEFORE = publish.published()[NAME, "laptop"]


def write_metrics(run: Path, records: list[dict[str, Any]]) -> Run:
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return Run(run)


def line(step: int, **scores: Any) -> dict[str, Any]:
    return {"step": step, "tokens": 10 * step, "seconds": step / 2, **scores}


def test_curves_are_means_of_training_and_points_of_validation(tmp_path: Path) -> None:
    records = [line(step, loss=step / 3, accuracy=float(step)) for step in range(1, 241)]
    records += [line(step, valid={"loss": 1.0, "accuracy": step + 0.123456}) for step in range(2, 242, 2)]
    curves = learning_curves.read(write_metrics(tmp_path / "run", records), "accuracy")
    assert curves is not None
    train, valid = curves["train"], curves["valid"]
    assert len(train["tokens"]) == len(valid["tokens"]) == learning_curves.POINTS
    assert train["value"][:2] == [2.5, 6.5] and train["tokens"][:2] == [40, 80] and train["seconds"][-1] == 120
    assert valid["tokens"][-1] == 2400 and valid["value"][-1] == 240.1 and valid["value"][0] == 4.123


@pytest.mark.parametrize(
    ("metric", "expected"), [("bits_per_character", 2.0), ("perplexity", 4.0), ("return", None), ("loss", 1.386)]
)
def test_the_training_curve_of_a_language_model_follows_its_loss(
    tmp_path: Path, metric: str, expected: float | None
) -> None:
    run = write_metrics(tmp_path / "run", [line(1, loss=math.log(4)), line(2, valid={metric: 3.0})])
    curves = learning_curves.read(run, metric)
    assert curves is not None and curves["valid"]["value"] == [3.0]
    assert curves["train"]["value"] == ([] if expected is None else [expected])


def test_missing_and_infinite_values_are_gaps(tmp_path: Path) -> None:
    assert learning_curves.read(write_metrics(tmp_path / "empty", []), "loss") is None
    records = [line(1, loss=math.nan), line(2, loss=2.0), line(3, valid={"loss": math.inf}), line(4, valid={"loss": 1})]
    curves = learning_curves.read(write_metrics(tmp_path / "run", records), "loss")
    assert curves is not None and curves["train"]["value"] == [None, 2.0] and curves["valid"]["value"] == [None, 1.0]


def test_lists_of_numbers_are_on_one_line() -> None:
    value = {"a": [1, None, 2.5e-3, -4], "b": [["x"], [1, 2]], "c": [], "d": 'say "[1,\n 2]"'}
    text = learning_curves.compact(json.dumps(value, indent=1))
    assert json.loads(text) == value
    assert '"a": [1, null, 0.0025, -4]' in text and "[1, 2]" in text


def folder_of(tmp_path: Path, model: str, seed: int) -> Path:
    """Write the folder of a reproduced experiment in which only one seed of one model was trained, under the name that
    models had at an earlier commit."""
    result = copy.deepcopy(BEFORE)
    for variant in result["variants"]:
        trained = variant["name"] == model
        for name in ("seeds", "commits", "valid", "seconds", "stages"):
            variant[name] = variant[name][:1] if trained else []
        variant["measured"] = {title: values[: int(trained)] for title, values in variant["measured"].items()}
        if trained:
            variant |= {"seeds": [seed], "commits": ["new"]}
    tmp_path.mkdir()
    (tmp_path / "result.json").write_text(json.dumps(result))
    records = [line(step, loss=1.0, accuracy=50.0 + step) for step in range(1, 200)]
    records += [line(step, valid={"accuracy": 50.0 + step}) for step in range(20, 200, 20)]
    write_metrics(tmp_path / publish.folder_name(model) / f"seed-{seed}", records)
    return tmp_path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RESULTS", "PICTURES"):
        monkeypatch.setattr(publish, name, tmp_path / name)
        (tmp_path / name).mkdir()
    (tmp_path / "RESULTS" / f"{NAME}-laptop.json").write_text(json.dumps(BEFORE))
    return tmp_path


def test_runs_of_several_commands_share_one_figure(project: Path) -> None:
    publish.publish(folder_of(project / "one", "Feedback", 7), "agrees", "Agrees.", add=True)
    publish.publish(folder_of(project / "two", "Transformer", 8), "agrees", "Agrees.", add=True)
    result = publish.published()[NAME, "laptop"]
    stored = {
        variant["name"]: [
            seed for seed, curves in zip(variant["seeds"], learning_curves.of_seeds(variant)) if curves is not None
        ]
        for variant in result["variants"]
    }
    assert stored == {"LSTM": [], "LSTM, learning rate 0.01": [], "Transformer": [8], "Feedback": [7]}
    assert learning_curves.missing(result) == [
        "LSTM, learning rate 0.01", "Transformer (seeds 0, 1, 2)", "Feedback (seeds 0, 1, 2)"
    ]  # fmt: skip
    note = publish.curves_note(result)
    assert note.startswith(publish.CURVES) and "last command" not in note and "Without recorded curves: LSTM," in note
    one = json.dumps(result["variants"][-1]["curves"][-1])
    assert len(one) < 2500 and (project / "RESULTS" / f"{NAME}-laptop.json").stat().st_size < 25_000
    publish.draw_pictures()
    with Image.open(project / "PICTURES" / f"{NAME}-laptop.png") as picture:
        assert picture.width >= 1000
    assert (project / "PICTURES" / f"{NAME}-laptop.png").stat().st_size < 60_000


def test_the_figure_has_the_models_of_the_result_and_a_title(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(learning_curves, "write_png", lambda path, runs, title: drawn.update(runs=runs, title=title))
    publish.publish(folder_of(project / "one", "Feedback", 7), "agrees", "Agrees.", add=True)
    result = publish.published()[NAME, "laptop"]
    learning_curves.draw(project / "out.png", result, publish.title_of(result))
    assert drawn["title"] == "Random walk of 100 actions: the agent's position (laptop scale)"
    (run,) = drawn["runs"]
    assert (run.name, run.core, run.metric, run.unit, run.seed) == ("Feedback", "feedback", "accuracy", "tokens", 7)
    assert len(run.curves.of("accuracy")) == len(run.curves.tokens) <= learning_curves.POINTS
    assert run.validations[-1].scores == {"accuracy": 230.0} and run.validations[-1].tokens == 1800


def test_a_figure_states_its_title_and_units(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save_png", lambda path, figure: figures.append(figure))
    publish.publish(folder_of(project / "one", "Feedback", 7), "agrees", "Agrees.", add=True)
    learning_curves.draw(project / "out.png", publish.published()[NAME, "laptop"], "A title")
    (figure,) = figures
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "A title"
    assert [text.get_text() for text in legend.get_texts()] == ["Feedback"]
    left, right = figure.axes
    assert (left.get_ylabel(), left.get_xlabel()) == ("accuracy, %", "million tokens trained on")
    assert right.get_xlabel() == "training time, seconds"


def test_a_result_against_the_claim_states_the_most_likely_reason(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(project / "one", "Feedback", 7)
    with pytest.raises(SystemExit, match='needs --note "Most likely reason: '):
        publish.publish(folder, "does not agree", "Does not agree: x.", add=True)
    path = project / "RESULTS" / f"{NAME}-laptop.json"
    path.write_text(json.dumps({**BEFORE, "notes": [*BEFORE["notes"], "Tried by hand."]}))
    note = "Most likely reason: y. extra.z tests it."
    publish.publish(folder, "does not agree", "Does not agree: x.", add=True, notes=[note])
    assert publish.published()[NAME, "laptop"]["notes"] == [*BEFORE["notes"], note]
    assert capsys.readouterr().out == "not kept, --note adds it again: Tried by hand.\n"


@pytest.mark.parametrize("name", [name for name, result in publish.published().items()], ids="-".join)
def test_published_verdicts_start_with_their_outcome(name: tuple[str, str]) -> None:
    result = publish.published()[name]
    if result["outcome"] == "does not agree":
        assert any(note.startswith(publish.REASON) for note in result["notes"])
    starts = {"agrees": "Agrees", "partly": "Partly", "does not agree": "Does not agree"}
    for outcome, start in starts.items():
        assert result["verdict"].startswith(start) == (outcome == result["outcome"])


@pytest.mark.parametrize("name", ["figure4.maze", "figure6.maze-easy", "figure6.water-maze"])
def test_agents_without_last_action_and_reward_are_named_in_the_matrix(name: str) -> None:
    result = publish.published()[f"feedback.{name}", "laptop"]
    without = not any(variant["config"]["model"]["last_reward"] for variant in result["variants"])
    assert ("do not observe their last action and reward" in publish.first_sentence(result)) == without


def test_only_pages_without_stored_curves_name_the_last_command() -> None:
    for (name, scale), result in publish.published().items():
        page = (publish.PAGES / f"{name}-{scale}.md").read_text(encoding="utf-8")
        pictured = (publish.PICTURES / f"{name}-{scale}.png").exists()
        assert ("models of the last command" in " ".join(page.split())) == (
            pictured and not publish.has_drawn_curves(result)
        )


def test_a_staircase_measured_under_an_earlier_name_has_the_present_one(tmp_path: Path) -> None:
    assert publish.present_name("Cached Staircase, N = 17, C = 1") == "Cached Staircase (C=1, N=17)"
    assert publish.present_name("Staircase (C=8, N=2)") == "Staircase (C=8, N=2)"
    feedback = next(variant for variant in BEFORE["variants"] if variant["name"] == "Feedback")
    older = {**feedback, "name": "Staircase, N = 2, C = 8", "seeds": [3]}
    write_metrics(tmp_path / "staircase-n-2-c-8" / "seed-3", [line(1, loss=1.0, accuracy=50.0)])
    now = publish.with_curves(tmp_path, older)
    assert now["name"] == "Staircase (C=8, N=2)" and now["curves"][0]["train"]["value"] == [50.0]


def test_younger_options_with_their_defaults_do_not_keep_results_apart() -> None:
    feedback = next(variant for variant in BEFORE["variants"] if variant["name"] == "Feedback")
    younger = copy.deepcopy(feedback["config"])
    younger["core"]["scaled_init"] = False
    assert publish.changed_options(feedback["config"], younger, "Feedback") == {}
    younger["core"]["scaled_init"] = True
    younger["train"]["steps"] += 1
    assert publish.changed_options(feedback["config"], younger, "Feedback") == {
        "core.scaled_init": (None, True), "train.steps": (4000, 4001)
    }  # fmt: skip


def test_a_page_says_which_options_changed_since_a_result_was_measured() -> None:
    older = copy.deepcopy(BEFORE)
    assert publish.changed_since(older) == []
    older["variants"][-1]["config"]["train"]["max_grad_norm"] = 0.7
    (sentence,) = publish.changed_since(older)
    assert sentence == "The experiment has changed since. Feedback: `train.max_grad_norm` is 1.0, was 0.7."
    assert f"- {sentence}" in publish.experiment_page(older)
    older["variants"][-1]["name"] = "Another"
    assert publish.changed_since(older)[0].endswith("Another: not in the experiment any more.")
