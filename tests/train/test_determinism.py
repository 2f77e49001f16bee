"""What published results rely on: scores are of the named split and without dropout, the best seed is chosen by
validation, gradients are clipped. These tests use the public interface only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stairwell.experiments import reproduce
from stairwell.experiments.experiment import SCALES
from stairwell.experiments.measures import LargestSolved, Metric, PartialMetric
from stairwell.experiments.papers import CATALOG, find_experiments
from stairwell.runs import RunConfig, preset
from stairwell.runs.families import EvalOptions
from stairwell.runs.launch import fit
from stairwell.runs.load import evaluate_run, load
from stairwell.runs.run import Run
from stairwell.train import evaluate
from tests.commands import TINY, stairwell

pytestmark = pytest.mark.quick

# Splits of different sizes, so that the number of scored tokens identifies the split.
VALID, TEST = 4 * 5, 6 * 9
OPTIONS = {
    "task.length": "5", "task.valid_episodes": "4", "task.test_length": "9", "task.test_episodes": "6",
    "core.width": "8", "core.layers": "2", "core.heads": "2", "core.memory": "4",
    "train.batch": "4", "train.segment": "8", "train.steps": "3", "train.warmup": "0", "train.valid_batch": "2",
    "train.curriculum": "", "train.checkpoint_every": "0", "train.validate_every": "0", "train.log_every": "1",
}  # fmt: skip


def experiment(**options: str) -> RunConfig:
    return preset("parity/feedback").with_options(OPTIONS | {k.replace("__", "."): v for k, v in options.items()})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model with all types of dropout."""
    out = tmp_path_factory.mktemp("promises") / "run"
    rates = {
        "core__attention_dropout": "0.4",
        "core__relu_dropout": "0.4",
        "core__layer_drop": "0.4",
        "model__embedding_dropout": "0.4",
        "model__output_dropout": "0.4",
    }
    fit(experiment(**rates), out, "cpu")
    return out


def test_scores_are_those_of_the_named_split(run: Path) -> None:
    model, task = load(run, "cpu")
    assert evaluate(model, task, "valid", 2, 7)["scored"] == VALID
    assert evaluate(model, task, "test", 2, 7)["scored"] == TEST
    for split, size in (("valid", VALID), ("test", TEST)):
        result = evaluate_run(run, split, None, EvalOptions(2, 7), "cpu")  # type: ignore[arg-type]
        assert (result["split"], result["scored"]) == (split, size)


def test_the_command_scores_the_test_split_by_default(run: Path) -> None:
    for options, split, size in (
        ([], "test", TEST),
        (["--split", "test"], "test", TEST),
        (["--split", "valid"], "valid", VALID),
    ):
        result = json.loads(stairwell(run.parent, "eval", "run", "--json", *options).out)
        assert (result["split"], result["scored"]) == (split, size)


def test_published_columns_are_measured_on_the_split_they_name(run: Path) -> None:
    folder = Run(run)
    assert Metric("", "scored").measure(folder, "cpu", "auto") == TEST
    assert Metric("", "scored", "test").measure(folder, "cpu", "auto") == TEST
    assert Metric("", "scored", "valid").measure(folder, "cpu", "auto") == VALID
    assert Metric("", "scored", "test", {"test_length": 11}).measure(folder, "cpu", "auto") == 6 * 11
    assert PartialMetric("", "scored", "test", 10**6).measure(folder, "cpu", "auto") == TEST
    assert PartialMetric("", "scored", "valid", 10**6).measure(folder, "cpu", "auto") == VALID
    # Lengths are measured on the test split too: 3 episodes of 2 tokens have 6, of 8 tokens 24.
    for threshold, expected in ((6, 8), (7, 0)):
        reach = LargestSolved("", "test_length", (2, 8), metric="scored", threshold=threshold, episodes=3)
        assert reach.measure(folder, "cpu", "auto") == expected


@pytest.mark.parametrize("scale", SCALES)
def test_every_published_column_reads_the_split_in_its_title(scale: Any) -> None:
    """Only columns named valid or dev use the validation split."""
    splits = set()
    # Some experiments do not exist at every scale.
    for published in filter(None, (make(scale) for make in CATALOG.values())):
        for column in published.columns:
            if isinstance(column, Metric | PartialMetric):
                expected = "valid" if column.title.startswith(("valid", "dev")) else "test"
                assert column.split == expected, column
                splits.add(expected)
    assert splits == {"valid", "test"}


@pytest.mark.parametrize("name", ["parity", "random-walk", "copy", "reverse", "counting", "s5", "algorithmic"])
def test_validation_and_test_episodes_differ(name: str) -> None:
    task = preset(f"{name}/feedback").make_tasks()[0]
    # Test episodes may be longer than those of validation, so only the first tokens are compared.
    tokens = 12 if getattr(task.config, "test_length", 0) else 200  # type: ignore[attr-defined]
    valid, test = (next(iter(task.batches(split, 1, tokens))).tokens for split in ("valid", "test"))  # type: ignore[arg-type]
    assert not torch.equal(valid, test)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_evaluation_is_without_dropout_and_restores_training_mode(run: Path, split: Any) -> None:
    model, task = load(run, "cpu")
    plain = evaluate(model.eval(), task, split, 2, 7)
    assert not model.training
    assert evaluate(model.train(), task, split, 2, 7) == plain
    assert evaluate(model, task, split, 2, 7) == plain
    assert model.training


