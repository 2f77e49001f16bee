"""Reports: the data that `gather` reads from a run folder, the self-contained page, tables and sentences."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.errors import UserError
from stairwell.report import (
    RunReport,
    Table,
    differences,
    gather,
    summary,
    summary_sentence,
    write_html,
    write_png,
)
from stairwell.report.collect import command
from stairwell.report.page import SCRIPTS, check_report
from stairwell.report.samples import DecodedSample
from stairwell.report.templates import resource
from stairwell.runs.config import format_option
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from stairwell.runs.presets import preset
from stairwell.runs.run import Run
from stairwell.tasks.random_walk import ACTIONS, trajectory
from tests.export.test_page import BROWSER, open_page

UNSAFE = '</script><script>alert("x")</script> & <b>bold</b> {{ title }}'
VOID = {"meta", "br", "input", "link", "img", "hr"}
TINY = {
    "core.width": "16",
    "train.steps": "4",
    "train.batch": "4",
    "train.segment": "9",
    "train.log_every": "1",
    "train.validate_every": "2",
    "train.valid_batch": "2",
}
SMALL_WALK = {**TINY, "task.length": "8", "task.grid": "3", "task.valid_episodes": "4", "task.test_episodes": "40"}


def train(folder: Path, name: str, **options: str) -> Path:
    fit(preset(name).with_options(options), folder, "cpu")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    walk = {**SMALL_WALK, "train.curriculum": "length=4..8"}
    lengths = {"task.length": "4", "task.test_length": "8", "task.valid_episodes": "4", "task.test_episodes": "8"}
    parity = {**TINY, **lengths, "train.curriculum": ""}
    return {
        "feedback": train(root / "feedback", "random-walk/feedback", **walk),
        "lstm": train(root / "lstm", "random-walk/lstm", **walk),
        "staircase": train(root / "staircase", "parity/staircase", **parity),
    }


@pytest.fixture(scope="module")
def runs(folders: dict[str, Path]) -> dict[str, RunReport]:
    return {name: gather(folder) for name, folder in folders.items()}


class Page(HTMLParser):
    """Parse a page: open elements, links, texts and the JSON of the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.data = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.current = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"unexpected </{tag}>"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and self.current.get("id") == "data":
            self.data += data
        elif self.open[-1:] not in (["script"], ["style"]):
            self.texts.append(data)


def make_page(path: Path, runs: list[RunReport], **options: Any) -> Page:
    arguments = {"title": "A report", "tables": [summary(runs)], "notes": [], **options}
    write_html(path, runs=runs, **arguments)
    page = Page(path.read_text(encoding="utf-8"))
    assert not page.open, f"unclosed elements: {page.open}"
    return page


def test_run_report_is_json(runs: dict[str, RunReport]) -> None:
    for run in runs.values():
        json.dumps(asdict(run), allow_nan=False)


def test_curves_and_scores_are_those_of_the_run(runs: dict[str, RunReport], folders: dict[str, Path]) -> None:
    run = runs["feedback"]
    assert run.curves.tokens == [36, 72, 108, 144] and run.curves.stage == [4, 4, 4, 4]
    assert run.curves.stage_name == "length" and all(value is not None for value in run.curves.loss)
    assert [point.tokens for point in run.validations] == [72, 144]
    best = max(point.scores["accuracy"] or 0 for point in run.validations)
    assert run.score == ("valid", best)
    assert run.parameters == sum(p.numel() for p in load(folders["feedback"], "cpu")[0].parameters())
    assert [len(row) for row in run.layer_weights] == [3] and abs(sum(run.layer_weights[0]) - 1) < 1e-3


@pytest.mark.parametrize("core", ["feedback", "lstm"])
def test_walk_predictions_are_the_probabilities_of_the_model(core: str, folders: dict[str, Path]) -> None:
    model, task = load(folders[core], "cpu")
    first, second = gather(folders[core], episodes=2).walks
    tokens = next(iter(task.batches("test", 1, 27))).tokens
    with torch.no_grad():
        expected = model(tokens, model.init_state(1))[0].softmax(-1)[0]
    for episode, walk in ((1, first), (2, second)):
        own = slice(episode * 9, episode * 9 + 9)
        torch.testing.assert_close(torch.tensor(walk.probabilities) / 1000, expected[own], atol=6e-4, rtol=0)
        assert walk.answers == expected[own].argmax(-1).tolist()
        assert walk.actions == [ACTIONS[token] for token in tokens[0, own].tolist()]
        assert (walk.cells, walk.headings) == trajectory(tokens[0, own].tolist(), 3)
        assert all(abs(sum(row) - 1000) <= 9 for row in walk.probabilities)


