"""Training on pairs: a tiny language pair is learned; resuming, processes, accumulation and averaging."""

from __future__ import annotations

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import FeedbackConfig
from stairwell.errors import UserError
from stairwell.models import IGNORE_INDEX, Seq2Seq, Seq2SeqConfig
from stairwell.runs.launch import new_run, train
from stairwell.runs.load import evaluate_run, load
from stairwell.tasks.pair_task import PairBatch
from stairwell.tasks.translation import TranslationConfig
from stairwell.tensor_files import load_tensors
from stairwell.train.pair_objective import PairCrossEntropy, PairValidation, pair_loss
from tests import language_pair
from tests.commands import assert_same_tensors, newest_step, read_metrics, stairwell, start_command
from tests.train.test_distributed import CLOSE, run_two


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path / "cache"))


def options(folder: Path, core: str = "feedback") -> list[str]:
    path = language_pair.write(folder / "data")
    return [f"translation/{core}", "--task.path", str(path), *language_pair.TINY, "--quiet"]


def option_values(folder: Path) -> dict[str, str]:
    arguments = options(folder)[1:-1]
    return dict(zip((name.removeprefix("--") for name in arguments[::2]), arguments[1::2]))


def short_run(folder: Path) -> list[str]:
    return [*options(folder), "--train.validate_every", "8", "--train.checkpoint_every", "5", "--train.log_every", "1"]


def environment(folder: Path) -> dict[str, str]:
    return {"STAIRWELL_CACHE": str(folder / "cache")}


def test_a_language_pair_is_learned_in_seconds(tmp_path: Path) -> None:
    named = {**option_values(tmp_path), "train.steps": "500"}
    train(*new_run("translation/feedback", None, tmp_path / "run", named), resume=False, device="cpu")
    scores = evaluate_run(tmp_path / "run", "test", device="cpu")
    assert scores["bleu"] > 90 and scores["chrf++"] > 90 and scores["loss"] < 0.5 and scores["sentences"] == 40
    assert "tok:13a" in scores["signature_cased"]
    # Validation decodes the sources and compares with the targets. The two languages share no word.
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [line["valid"] for line in lines if "valid" in line][-1]["bleu"] > 50


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    more = ["--model.embedding_dropout", "0.2", "--core.residual_dropout", "0.1", "--train.average", "2"]
    arguments = [*short_run(tmp_path), *more, "--steps", "30"]
    assert stairwell(tmp_path, "train", *arguments, "--out", "whole", **environment(tmp_path)).status == 0
    command = start_command(tmp_path, "train", *arguments, "--out", "run", TEST_WAIT_AT="12", **environment(tmp_path))
    assert command.wait_until(lambda: newest_step(tmp_path / "run") >= 12)
    command.kill(signal.SIGKILL)
    assert command.wait().status == -signal.SIGKILL
    resumed = stairwell(tmp_path, "train", "--resume", "--quiet", "--out", "run", **environment(tmp_path))
    assert resumed.status == 0, resumed
    assert_same_tensors(tmp_path / "run", tmp_path / "whole")
    assert read_metrics(tmp_path / "run") == read_metrics(tmp_path / "whole")


