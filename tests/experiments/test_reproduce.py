"""Reproducing an experiment: missing runs are trained, interrupted ones resumed, finished ones kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stairwell.experiments import reproduce
from stairwell.experiments.cost import format_duration
from stairwell.experiments.experiment import changes_text
from stairwell.experiments.papers import CATALOG, find_experiments
from stairwell.experiments.papers.staircase.shared import CHUNK
from stairwell.runs.run import Run
from tests.commands import TINY, stairwell
from tools import publish

NAME = "staircase.table1.random-walk"
OPTIONS = [*TINY, "--core.heads", "1", "--core.memory", "4", "--core.chunk", "2", "--steps", "4", "--seeds", "2"]

TWO = ["--only", "LSTM", "--only", "Feedback"]


def arguments(folder: Path, *more: str) -> list[str]:
    return ["reproduce", NAME, *OPTIONS, "--out", str(folder / "experiment"), *more]


def test_every_variant_and_seed_is_trained_and_compared_with_the_paper(tmp_path: Path) -> None:
    ended = stairwell(tmp_path, *arguments(tmp_path))
    assert ended.status == 0, ended
    result = json.loads((tmp_path / "experiment" / "result.json").read_text())
    assert [variant["name"] for variant in result["variants"]] == [
        variant.name for variant in find_experiments(NAME, "laptop")[0].variants
    ]
    for variant in result["variants"]:
        assert variant["seeds"] == [0, 1] and len(variant["measured"]["test error (%)"]) == 2
        assert variant["tokens"] == 4 * 4 * 8 and variant["steps"] == 4
        assert variant["best"]["test error (%)"] in variant["measured"]["test error (%)"]
    (transformer,) = (variant for variant in result["variants"] if variant["name"] == "Transformer-XL")
    assert transformer["paper"] == {"test error (%)": "84.1"} and "84.1" in ended.out
    assert result["provenance"]["command"].startswith("stairwell reproduce") and result["scale"] == "laptop"
    assert "Random walk" in (tmp_path / "experiment" / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "experiment" / "curves.png").stat().st_size > 1000
    assert not (tmp_path / "experiment" / "sweep.png").exists(), "its variants do not vary in a number"

    # The second time nothing is trained.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("experiment/*/*/model.safetensors")}
    assert len(before) == 2 * len(result["variants"])
    again = stairwell(tmp_path, *arguments(tmp_path, "--dry-run"))
    assert again.status == 0 and again.out.count("0 of 2") == len(result["variants"])
    again = stairwell(tmp_path, *arguments(tmp_path))
    assert again.status == 0 and {path: path.stat().st_mtime_ns for path in before} == before

    # An experiment in a neighboring folder copies runs of the same config; unreadable runs are ignored.
    config = tmp_path / "experiment" / "feedback" / "seed-0" / "config.json"
    foreign = tmp_path / "another" / "feedback" / "seed-0"
    foreign.mkdir(parents=True)
    (foreign / "result.json").write_text("{}")
    (foreign / "config.json").write_text(config.read_text().replace('"width"', '"breadth"'))
    copied = stairwell(tmp_path, *arguments(tmp_path)[:-1], str(tmp_path / "other"))
    assert copied.status == 0 and "training 1" not in copied.err
    other = json.loads((tmp_path / "other" / "result.json").read_text())
    assert [variant["measured"] for variant in other["variants"]] == [
        variant["measured"] for variant in result["variants"]
    ]


LONGER = ["reproduce", NAME, *OPTIONS, "--seeds", "1", "--steps", "12", *TWO]
MOMENTS = {
    "loading": "feedback/seed-0/.lock",
    "before the first step": "feedback/seed-0/metrics.jsonl",
    "training": "feedback/seed-0/checkpoints/step-000000005.safetensors",
    "measuring": "feedback/seed-0/result.json",
    "summarizing": "cut/result.json",
    "reporting": "cut/report.html",
}


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("uncut")
    assert stairwell(folder, *LONGER, "--out", "whole").status == 0
    return json.loads((folder / "whole" / "result.json").read_text())["variants"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_experiment_resumes_to_the_same_numbers(
    moment: str, uncut: list[dict[str, Any]], tmp_path: Path
) -> None:
    stopped = stairwell(tmp_path, *LONGER, "--out", "cut", TEST_INTERRUPT_AT=MOMENTS[moment])
    # 130: everything is saved. A run that had not started has nothing to save.
    expected = 1 if moment in ("loading", "before the first step") else 130
    assert stopped.status == expected and "the same command resumes" in stopped.err, stopped
    assert "Traceback" not in stopped.err
    assert (tmp_path / "cut" / "result.json").exists() == (moment == "reporting")
    assert stairwell(tmp_path, *LONGER, "--out", "cut").status == 0
    variants = json.loads((tmp_path / "cut" / "result.json").read_text())["variants"]
    assert {variant["name"]: len(variant["seeds"]) for variant in variants if variant["seeds"]} == {
        "LSTM": 1,
        "Feedback": 1,
    }
    assert [variant["measured"] for variant in variants] == [variant["measured"] for variant in uncut]


def test_parallel_jobs_give_the_same_numbers(tmp_path: Path) -> None:
    """Each job is a process."""
    only = [*OPTIONS, "--seeds", "1", *TWO]
    for folder, jobs in (("a/one", "1"), ("b/two", "2")):
        ended = stairwell(tmp_path, "reproduce", NAME, *only, "--out", folder, "--jobs", jobs)
        assert ended.status == 0, ended
    results = [json.loads((tmp_path / path / "result.json").read_text())["variants"] for path in ("a/one", "b/two")]
    assert [variant["measured"] for variant in results[0]] == [variant["measured"] for variant in results[1]]


def test_user_errors_are_one_line(tmp_path: Path) -> None:
    assert "there are: demo, " in stairwell(tmp_path, "reproduce", "table99").error_line
    assert "laptop or paper" in stairwell(tmp_path, "reproduce", NAME, "--scale", "huge").error_line
    for more in ((), ("--dry-run",)):
        assert (
            "no such variant; there are: LSTM, "
            in stairwell(tmp_path, *arguments(tmp_path, "--only", "GRU", *more)).error_line
        )
    assert "did you mean 'LSTM'?" in stairwell(tmp_path, *arguments(tmp_path, "--only", "LSTMs")).error_line
    assert (
        "--steps 4 and --train.steps 5 mean the same"
        in stairwell(tmp_path, *arguments(tmp_path, "--train.steps", "5")).error_line
    )
    assert stairwell(tmp_path, *arguments(tmp_path, "--seeds", "1", *TWO)).status == 0
    changed = stairwell(tmp_path, *arguments(tmp_path, "--train.warmup", "9"))
    assert "is a run with another config (train.warmup: 5 there, 9 here); choose another --out" in changed.error_line
    for option in ("--seed", "--train.seed"):
        error = stairwell(tmp_path, *arguments(tmp_path, option, "3")).error_line
        assert f"{option}: an experiment trains several seeds" in error and "--first-seed 3 --seeds 1" in error
    # A finished folder is not trained again, so another engine or device is rejected.
    again = arguments(tmp_path, "--seeds", "1", *TWO)
    assert "is trained already (engine: auto)" in stairwell(tmp_path, *again, "--engine", "reference").error_line
    assert "'warp' is not a device" in stairwell(tmp_path, *again, "--device", "warp").error_line
    assert stairwell(tmp_path, *again, "--device", "cpu", "--engine", "auto").status == 0


def test_a_single_seed_can_be_chosen(tmp_path: Path) -> None:
    one = [*LONGER[: -len(TWO)], "--only", "LSTM", "--seeds", "1", "--out", "one"]
    ended = stairwell(tmp_path, *one, "--first-seed", "3")
    assert ended.status == 0 and "seed 3\n" in ended.out, ended
    assert [path.name for path in tmp_path.glob("one/*/*")] == ["seed-3"]
    assert json.loads((tmp_path / "one/lstm/seed-3/config.json").read_text())["train"]["seed"] == 3
    lstm = json.loads((tmp_path / "one" / "result.json").read_text())["variants"][0]
    assert (lstm["name"], lstm["seeds"]) == ("LSTM", [3])
    assert "<li>Seed 3</li>" in (tmp_path / "one" / "report.html").read_text(encoding="utf-8")
    planned = stairwell(tmp_path, *one, "--seeds", "2", "--first-seed", "3", "--dry-run")
    assert "1 of 2" in planned.out, planned


def test_a_changed_experiment_is_marked_and_cannot_be_published(tmp_path: Path) -> None:
    options = [*TINY, "--core.heads", "1", "--core.memory", "4", "--core.chunk", "2", "--steps", "4", "--seeds", "1"]
    curriculum = ["--train.curriculum", "length=2..8"]
    ended = stairwell(tmp_path, "reproduce", NAME, *options, *curriculum, *TWO, "--out", "changed")
    assert ended.status == 0, ended
    result = json.loads((tmp_path / "changed" / "result.json").read_text())
    original = {variant.name: variant.config for variant in find_experiments(NAME, "laptop")[0].variants}
    steps = original["Feedback"].train.steps
    assert f"train.steps 4 (experiment: {steps:,})" in result["changed"]
    memories = [text for text in result["changed"] if text.startswith("core.memory 4 (experiment: ")]
    assert len(memories) == 1 and str(original["Feedback"].core.memory) in memories[0]
    assert not [text for text in result["changed"] if "checkpoint_every" in text or "log_every" in text]
    after_table = ended.out[ended.out.index("laptop scale; 1 seed") :]
    assert f"changed: {', '.join(result['changed'])}\n" in after_table
    assert "difficulty: LSTM at length 2 of 8; Feedback at length 2 of 8\n" in after_table
    page = (tmp_path / "changed" / "report.html").read_text(encoding="utf-8")
    assert "<li>Changed: " in page and f"train.steps 4 (experiment: {steps:,})" in page
    assert "<li>The experiment without the changes: " in page
    assert page.index("</table>") < page.index("<li>The paper concludes, which is not a result of these runs: ")
    with pytest.raises(SystemExit, match=r"is not the experiment .*; changed: .*train.steps 4"):
        publish.publish(tmp_path / "changed", "agrees", "")


def test_an_unchanged_experiment_has_no_remarks() -> None:
    (experiment,) = find_experiments(NAME, "laptop")
    for unchanged in (experiment, experiment.changed({}, 2), experiment.changed({"train.log_every": "7"})):
        assert changes_text(unchanged.variants) == []
    corpus = find_experiments("feedback.figure5", "laptop")[0].changed({"task.path": "ptb"})
    assert changes_text(corpus.variants) == [], "the experiment leaves the path of its corpus open"
    stages = list(experiment.variants[0].config.train.make_curriculum().stages)
    variant = {
        "name": "A",
        "config": experiment.variants[0].config.to_json(),
        "seeds": [0, 1],
        "stages": [stages[-1]] * 2,
    }
    assert reproduce.remarks({"changed": [], "variants": [variant]}) == []
    (text,) = reproduce.remarks({"changed": [], "variants": [{**variant, "stages": [stages[0], stages[-1]]}]})
    assert text.startswith("the curriculum did not reach the task's difficulty: A at length ")
    assert text.endswith(f" of {stages[-1]['length']} (1 of 2 seeds)")


def test_the_estimate_counts_finished_steps_and_names_its_assumptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "machine_rate", lambda device: 1e12)
    monkeypatch.setattr(reproduce, "estimate", lambda config, rate: 3600.0)
    (experiment,) = find_experiments(NAME, "laptop")
    first = experiment.variants[0]
    whole = reproduce.plan_table(experiment.changed({}, 1), tmp_path, "cpu", [first.name])
    assert "about 60 minutes left on this machine if it is idle" in whole.caption.replace("60.0", "60")
    steps = first.config.train.total_steps
    monkeypatch.setattr(Run, "newest_step", property(lambda run: steps // 2))
    half = reproduce.plan_table(experiment.changed({}, 1), tmp_path, "cpu", [first.name])
    assert "about 30 minutes left" in half.caption.replace("30.0", "30")
    early = experiment.changed({"train.stopping_threshold": "99"})
    assert "early stopping may end runs sooner" in reproduce.plan_table(early, tmp_path, "cpu", [first.name]).caption


def test_a_plan_of_some_models_lists_only_these(tmp_path: Path) -> None:
    planned = stairwell(tmp_path, *arguments(tmp_path, "--dry-run", *TWO)).out
    assert "LSTM" in planned and "Feedback" in planned and "Transformer" not in planned and "Staircase" not in planned
    # Only the parts of a table that have the model are shown.
    parts = stairwell(tmp_path, "reproduce", "staircase.table1", "--dry-run", "--only", "LSTM")
    known = {
        part.title: [variant.name for variant in part.variants]
        for part in find_experiments("staircase.table1", "laptop")
    }
    assert parts.status == 0, parts
    assert [title in " ".join(parts.out.split()) for title in known] == ["LSTM" in models for models in known.values()]


WITHOUT_EXTRAS = {"TEST_MISSING": "gymnasium,popgym,minigrid"}


@pytest.mark.parametrize("what", [(), ("experiments",)])
def test_all_experiments_are_listed_without_optional_packages(what: tuple[str, ...], tmp_path: Path) -> None:
    listed = stairwell(tmp_path, "list", *what, **WITHOUT_EXTRAS)
    assert listed.status == 0, listed
    assert set(CATALOG) <= {*listed.out.splitlines()}
    start = listed.out.index("\nextra.minigrid\n")
    entry = listed.out[start : listed.out.index("\n\n", start)]
    assert 'laptop scale no estimate without a package (pip install "gymnasium>=1.1" minigrid)' in entry
    assert listed.out.count("no estimate") == 2 * 3 + 1, "only experiments in gymnasium's environments"


def test_a_plan_without_the_package_of_an_environment_has_no_estimate(tmp_path: Path) -> None:
    planned = stairwell(tmp_path, "reproduce", "extra.minigrid", "--dry-run", **WITHOUT_EXTRAS)
    assert planned.status == 0, planned
    assert planned.out.count("no estimate") == 3 and 'pip install "gymnasium>=1.1" minigrid' in " ".join(
        planned.out.split()
    )


def test_a_missing_corpus_is_reported_before_anything_is_trained(tmp_path: Path) -> None:
    for path, wrong in (([], ""), (["--task.path", "nowhere"], "there is no file or folder nowhere; ")):
        error = stairwell(tmp_path, "reproduce", "feedback.figure5", *path).error_line
        assert error.startswith(f"stairwell: {wrong}feedback.figure5 reads ") and "--task.path must name it" in error
    assert list(tmp_path.glob("runs/*")) == []


SWEPT = "extra.chunk-passes"


def test_scores_are_plotted_against_the_number_that_variants_differ_in(tmp_path: Path) -> None:
    only = ["--only", "Staircase (C=2, N=1)", "--only", "Staircase (C=2, N=4)"]
    options = [*TINY, "--core.heads", "1", "--steps", "2", "--seeds", "2", *only, "--out", "experiment"]
    assert stairwell(tmp_path, "reproduce", SWEPT, *options).status == 0
    assert (tmp_path / "experiment" / "sweep.png").stat().st_size > 1000
    page = (tmp_path / "experiment" / "report.html").read_text(encoding="utf-8")
    result = json.loads((tmp_path / "experiment" / "result.json").read_text())
    means = {
        variant["name"][-4:-1]: sum(variant["measured"]["test error (%)"]) / 2
        for variant in result["variants"]
        if variant["seeds"]
    }
    text = f"Staircase, chunks of 2 {means['N=1']:.4g} at 1, {means['N=4']:.4g} at 4"
    assert "<h2>Sweep</h2>" in page and text in page
    assert "longest episodes at 90% accuracy (actions) against passes (recurrent steps): " in page


def swept(*scores: list[float]) -> dict[str, Any]:
    """Return a result of table 7 at paper scale in which only the first variants were run."""
    variants = find_experiments("staircase.table7", "paper")[0].variants
    titles = ["valid error (%)", "test error (%)"]
    variants = [
        {
            "name": variant.name,
            "measured": {"valid error (%)": [], "test error (%)": scores[i] if i < len(scores) else []},
            "paper": dict(zip(titles, variant.paper)),
        }
        for i, variant in enumerate(variants)
    ]
    return {"columns": titles, "variants": variants}


def test_points_have_the_measured_scores_and_the_papers_number_of_the_same_x() -> None:
    (experiment,) = find_experiments("staircase.table7", "paper")
    (panel,) = reproduce.panels(experiment, swept([90.0], [1.0], [3.0, 5.0], [7.0]))
    assert (panel.axis, panel.score, panel.series) == (
        CHUNK,
        "test error (%)",
        ["Transformer-XL", "Feedback", "Staircase"],
    )
    assert [(point.x, point.scores, point.paper) for point in panel.points] == [
        (None, (90.0,), None), (None, (1.0,), None), (8, (3.0, 5.0), 0.2), (16, (7.0,), 0.2),
    ]  # fmt: skip
    # No point of a series was run: levels alone are not plotted.
    assert reproduce.panels(experiment, swept([90.0], [1.0])) == []
    # A single point of a series is no plot either.
    assert reproduce.panels(experiment, swept([90.0], [1.0], [3.0, 5.0])) == []
    # At laptop scale the paper's numbers belong to other chunks.
    (small,) = find_experiments("staircase.table7", "laptop")
    renamed = swept([90.0], [1.0], [3.0], [4.0])
    for variant, own in zip(renamed["variants"], small.variants):
        variant["name"] = own.name
    (panel,) = reproduce.panels(small, renamed)
    assert [(point.x, point.paper) for point in panel.points] == [(None, None), (None, None), (2, None), (4, None)]


def test_a_variant_of_another_axis_is_not_a_level() -> None:
    (experiment,) = find_experiments(SWEPT, "laptop")
    variants = [
        {"name": variant.name, "measured": {"test error (%)": [1.0]}, "paper": {}} for variant in experiment.variants
    ]
    chunks, passes = reproduce.panels(experiment, {"columns": ["test error (%)"], "variants": variants})
    assert [point.x for point in chunks.points] == [1, 2, 4, 8] * 2
    assert [point.x for point in passes.points] == [4, 1, 2, 8]


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("0.2 ± 0.1", 0.2),
        ("28.3", 28.3),
        ("0.0, table 6", 0.0),
        ("-1.5", -1.5),
        ("", None),
        ("296K", None),
        ("1,147", None),
    ],
)
def test_the_number_a_paper_prints_is_read(printed: str, number: float | None) -> None:
    assert reproduce.leading_number(printed) == number


def test_published_sweeps_are_on_the_page_with_their_figures() -> None:
    shown = {f"{name}-{scale}" for (name, scale), result in publish.published().items() if publish.sweep(result)}
    assert shown >= {"feedback.figure3-laptop", "feedback.figure8-laptop", "feedback.figure9.char-ptb-laptop"}
    for name in shown:
        page = (publish.PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert f"](../pictures/{name}.sweep.png)" in page and (publish.PICTURES / f"{name}.sweep.png").exists()
        curves = f"](../pictures/{name}.png)"
        assert (curves in page) == (publish.PICTURES / f"{name}.png").exists()
        assert curves not in page or page.index(f"{name}.sweep.png") < page.index(curves), "learning curves follow"
    result = publish.published()["feedback.figure3", "laptop"]
    (panel,) = publish.sweep(result)
    assert [list(point.scores) for point in panel.points] == [
        variant["measured"]["return, test"] for variant in result["variants"]
    ]


def test_publishing_draws_sweeps_and_learning_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "PICTURES", tmp_path)
    publish.draw_pictures()
    results = publish.published()
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"{name}-{scale}.sweep.png" for (name, scale), result in results.items() if publish.sweep(result)),
        *(f"{name}-{scale}.png" for (name, scale), result in results.items() if publish.has_drawn_curves(result)),
    }


def trained(*seeds: int, model: str = "Feedback", commit: str = "a", path: str = "here") -> dict[str, Any]:
    """Return a variant of a result; seed 7 is the best in validation."""
    return {
        "name": model, "parameters": 5 if seeds else None, "tokens": 9 if seeds else None, "seeds": list(seeds),
        "commits": [commit] * len(seeds), "valid": [{"valid_loss": abs(seed - 7)} for seed in seeds],
        "seconds": [10 * seed for seed in seeds], "stages": [None] * len(seeds), "threads": [1] if seeds else [],
        "measured": {"BLEU": [f"{commit}{seed}" for seed in seeds]}, "best": {}, "paper": {},
        "config": {"name": "translation/feedback", "task": {"path": path, "max_target_length": 4}},
    }  # fmt: skip


def result_of(*variants: dict[str, Any]) -> dict[str, Any]:
    return {"experiment": "one", "columns": ["BLEU"], "variants": list(variants), "provenance": {"commit": "b"}}


def test_a_result_is_added_to_published_seeds_and_variants() -> None:
    before = result_of(trained(0, 2, 7), trained(0, model="LSTM"), trained(model="Universal"))
    now = result_of(trained(1, 2, commit="b", path="there"), trained(model="LSTM"), trained(3, model="Universal"))
    feedback, lstm, universal = (both := publish.joined(before, now))["variants"]
    assert feedback["seeds"] == [0, 1, 2, 7] and feedback["seconds"] == [0, 10, 20, 70]
    # Seed 2 was trained again: the newer result is kept.
    assert feedback["measured"] == {"BLEU": ["a0", "b1", "b2", "a7"]} and feedback["commits"] == ["a", "b", "b", "a"]
    assert feedback["best"] == {"BLEU": "a7"}
    assert (lstm["seeds"], lstm["parameters"], lstm["threads"]) == ([0], 5, [1])
    assert universal["seeds"] == [3]
    assert both["provenance"]["commit"] == "a, b"


def test_a_result_is_not_added_to_one_with_other_configs_or_columns() -> None:
    now = result_of(trained(1))
    longer = trained(0)
    longer["config"]["task"]["max_target_length"] = 5
    with pytest.raises(SystemExit, match="'Feedback' is published with another config"):
        publish.joined(result_of(longer), now)
    with pytest.raises(SystemExit, match="published with other columns"):
        publish.joined({**result_of(trained(0)), "columns": ["ROUGE"]}, now)


def test_a_published_variant_without_validation_scores_gets_no_more_seeds() -> None:
    old = {name: value for name, value in trained(0).items() if name not in ("valid", "commits")}
    before = {**result_of(old), "provenance": {"commit": "x"}}
    both = publish.joined(before, result_of(trained(), trained(1, model="LSTM")))
    variant, lstm = both["variants"]
    assert variant == {**old, "valid": [], "commits": ["x"]} and lstm["commits"] == ["a"]
    for published in (before, both):
        with pytest.raises(SystemExit, match="without its validation scores"):
            publish.joined(published, result_of(trained(1)))


def test_the_pages_of_results_are_up_to_date() -> None:
    for path, text in publish.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m tools.publish"


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "1 second"), (80, "80 seconds"), (150, "2.5 minutes")])
def test_durations_are_formatted(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words