def test_attention_by_distance(runs: dict[str, RunReport]) -> None:
    attention = runs["feedback"].attention
    assert attention is not None and attention.layers == ["layer 1", "layer 2"]
    assert (attention.first, attention.bin) == (1, 1)
    assert all(abs(sum(head) - 1) < 0.02 and len(head) == 16 for layer in attention.weights for head in layer)
    attention = runs["staircase"].attention
    assert attention is not None and attention.layers[-1] == "pass 3, layer 2" and attention.first == 0
    assert runs["lstm"].attention is None and not runs["staircase"].walks


def test_command_makes_the_same_run(folders: dict[str, Path]) -> None:
    config = preset("random-walk/feedback").with_options(
        {"core.memory": "5", "core.adaptive_span": "true", "model.adaptive": "2,3", "train.curriculum": "length=4..8"}
    )
    words = command(config, folders["feedback"]).split()
    assert words[:5] == ["stairwell", "train", "random-walk/feedback", "--out", "feedback"]
    options = dict(zip((word.removeprefix("--") for word in words[5::2]), words[6::2]))
    assert preset(config.name).with_options(options) == config


def test_page_is_self_contained(runs: dict[str, RunReport], tmp_path: Path) -> None:
    page = make_page(tmp_path / "report.html", list(runs.values()))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not page.links
    assert not re.search(r"https?://|@import|url\(", text)
    assert 'name="viewport"' in text and len(text) < 400_000


def test_page_has_tables_commands_and_walks_of_both_models(runs: dict[str, RunReport], tmp_path: Path) -> None:
    table = Table(
        "Table 1", ["model", "ours", "paper"], [["Feedback", 97.25, 100], ["LSTM", None, "68 ± 2"]], "Percent"
    )
    page = make_page(
        tmp_path / "report.html", [runs["feedback"], runs["lstm"]], tables=[table], notes=["Laptop scale."]
    )
    text = " ".join(page.texts)
    for expected in ("Table 1", "97.25", "100", "68 ± 2", "Percent", "Laptop scale.", "random-walk/lstm", "seed"):
        assert expected in text
    data = json.loads(page.data)
    assert [model["name"] for model in data["walks"][0]["models"]] == ["Feedback", "LSTM"]
    assert data["metrics"] == ["accuracy", "loss"]


def test_names_are_escaped(runs: dict[str, RunReport], tmp_path: Path) -> None:
    run = replace(runs["feedback"], name=UNSAFE, folder=UNSAFE, provenance={UNSAFE: UNSAFE}, config={UNSAFE: UNSAFE})
    table = Table(UNSAFE, [UNSAFE, "b"], [[UNSAFE, UNSAFE]], UNSAFE)
    page = make_page(tmp_path / "unsafe.html", [run], title=UNSAFE, tables=[table], notes=[UNSAFE], lead=UNSAFE)
    assert json.loads(page.data)["models"][0]["name"] == UNSAFE
    assert sum(UNSAFE in text for text in page.texts) >= 10
    assert (tmp_path / "unsafe.html").read_text(encoding="utf-8").count("<script") == 3
    assert "<" not in page.data


def test_missing_numbers_are_gaps_in_curves(folders: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders["lstm"], broken)
    bad = {"step": 5, "tokens": 180, "seconds": 9.0, "loss": math.nan, "accuracy": math.inf}
    valid = {"step": 5, "tokens": 180, "seconds": 9.0, "valid": {"loss": math.nan}, "best": False}
    with open(broken / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(bad) + "\n" + json.dumps(valid) + "\n")
        # Damaged lines are skipped.
        for record, missing in ((bad, "seconds"), (bad, "tokens"), (valid, "seconds")):
            file.write(
                json.dumps({name: value for name, value in record.items() if name != missing} | {"step": 6}) + "\n"
            )
        for name, wrong in (("seconds", "9"), ("loss", "low"), ("valid", 7)):
            file.write(json.dumps({**bad, "step": 6, name: wrong}) + "\n")
        file.write('{"step": 6, "tok')
    assert max(record["step"] for record in Run(broken).metrics()) == 5
    run = gather(broken, scores={"accuracy": math.nan})
    assert (
        run.curves.loss[-1] is None and run.curves.accuracy[-1] is None and run.validations[-1].scores["loss"] is None
    )
    page = make_page(tmp_path / "report.html", [run])
    assert json.loads(page.data)["models"][0]["runs"][0]["curves"]["loss"][-1] is None
    write_png(tmp_path / "curves.png", [run])