def test_validation_during_training_is_without_dropout(run: Path) -> None:
    """The scores saved with a model are those of an evaluation afterwards."""
    model, task = load(run, "cpu")
    saved = Run(run).load_model()[1]["valid"]
    again = evaluate(model, task, "valid", saved["streams"], 8)
    assert again["loss"] == pytest.approx(saved["loss"], rel=1e-6)


def write_results(out: Path, published: Any, scores: list[dict[str, float]]) -> dict[int, dict[str, Any]]:
    """Write results of all variants with these validation scores, one per seed. Return the measurements by seed."""
    measurements = {}
    for variant, seed in published.runs():
        measured = {column.title: 100.0 + seed for column in published.columns}
        result = {"parameters": 1, "tokens": 1, "seconds": 1.0, "data": "", "threads": 1, "measured": measured}
        result |= {"provenance": {"commit": "none", "threads": 1}, **scores[seed]}
        path = reproduce.run_of(out, variant, seed).path / "result.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(result))
        measurements[seed] = measured
    return measurements


@pytest.mark.parametrize(
    ("name", "options", "scores"),
    [
        (
            "staircase.table1.random-walk",
            {},
            [
                {"valid_accuracy": 40.0, "valid_loss": 0.1},
                {"valid_accuracy": 90.0, "valid_loss": 3.0},
                {"valid_accuracy": 60.0, "valid_loss": 9.0},
            ],
        ),
        (
            "feedback.figure4.translation",
            {},
            [
                {"valid_accuracy": 70.0, "valid_loss": 2.0},
                {"valid_accuracy": 60.0, "valid_loss": 1.0},
                {"valid_accuracy": 80.0, "valid_loss": 3.0},
            ],
        ),
        (
            "feedback.figure4.translation",
            {"task.primary_metric": "bleu"},
            [
                {"valid_accuracy": 70.0, "valid_loss": 1.0, "valid_bleu": 30.0},
                {"valid_accuracy": 60.0, "valid_loss": 3.0, "valid_bleu": 33.0},
                {"valid_accuracy": 80.0, "valid_loss": 2.0, "valid_bleu": 31.0},
            ],
        ),
    ],
    ids=["accuracy", "loss", "bleu"],
)
def test_the_best_seed_of_a_table_is_the_best_by_the_tasks_primary_metric(
    name: str, options: dict[str, str], scores: list[dict[str, float]], tmp_path: Path
) -> None:
    published = find_experiments(name, "laptop")[0].changed(options, seeds=3)
    measured = write_results(tmp_path, published, scores)
    summary = reproduce.summarize(published, tmp_path)
    for variant in summary["variants"]:
        assert variant["best"] == measured[1]
        assert variant["valid"] == scores
    table = reproduce.table(summary)
    column = list(table.columns).index(published.columns[0].title)
    assert {row[column + 1] for row in table.rows} == {"101"}


def test_the_best_of_several_seeds_is_the_one_with_the_best_validation(tmp_path: Path) -> None:
    """By accuracy, where higher is better, and by loss, where lower is better."""
    (tmp_path / "text.txt").write_text("a rose is a rose is a rose. " * 60)
    text = [TINY[i + j] for i in range(0, len(TINY), 2) for j in (0, 1) if not TINY[i].startswith("--task")]
    for name, options, better in (
        ("parity/lstm", TINY, max),
        ("lm/lstm", [*text, "--task.path", "text.txt", "--task.unit", "characters"], min),
    ):
        out = name.replace("/", "-")
        ended = stairwell(
            tmp_path, "train", name, *options, "--steps", "3", "--seeds", "3", "--quiet", "--json", "--out", out
        )
        assert ended.status == 0, ended
        summary = json.loads(ended.out)
        results = [json.loads((tmp_path / out / f"seed-{seed}" / "result.json").read_text()) for seed in range(3)]
        values = {result["run"]: result[summary["metric"]] for result in results}
        assert len(set(values.values())) > 1, "the seeds must differ"
        assert summary["best"] == better(values.values()) == values[summary["best_run"]]


def gradient_norms(out: Path, clip: float) -> list[float]:
    """Return the gradient norm of each step, as the optimizer gets it."""
    norms: list[float] = []

    def record(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients)))

    hook = register_optimizer_step_pre_hook(record)
    try:
        fit(experiment(train__max_grad_norm=str(clip), train__accumulate="2"), out, "cpu")
    finally:
        hook.remove()
    return norms


def test_gradients_are_clipped_to_max_grad_norm(tmp_path: Path) -> None:
    free = gradient_norms(tmp_path / "free", 0.0)
    assert len(free) == 3 and min(free) > 0.02
    bound = min(free) / 2
    assert gradient_norms(tmp_path / "clipped", bound) == pytest.approx([bound] * 3, rel=1e-4)
    assert gradient_norms(tmp_path / "loose", 10 * max(free)) == pytest.approx(free, rel=1e-6)