def test_two_processes_equal_one(tmp_path: Path) -> None:
    arguments = [*short_run(tmp_path), "--train.batch", "6", "--train.label_smoothing", "0.1", "--steps", "12"]
    assert stairwell(tmp_path, "train", *arguments, "--out", "one", **environment(tmp_path)).status == 0
    run_two(tmp_path, "train", *arguments, "--out", "two")
    for a, b in zip(read_metrics(tmp_path / "two"), read_metrics(tmp_path / "one"), strict=True):
        assert a.keys() == b.keys() and a["tokens"] == b["tokens"]
        if "loss" in a:
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    (a, _), (b, _) = (load_tensors(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    torch.testing.assert_close(a, b, **CLOSE)


def test_validation_is_without_dropout_and_restores_training_mode(tmp_path: Path) -> None:
    dropout = {"model.embedding_dropout": "0.5", "core.residual_dropout": "0.5", "model.encoder_dropout": "0.5"}
    config, _ = new_run("translation/feedback", None, tmp_path / "run", {**option_values(tmp_path), **dropout})
    task = config.make_tasks()[0]
    model = config.make_model(task)
    scores = [pair_loss(model.train(training), task, "valid") for training in (False, True)]
    assert scores[0] == scores[1] and model.training


def test_gradient_accumulation_changes_nothing(tmp_path: Path) -> None:
    arguments = [*short_run(tmp_path), "--steps", "6"]
    for out, parts in (("one", 1), ("four", 4)):
        more = ("--train.accumulate", parts, "--out", out)
        assert stairwell(tmp_path, "train", *arguments, *more, **environment(tmp_path)).status == 0
    (a, _), (b, _) = (load_tensors(tmp_path / name / "model.safetensors") for name in ("four", "one"))
    torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("which", ["last", "best"])
def test_models_of_several_validations_are_averaged(tmp_path: Path, which: str) -> None:
    arguments = [
        *short_run(tmp_path),
        "--steps",
        "24",
        "--train.average",
        "2",
        "--train.average_of",
        which,
        "--out",
        "run",
    ]
    assert stairwell(tmp_path, "train", *arguments, **environment(tmp_path)).status == 0
    paths = sorted((tmp_path / "run/snapshots").glob("*.safetensors"))
    assert [int(path.stem.split("-")[1]) for path in paths] == [16, 24], "the loss falls, so the best are the last"
    validations = [record for record in read_metrics(tmp_path / "run") if "valid" in record]
    assert validations[-1]["averaged"] == 2
    model, task = load(tmp_path / "run", "cpu")
    snapshots = [load_tensors(path)[0] for path in paths]
    mean = {name: (snapshots[0][name] + snapshots[1][name]) / 2 for name in snapshots[0]}
    saved, note = load_tensors(tmp_path / "run/model.safetensors")
    best = min(record["valid"]["loss"] for record in validations)
    assert note["valid"]["loss"] == best
    if validations[-1]["best"]:
        torch.testing.assert_close(saved, mean)
    else:
        torch.testing.assert_close(saved, snapshots[1])
    model.load_state_dict(mean)
    assert pair_loss(model, task, "valid")["loss"] == pytest.approx(validations[-1]["valid"]["loss"])


def test_bleu_as_primary_metric_stops_a_run_early(tmp_path: Path) -> None:
    more = ["--task.primary_metric", "bleu", "--train.validate_every", "2", "--train.patience", "2", "--steps", "60"]
    arguments = [*options(tmp_path), *more, "--train.learning_rate", "1e-9", "--train.average", "0", "--out", "run"]
    ended = stairwell(tmp_path, "train", *arguments, **environment(tmp_path))
    assert ended.status == 0, ended
    # The loss decides between equal scores, and it improves for a while even at this learning rate.
    assert 6 <= newest_step(tmp_path / "run") < 60


@pytest.mark.parametrize("core", ["transformer-xl", "staircase", "lstm", "deltanet"])
def test_every_core_translates(tmp_path: Path, core: str) -> None:
    arguments = options(tmp_path, core)
    names = {"lstm": ("width", "layers"), "deltanet": ("width", "layers", "heads")}.get(core)
    if names is not None:
        pairs = zip(arguments[1:-1:2], arguments[2:-1:2])
        chosen = [(n, v) for n, v in pairs if not n.startswith("--core.") or n.removeprefix("--core.") in names]
        arguments = [arguments[0], *(word for pair in chosen for word in pair), "--quiet"]
    ended = stairwell(tmp_path, "train", *arguments, "--steps", 3, "--out", "run", **environment(tmp_path))
    assert ended.status == 0, ended
    ended = stairwell(tmp_path, "translate", "run", str(tmp_path / "data/val.xx"), **environment(tmp_path))
    assert ended.status == 0 and ended.out.count("\n") == 40


def test_options_of_pairs_are_rejected_elsewhere(tmp_path: Path) -> None:
    ended = stairwell(tmp_path, "train", "parity/lstm", "--train.label_smoothing", "0.1", "--out", "run")
    assert "train.label_smoothing" in ended.error_line


def test_metrics_are_sums_over_all_terms(tmp_path: Path) -> None:
    from tests.tasks.test_pair_task import translation

    task = translation(language_pair.write(tmp_path / "data"))
    from tests.models.test_seq2seq import make

    model: Seq2Seq = make("feedback", sources=task.inputs, targets=task.outputs)
    objective = PairCrossEntropy(model, 0.1).eval()
    batch: Any = task.batch_source(range(8), 8, 0, tokens=200).read(1)
    outcome = objective(batch)
    assert float(outcome.metrics["nll"]) / batch.terms == pytest.approx(math.log(task.outputs), rel=1)
    assert 0 <= int(outcome.metrics["correct"]) <= batch.terms < batch.tokens.numel() + 1


def pair_objective() -> PairCrossEntropy:
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        core=FeedbackConfig(width=8, heads=2, layers=2, memory=3),
        sources=7,
        targets=7,
        encoder_layers=1,
        encoder_heads=2,
    )
    return PairCrossEntropy(Seq2Seq(config))


def test_a_dry_run_of_pairs_works() -> None:
    pair_objective().dry_run()


def test_correct_target_tokens_are_counted() -> None:
    objective = pair_objective()
    source, tokens = torch.randint(7, (2, 4)), torch.randint(7, (2, 3))
    state = objective.model.init_state(2, source)
    targets = objective.model(tokens, state)[0].argmax(-1)
    targets[0, 0] = (targets[0, 0] + 1) % 7
    targets[1, 2] = IGNORE_INDEX
    outcome = objective(PairBatch(source, torch.ones(2, 4, dtype=torch.bool), tokens, targets))
    assert int(outcome.metrics["correct"]) == 4


@pytest.mark.parametrize("primary_metric", ["loss", "bleu"])
def test_a_missing_scorer_of_the_primary_metric_is_rejected_at_the_start(
    primary_metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setattr("stairwell.tasks.text_scores.installed", lambda name: False)
    config = TranslationConfig(primary_metric=primary_metric)  # type: ignore[arg-type]
    task: Any = type(
        "Task", (), {"primary_metric": primary_metric, "higher_is_better": True, "metric": "bleu", "config": config}
    )()
    if primary_metric == "loss":
        assert PairValidation(task).examples == 0
        return
    with pytest.raises(UserError, match="sacrebleu is not installed"):
        PairValidation(task)