def test_run_without_model_and_metrics_has_a_page(folders: dict[str, Path], tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    shutil.copy(folders["feedback"] / "config.json", started)
    run = gather(started)
    assert run.parameters is None and run.score is None and summary_sentence([run]) == "There are no scores yet."
    make_page(tmp_path / "report.html", [run])
    make_page(tmp_path / "empty.html", [])
    write_png(tmp_path / "curves.png", [run])


def test_run_of_another_task_has_no_walk(runs: dict[str, RunReport], tmp_path: Path) -> None:
    page = make_page(tmp_path / "report.html", [runs["staircase"]])
    assert json.loads(page.data)["walks"] == []
    assert "Predicted position of the agent" not in " ".join(page.texts)


def test_scores_and_provenance_are_added(folders: dict[str, Path]) -> None:
    scores = {"run": "x", "split": "test", "step": 4, "accuracy": 91.5, "loss": 0.2}
    run = gather(folders["lstm"], name="Mine", scores=scores, provenance={"command": "make demo", "threads": 2})
    assert run.name == "Mine" and run.score == ("test", 91.5)
    assert run.provenance["command"] == "make demo" and "random-walk/lstm" in run.provenance["command for this run"]
    sentence = summary_sentence([run])
    assert "Mine reaches 91.5% accuracy (test)" in sentence and "training episodes" not in sentence


def test_seeds_of_a_model_share_a_table_row_and_other_configs_do_not(runs: dict[str, RunReport]) -> None:
    one = replace(runs["feedback"], scores={"test_accuracy": 90.0})
    two = replace(one, seed=1, scores={"test_accuracy": 94.0})
    assert [row[:2] for row in summary([one, two]).rows] == [["Feedback", "92.0% ± 2.8"]]
    assert "92.0% accuracy (test, means of 2 seeds)" in summary_sentence([one, two])
    wider = replace(two, folder="wider", config={**two.config, "core": {"width": 32}})
    assert [row[0] for row in summary([one, wider]).rows] == ["Feedback (feedback)", "Feedback (wider)"]


def with_option(run: RunReport, section: str, folder: str, **options: Any) -> RunReport:
    config = {**run.config, section: {**run.config[section], **options}}
    return replace(run, folder=folder, config=config, seed=options.get("seed", run.seed))


def test_runs_of_one_name_are_labeled_by_the_options_that_differ(runs: dict[str, RunReport]) -> None:
    one = runs["feedback"]
    other = with_option(one, "core", "b/long/path/seed-0", memory=7)
    memory = one.config["core"]["memory"]
    names = [f"Feedback (core.memory {memory})", "Feedback (core.memory 7)"]
    assert [row[0] for row in summary([one, other]).rows] == names
    # Another seed of the same config belongs to the same model.
    seed = with_option(other, "train", "b/long/path/seed-1", seed=1)
    assert [row[0] for row in summary([one, other, seed]).rows] == names
    # The same config and seed twice differ in their folders only; equal last parts need whole paths.
    again = replace(one, folder="copies/again")
    assert [row[0] for row in summary([one, again]).rows] == [f"Feedback ({Path(one.folder).name})", "Feedback (again)"]
    paths = [replace(one, folder=folder) for folder in ("a/seed-0", "b/seed-0")]
    assert [row[0] for row in summary(paths).rows] == ["Feedback (a/seed-0)", "Feedback (b/seed-0)"]
    assert one.provenance["folder"] == one.folder


def test_differences_are_a_short_table(runs: dict[str, RunReport]) -> None:
    one = runs["feedback"]
    other = with_option(with_option(one, "core", "other", memory=7), "train", "other", learning_rate=0.5)
    table = differences([one, other])
    assert table is not None and table.columns[0] == "option" and len(table.columns) == 3
    assert table.rows == [
        ["core.memory", f"{one.config['core']['memory']}", "7"],
        ["train.learning_rate", format_option(one.config["train"]["learning_rate"]), "0.5"],
    ]
    assert differences([one, with_option(one, "train", "seed", seed=1)]) is None and differences([one]) is None
    # Of different cores: the cores, and the options that both have.
    table = differences([one, runs["lstm"]])
    assert table is not None and table.rows[0] == ["run", "random-walk/feedback", "random-walk/lstm"]
    assert "core.memory" not in [row[0] for row in table.rows]


def test_only_the_same_split_and_task_are_compared(runs: dict[str, RunReport]) -> None:
    both = {"valid_accuracy": 80.0, "test_accuracy": 70.0}
    one, two = replace(runs["feedback"], scores=both), replace(runs["lstm"], scores={"valid_accuracy": 75.0})
    assert "Feedback reaches 80.0% accuracy, LSTM 75.0% (validation)" in summary_sentence([one, two])
    longer = replace(two, config={**two.config, "task": {"length": 400}})
    assert "LSTM" not in summary_sentence([one, longer])


def test_lower_loss_and_higher_accuracy_are_better(runs: dict[str, RunReport], tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("a book of many words\n" * 40)
    options = {**TINY, "task.path": str(tmp_path / "book.txt")}
    text = gather(train(tmp_path / "text", "lm/lstm", **options))
    assert not text.higher_is_better and runs["lstm"].higher_is_better
    low, high = replace(text, name="Low"), replace(text, name="High")
    for order in ([low, high], [high, low]):
        scored = [replace(run, scores={f"test_{run.metric}": {"Low": 1.5, "High": 2.5}[run.name]}) for run in order]
        assert ": Low reaches 1.5 bits per character, High 2.5 (test)." in summary_sentence(scored)
        walks = [replace(runs["lstm"], name=run.name, scores={"test_accuracy": run.scores["test_bits_per_character"]})
                 for run in scored]  # fmt: skip
        assert "High reaches 2.5% accuracy, Low 1.5% (test)." in summary_sentence(walks)


def test_page_has_samples_with_attention_to_the_source(runs: dict[str, RunReport], tmp_path: Path) -> None:
    plotted = DecodedSample(
        "a b", "c", "d <e>", ["a", "b", "(end)"], ["d", "<e>"], [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]
    )
    run = replace(runs["lstm"], samples=[plotted, DecodedSample("long", "reference", "generated", [], [], [])])
    page = make_page(tmp_path / "report.html", [run])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert {"d <e>", "<e> to b: 100%", "reference", "generated"} <= set(page.texts)
    assert text.count('<svg class="source-attention"') == 1 and text.count('fill-opacity="0.25"') == 2


def test_learning_curves_are_a_small_png(runs: dict[str, RunReport], tmp_path: Path) -> None:
    write_png(tmp_path / "curves.png", list(runs.values()))
    content = (tmp_path / "curves.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and 5_000 < len(content) < 150_000


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_scripts_parse(tmp_path: Path) -> None:
    script = tmp_path / "page.js"
    script.write_text("".join(map(resource, ("report/theme.js", *SCRIPTS))), encoding="utf-8")
    checked = subprocess.run(["node", "--check", str(script)], capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
def test_narrow_charts_have_no_negative_sizes(runs: dict[str, RunReport], tmp_path: Path) -> None:
    write_html(tmp_path / "page.html", "A report", list(runs.values()))
    wide = open_page(tmp_path / "page.html", "--dump-dom")
    assert wide.count('class="guide"') == 3 and 'width="-' not in wide
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (tmp_path / "narrow.html").write_text(text.replace("</head>", "<style>.chart { width: 40px }</style></head>"))
    narrow = open_page(tmp_path / "narrow.html", "--dump-dom")
    assert narrow.count('class="guide"') == 0 and 'width="-' not in narrow


@pytest.mark.parametrize("name", ["page.png", "page.horizon.png", "page.memory-2.png"])
def test_a_png_that_a_report_must_not_replace_is_an_error_before_any_work(name: str, tmp_path: Path) -> None:
    for other in ("page.memory-notes.png", "mypage.memory-1.png"):  # no report writes these
        (tmp_path / other).write_text("mine")
    check_report(tmp_path / "page.html", tmp_path / "page.png", "--out")
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name} exists and is not .*; choose another path"):
        check_report(tmp_path / "page.html", tmp_path / "page.png", "--out")
