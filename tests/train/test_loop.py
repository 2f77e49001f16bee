"""The trainer: determinism, learning rate and segment schedules, phases, early stopping, precision, metrics."""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import configs
from stairwell.errors import UserError
from stairwell.models import IGNORE_INDEX
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs import RunConfig, preset
from stairwell.runs.launch import summarize
from stairwell.runs.run import Run
from stairwell.runs.tensorboard import with_tensorboard
from stairwell.train import (
    Diverged,
    Interrupted,
    PairTrainConfig,
    Phase,
    StreamTrainConfig,
    Trainer,
    evaluate,
    stream_trainer,
)
from tests.commands import TINY, assert_same_tensors, read_metrics, stairwell

TRAIN = {
    "train.batch": 4, "train.segment": 8, "train.log_every": 1, "train.validate_every": 0, "train.valid_batch": 2,
    "train.warmup": 0, "train.curriculum": "", "train.steps": 6, "train.checkpoint_every": 0,
}  # fmt: skip
SMALL = {
    **TRAIN, "core.width": 8, "core.layers": 2, "task.length": 8, "task.valid_episodes": 4, "task.test_episodes": 6,
}  # fmt: skip


def experiment(name: str, **options: Any) -> RunConfig:
    given = {**SMALL, **{key.replace("__", "."): value for key, value in options.items()}}
    return preset(name).with_options({key: str(value) for key, value in given.items()})


def trainer(folder: Path, name: str = "parity/feedback", **options: Any) -> Trainer:
    made = experiment(name, **options)
    tasks = made.make_tasks()
    return stream_trainer(made.make_model(tasks[0]), tasks, made.train, Run(folder))


def task_of(trainer: Trainer) -> Any:
    return trainer.validation.task


def test_the_seed_determines_the_parameters(tmp_path: Path) -> None:
    options = ["train", "random-walk/feedback", *TINY, "--core.heads", "2", "--core.memory", "4", "--quiet"]
    options += ["--steps", "12", "--model.embedding_dropout", "0.2", "--core.attention_dropout", "0.2"]
    for out, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert stairwell(tmp_path, *options, "--seed", seed, "--out", out).status == 0
    assert_same_tensors(tmp_path / "a", tmp_path / "b")
    assert read_metrics(tmp_path / "a") == read_metrics(tmp_path / "b")
    with pytest.raises(AssertionError):
        assert_same_tensors(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("core", ["feedback", "staircase", "transformer-xl", "lstm"])
def test_gradient_accumulation_does_not_change_the_steps(core: str, tmp_path: Path) -> None:
    runs = [trainer(tmp_path / str(parts), f"parity/{core}", train__accumulate=parts) for parts in (1, 2, 4)]
    for run in runs:
        run.run()
    for run in runs[1:]:
        for (name, ours), (_, theirs) in zip(run.model.named_parameters(), runs[0].model.named_parameters()):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5, msg=lambda text, name=name: f"{name} {text}")
        for ours, theirs in zip(read_metrics(run.folder.path), read_metrics(runs[0].folder.path), strict=True):
            if "loss" in ours:
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
                assert ours["accuracy"] == theirs["accuracy"]


def test_the_loss_is_the_mean_over_scored_tokens(tmp_path: Path) -> None:
    """Most tokens of the counting task are not scored."""
    run = trainer(tmp_path, "counting/lstm", task__length=3, train__max_grad_norm=0)
    batch = task_of(run).batch_source(range(4), 4, 0).read(8)
    nll, _ = run.model.nll(batch.tokens, batch.targets, run.model.init_state(4), batch.start)
    scored = batch.targets != -100
    assert 0 < scored.sum() < scored.numel()
    expected = torch.autograd.grad(nll[scored].mean(), list(run.model.parameters()))
    run.train_step()
    for gradient, parameter in zip(expected, run.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_span_loss_is_added_once_per_step(parts: int, tmp_path: Path) -> None:
    options = {"core__adaptive_span": True, "core__memory": 5, "core__heads": 2, "core__span_loss": 0.3}
    run = trainer(tmp_path, **options, train__max_grad_norm=0, train__accumulate=parts)
    batch = task_of(run).batch_source(range(4), 4, 0).read(8)
    nll, _ = run.model.nll(batch.tokens, batch.targets, run.model.init_state(4), batch.start)
    spans = [span.ratio for span in run.model.core.spans()]
    expected = torch.autograd.grad(nll.mean() + run.model.core.span_loss(), spans)
    run.train_step()
    for gradient, span in zip(expected, spans, strict=True):
        torch.testing.assert_close(span.grad, gradient)


def test_the_state_is_kept_between_segments_and_detached(tmp_path: Path) -> None:
    run = trainer(tmp_path, "random-walk/lstm")
    run.train_step()
    assert all(int(count) == 8 for count in run.objective.states[0].count)
    run.train_step()
    assert all(int(count) == 16 for count in run.objective.states[0].count)
    assert not any(tensor.requires_grad for _, tensor in run.objective.states[0].tensors())


def test_learning_rate_schedules() -> None:
    config = StreamTrainConfig(steps=100, warmup=10, learning_rate=2.0, finetune_steps=5)
    assert [config.learning_rate_at(step) for step in (0, 4, 9, 10, 99)] == pytest.approx([0.2, 1.0, 2.0, 2.0, 2.0])
    assert config.learning_rate_at(100) == config.learning_rate_at(104) == pytest.approx(0.2)
    cosine = StreamTrainConfig(steps=110, warmup=10, learning_rate=2.0, decay="cosine")
    assert [cosine.learning_rate_at(step) for step in (4, 9, 10, 60, 110 - 1)] == pytest.approx(
        [1.0, 2.0, 2.0, 1.0, 1 + math.cos(math.pi * 0.99)]
    )
    assert StreamTrainConfig(warmup=0, learning_rate=2.0).learning_rate_at(0) == 2.0
    # Vaswani et al. 2017: linear warm-up, then the inverse square root of the step.
    root = StreamTrainConfig(steps=1000, warmup=10, learning_rate=2.0, decay="inverse-sqrt")
    assert [root.learning_rate_at(step) for step in (4, 9, 39, 89)] == pytest.approx([1.0, 2.0, 1.0, 2 / 3])
    assert StreamTrainConfig(steps=9, warmup=0, learning_rate=2.0, decay="inverse-sqrt").learning_rate_at(
        3
    ) == pytest.approx(1.0)


@pytest.mark.parametrize("decay", ["none", "cosine", "inverse-sqrt"])
@pytest.mark.parametrize("factor", [0.01, 0.1, 0.9, 1.0])
def test_the_learning_rate_never_rises_after_the_warmup(decay: Any, factor: float) -> None:
    config = StreamTrainConfig(steps=900, warmup=9, decay=decay, finetune_steps=5, finetune_lr_factor=factor)
    rates = [config.learning_rate_at(step) for step in range(config.warmup, config.total_steps)]
    assert rates == sorted(rates, reverse=True)
    if decay == "cosine":
        assert rates[-1] == pytest.approx(factor * config.learning_rate), "decay ends at the rate of fine-tuning"


def test_finetuning_does_not_raise_the_learning_rate_of_an_unfinished_warmup() -> None:
    config = StreamTrainConfig(steps=10, warmup=100, finetune_steps=5, finetune_lr_factor=0.5)
    assert config.learning_rate_at(10) == config.learning_rate_at(9) == pytest.approx(1e-4)
    with pytest.raises(ValueError, match=r"train\.finetune_lr_factor must be at most 1, not 2"):
        StreamTrainConfig(finetune_steps=5, finetune_lr_factor=2.0)


@pytest.mark.parametrize(
    "options",
    [
        {"finetune_lr_factor": 0.5}, {"average_of": "best"}, {"curriculum_accuracy": 90.0}, {"noise_every": 4},
        {"stop_when_mastered": True}, {"patience": 2, "validate_every": 0}, {"average": 2, "validate_every": 0},
    ],
)  # fmt: skip
def test_options_without_effect_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"train\.{next(iter(options))} .* has no effect; set train\."):
        StreamTrainConfig(**options)


def test_an_option_that_is_unset_takes_its_dependents_with_it() -> None:
    assert preset("algorithmic/lstm").train.curriculum_accuracy != 96
    assert preset("algorithmic/lstm").with_options({"train.curriculum": ""}).train.curriculum_accuracy == 96
    with pytest.raises(ValueError, match=r"train\.curriculum_accuracy 90\.0 has no effect"):
        preset("algorithmic/lstm").with_options({"train.curriculum": "", "train.curriculum_accuracy": "90"})


@pytest.mark.parametrize("family", [PairTrainConfig, AgentTrainConfig])
def test_options_of_another_family_are_unknown(family: Any) -> None:
    for name in ("state_noise", "size_schedule", "curriculum", "valid_tokens", "segment_warmup"):
        with pytest.raises(UserError, match=rf"unknown option --train\.{name}"):
            configs.set_fields(family(), {name: "1"}, "train")


def test_without_the_module_resource_peak_memory_is_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    blocked = "import sys; sys.modules['resource'] = sys.modules['fcntl'] = None; import stairwell.cli, stairwell.train"
    assert subprocess.run([sys.executable, "-c", blocked], cwd=Path(__file__).parents[2]).returncode == 0
    monkeypatch.setitem(sys.modules, "resource", None)
    trainer(tmp_path).run()
    assert Run(tmp_path).metrics()[0]["peak_memory"] == 0


def test_segment_warmup(tmp_path: Path) -> None:
    config = StreamTrainConfig(steps=10, segment=64, segment_warmup=16)
    assert [config.segment_at(step) for step in (0, 4, 5, 9)] == [16, 16, 64, 64]
    assert StreamTrainConfig(steps=10, segment=64).segment_at(0) == 64
    run = trainer(tmp_path, train__segment_warmup=2, train__finetune_steps=2)
    run.run()
    tokens = [record["tokens"] for record in read_metrics(tmp_path) if "loss" in record]
    assert tokens == [8, 16, 24, 56, 88, 120, 152, 184]


def test_finetuning_continues_the_stream_at_a_smaller_learning_rate(tmp_path: Path) -> None:
    run = trainer(tmp_path / "fine", train__finetune_steps=3)
    whole = trainer(tmp_path / "whole", train__steps=9)
    run.run(), whole.run()
    rates = [record["learning_rate"] for record in read_metrics(tmp_path / "fine") if "loss" in record]
    assert rates == pytest.approx([2e-3] * 6 + [2e-4] * 3)
    assert run.batch_source.position() == whole.batch_source.position()


def test_finetuning_can_read_other_data_with_the_same_vocabulary(tmp_path: Path) -> None:
    """Words without line ends first, then with them; the best model of the final phase is saved."""
    (tmp_path / "text.txt").write_text("a rose is a rose\nis a rose\n" * 60)
    options = [
        "--core.width", "8", "--core.layers", "1", "--train.batch", "2", "--train.segment", "8",
        "--train.valid_batch", "1", "--steps", "10", "--quiet", "--task.path", "text.txt", "--task.unit", "words",
        "--task.end_of_line", "false",
        "--train.finetune_steps", "6", "--train.finetune_task", "end_of_line=true", "--train.validate_every", "3",
        "--train.checkpoint_every", "4", "--train.log_every", "1", "--train.warmup", "0",
    ]  # fmt: skip
    whole = stairwell(tmp_path, "train", "lm/lstm", *options, "--out", "run", "--json")
    assert whole.status == 0, whole
    result = json.loads(whole.out)
    assert result["best_step"] > 10
    valid = [record["valid"]["scored"] for record in read_metrics(tmp_path / "run") if "valid" in record]
    assert len(set(valid[:3])) == 1 and len(set(valid[3:])) == 1 and valid[0] < valid[-1]
    scores = json.loads(stairwell(tmp_path, "eval", "run", "--split", "valid", "--json").out)
    assert scores["scored"] == valid[-1] and scores["step"] == result["best_step"]
    # Resuming in either phase changes nothing.
    config = tmp_path / "run" / "config.json"
    stopped = tmp_path / "stopped"
    assert stairwell(tmp_path, "train", "--config", config, "--out", "stopped", "--quiet").status == 0
    (stopped / "checkpoints" / "step-000000016.safetensors").unlink()
    assert stairwell(tmp_path, "train", "--resume", "--out", "stopped", "--quiet").status == 0
    assert_same_tensors(stopped, tmp_path / "run")
    assert read_metrics(stopped) == read_metrics(tmp_path / "run")


class Scores:
    """A validation that always has the same score."""

    primary_metric, higher_is_better = "score", True

    def __init__(self, score: float) -> None:
        self.score = score

    def __call__(self, model: Any, split: str) -> dict[str, float]:
        return {"score": self.score}


def test_a_threshold_ends_the_first_phase_and_finetuning_takes_all_its_steps(tmp_path: Path) -> None:
    run = trainer(
        tmp_path, train__steps=6, train__finetune_steps=4, train__stopping_threshold=50, train__validate_every=2
    )
    run.validation = Scores(60)
    run.run()
    rates = [record["learning_rate"] for record in read_metrics(tmp_path) if "loss" in record]
    assert rates == pytest.approx([2e-3] * 2 + [2e-4] * 4)
    assert run.progress.step == 10


@pytest.mark.parametrize(
    ("higher_is_better", "score", "reached"), [(True, 60, 1), (True, 40, 0), (False, 40, 1), (False, 60, 0)]
)
def test_a_threshold_is_reached_from_the_side_of_the_worse_scores(
    higher_is_better: bool, score: float, reached: bool, tmp_path: Path
) -> None:
    run = trainer(tmp_path, train__stopping_threshold=50, train__validate_every=2)
    run.validation = Scores(score)
    run.validation.higher_is_better = higher_is_better
    run.run()
    assert run.progress.step == (2 if reached else 6)


def two_phases(folder: Path, first: float, last: float, **options: Any) -> Trainer:
    """Fine-tuning on other data, with scores that cannot be compared with those before."""
    run = trainer(folder, train__finetune_steps=4, train__validate_every=2, **options)
    batch_source = run.phases[0].batch_source
    run.phases = [Phase(batch_source, Scores(first)), Phase(batch_source, Scores(last))]
    run.start_phase(0)
    return run


def test_finetuning_on_other_data_has_to_reach_the_threshold_itself(tmp_path: Path) -> None:
    run = two_phases(tmp_path, 60, 50, train__stopping_threshold=50)
    run.run()
    assert [record["step"] for record in read_metrics(tmp_path) if "loss" in record] == [1, 2, 7, 8]


@pytest.mark.parametrize("which", ["last", "best"])
def test_only_models_of_the_final_phase_are_averaged(which: str, tmp_path: Path) -> None:
    """The first phase's score is better, but it is of other data."""
    run = two_phases(tmp_path, 90, 10, train__average=5, train__average_of=which)
    run.run()
    assert [record["averaged"] for record in read_metrics(tmp_path) if "averaged" in record] == [2], "of steps 8 and 10"
    assert {8, 10} < {int(path.stem.removeprefix("step-")) for path in run.folder.snapshots()}


class Scripted:
    """A validation that returns given scores and stores the parameters of its calls."""

    primary_metric = "score"

    def __init__(self, scores: list[float], higher_is_better: bool = True) -> None:
        self.scores, self.higher_is_better = iter(scores), higher_is_better
        self.models: list[dict[str, torch.Tensor]] = []

    def __call__(self, model: Any, split: str) -> dict[str, float]:
        self.models.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {"score": next(self.scores)}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("better", [True, False])
@pytest.mark.parametrize(("which", "averaged"), [("best", (1, 2)), ("last", (2, 3))])
def test_the_average_of_the_last_or_best_models_is_saved_if_it_is_better(
    which: str, averaged: tuple[int, int], better: bool, sign: int, tmp_path: Path
) -> None:
    """Validations after steps 2, 4, 6 and 8, and one of the average."""
    run = trainer(tmp_path, train__average=2, train__average_of=which, train__steps=8, train__validate_every=2)
    run.validation = Scripted([sign * score for score in (1, 5, 4, 2, 6 if better else 3)], sign > 0)
    run.run()
    *models, mean = run.validation.models
    first, second = (models[index] for index in averaged)
    torch.testing.assert_close(mean, {name: (first[name] + second[name]) / 2 for name in mean})
    saved, note = run.folder.load_model()
    torch.testing.assert_close(saved, mean if better else models[1])
    assert note["valid"] == {"score": sign * (6 if better else 5)}
    torch.testing.assert_close(run.model.state_dict(), models[-1])  # training could continue


def test_resuming_a_finished_run_does_not_repeat_the_scores_of_its_average(tmp_path: Path) -> None:
    options: dict[str, Any] = {"train__average": 2, "train__steps": 4, "train__validate_every": 2}
    trainer(tmp_path, **options).run()
    records = [{**record, "seconds": 0} for record in read_metrics(tmp_path)]
    assert [record["step"] for record in records if "averaged" in record] == [4]
    resumed = trainer(tmp_path, **options)
    resumed.resume()
    resumed.run()
    assert [{**record, "seconds": 0} for record in read_metrics(tmp_path)] == records


def test_parameters_with_nan_are_never_saved(tmp_path: Path) -> None:
    run = trainer(tmp_path, train__checkpoint_every=2, train__log_every=100)

    def spoil(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            with torch.no_grad():
                next(run.model.parameters())[0] = torch.nan

    with pytest.raises(Diverged, match=r"at step 4; step-000000002.safetensors and the best model are kept"):
        run.run(spoil)
    assert run.folder.newest_step == 2


def test_a_run_stops_when_patience_runs_out(tmp_path: Path) -> None:
    run = trainer(tmp_path, train__validate_every=2, train__patience=3, train__steps=500, train__learning_rate=1e-12)
    run.run()
    assert run.progress.step == 8, "one best validation and three that are no better"
    records = [record for record in read_metrics(tmp_path) if "valid" in record]
    assert [record["step"] for record in records] == [2, 4, 6, 8], "no step is validated twice"
    assert [record["best"] for record in records] == [True, False, False, False]
    assert Run(tmp_path).checkpoints()[-1].stem == "step-000000008"


def test_a_mastered_curriculum_ends_the_run_if_configured(tmp_path: Path) -> None:
    run = trainer(
        tmp_path, train__curriculum="length=2..3", train__curriculum_accuracy=0, train__stop_when_mastered=True,
        train__steps=500,
    )  # fmt: skip
    run.run()
    assert run.progress.step == 40
    assert [record["stage"]["length"] for record in read_metrics(tmp_path) if "loss" in record] == [2] * 19 + [3] * 21


def test_the_saved_model_is_that_of_the_best_validation(tmp_path: Path) -> None:
    run = trainer(tmp_path, train__validate_every=1, train__learning_rate=0.3, train__steps=12, train__max_grad_norm=0)
    run.run()
    valid = {record["step"]: record["valid"] for record in read_metrics(tmp_path) if "valid" in record}
    records = {step: (scores["accuracy"], -scores["loss"]) for step, scores in valid.items()}
    best = max(records.values())
    parameters, note = Run(tmp_path).load_model()
    assert note["step"] == run.progress.best_step == min(step for step, value in records.items() if value == best)
    run.model.load_state_dict(parameters)
    assert evaluate(run.model, task_of(run), "valid", 2, 8)["accuracy"] == best[0]


@pytest.mark.parametrize("core", ["feedback", "transformer-xl", "staircase", "cached-staircase", "universal", "lstm"])
def test_evaluation_does_not_depend_on_segment_or_streams(core: str, tmp_path: Path) -> None:
    run = trainer(tmp_path, f"parity/{core}")
    run.train_step()
    sizes = ((1, 1), (1, 7), (1, 500), (3, 5))
    results = [evaluate(run.model, task_of(run), "valid", streams, segment) for streams, segment in sizes]
    for result in results[1:]:
        for name in set(result) - {"streams"}:
            assert result[name] == pytest.approx(results[0][name], rel=1e-5), name
    assert run.model.training


def test_among_equal_scores_the_lower_loss_is_the_better_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path, train__steps=5, train__validate_every=1)
    scores = iter([(90, 0.5), (100, 0.3), (100, 0.1), (100, 0.2), (95, 0.01)])

    def evaluate_scripted(*_: Any) -> dict[str, float]:
        accuracy, loss = next(scores)
        return {"accuracy": accuracy, "loss": loss, "scored": 1}

    monkeypatch.setattr("stairwell.train.streams.evaluate", evaluate_scripted)
    run.run()
    assert run.progress.best_step == Run(tmp_path).load_model()[1]["step"] == 3
    resumed = trainer(tmp_path, train__steps=5, train__validate_every=1)
    resumed.resume()
    assert (resumed.progress.best, resumed.progress.best_loss) == (100, 0.1)


def test_several_seeds_are_summarized_and_not_trained_twice(tmp_path: Path) -> None:
    options = ["train", "parity/lstm", *TINY, "--steps", "6", "--quiet", "--json", "--out", "all"]
    first = stairwell(tmp_path, *options, "--seeds", "2", "--seed", "5")
    assert first.status == 0, first
    summary = json.loads(first.out)
    results = [json.loads((tmp_path / "all" / f"seed-{seed}" / "result.json").read_text()) for seed in (5, 6)]
    values = [result["valid_accuracy"] for result in results]
    assert summary["metric"] == "valid_accuracy" and summary["seeds"] == 2
    assert summary["mean"] == pytest.approx(sum(values) / 2)
    assert summary["deviation"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    assert summary["best"] == max(values) and summary["best_run"] == results[values.index(max(values))]["run"]
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*/metrics.jsonl")}
    again = stairwell(tmp_path, *options, "--seeds", "2", "--seed", "5")
    assert again.out == first.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*/metrics.jsonl")} == times
    more = json.loads(stairwell(tmp_path, *options, "--seeds", "3", "--seed", "5").out)
    assert more["seeds"] == 3
    assert {path: path.stat().st_mtime_ns for path in times} == times
    other = stairwell(tmp_path, *options, "--seeds", "2", "--seed", "5", "--train.learning_rate", "0.1")
    assert "seed-5 is a run with another config" in other.error_line


def test_the_best_seed_has_the_smallest_metric_where_lower_is_better() -> None:
    results = [{"run": "a", "valid_loss": 2.0}, {"run": "b", "valid_loss": 1.0}]
    assert summarize(results, "valid_loss", False)["best_run"] == "b"
    assert summarize(results, "valid_loss", True)["best_run"] == "a"
    assert summarize(results[:1], "valid_loss", False)["deviation"] == 0


@pytest.mark.parametrize("core", ["feedback", "transformer-xl", "lstm"])
def test_bf16_autocast_learns_or_is_rejected(core: str, tmp_path: Path) -> None:
    """Some processors have no LSTM in bf16."""
    options = {} if core == "lstm" else {"core__memory": 4, "core__heads": 2}
    options |= {
        "train__precision": "bf16",
        "train__steps": 150 if core == "lstm" else 50,
        "train__learning_rate": 5e-3,
        "task__length": 1,
    }
    try:
        run = trainer(tmp_path, f"copy/{core}", **options)
    except ValueError as error:
        assert core == "lstm" and "leave --train.precision at float32" in str(error)
        return
    run.run()
    losses = [record["loss"] for record in read_metrics(tmp_path) if "loss" in record]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert all(parameter.dtype == torch.float32 for parameter in run.model.parameters())


def test_keys_and_values_in_bf16_are_used_in_training_and_rejected_for_other_cores(tmp_path: Path) -> None:
    options = {"core__memory": 4, "core__heads": 2, "train__steps": 10}
    losses = {}
    for precision in ("float32", "bf16"):
        run = trainer(tmp_path / precision, "copy/feedback", train__kv_precision=precision, **options)
        run.run()
        losses[precision] = [record["loss"] for record in read_metrics(tmp_path / precision) if "loss" in record]
    assert losses["bf16"] != losses["float32"]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=1e-2)
    with pytest.raises(ValueError, match="requires a Feedback core, not TransformerXL"):
        trainer(tmp_path / "other", "copy/transformer-xl", train__kv_precision="bf16", **options)


def test_spans_are_clamped_and_logged(tmp_path: Path) -> None:
    run = trainer(tmp_path, core__adaptive_span=True, core__memory=5, core__heads=2)
    for span, beyond in zip(run.model.core.spans(), (20.0, -1.4), strict=True):
        torch.nn.init.constant_(span.ratio, beyond)
    run.run()
    logged = [record["spans"] for record in read_metrics(tmp_path) if "loss" in record]
    assert len(logged) == 6 and logged[0] == [[5.0, 5.0], [0.0, 0.0]]
    assert all(0 <= z <= 5 for spans in logged for layer in spans for z in layer)


def test_the_span_loss_shortens_spans(tmp_path: Path) -> None:
    options = {"core__adaptive_span": True, "core__memory": 5, "core__heads": 2, "train__learning_rate": 0.05}
    ends = []
    for loss in (1e-9, 10.0):
        run = trainer(tmp_path / str(loss), **options, core__span_loss=loss)
        for span in run.model.core.spans():
            torch.nn.init.constant_(span.ratio, 0.4)
        run.run()
        ends.append(sum(sum(span.z.tolist()) for span in run.model.core.spans()))
    assert ends[1] < ends[0]


def test_layer_weights_are_logged(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.run()
    logged = [record["layer_weights"] for record in read_metrics(tmp_path) if "loss" in record]
    assert len(logged) == 6
    assert all(len(weights) == 3 and sum(weights) == pytest.approx(1, abs=1e-3) for weights in logged[-1])
    assert logged[0] != logged[-1]


def test_metrics_have_learning_rate_memory_and_counts(tmp_path: Path) -> None:
    trainer(tmp_path).run()
    first, last = Run(tmp_path).metrics()[0], Run(tmp_path).metrics()[-1]
    assert {"step", "tokens", "seconds", "loss", "accuracy", "learning_rate", "gradient_norm"} <= set(first)
    assert first["tokens_per_second"] > 0 and first["peak_memory"] > 1 << 20
    assert last["valid"]["streams"] == 2 and last["valid"]["scored"] == 4 * 8


def test_a_line_of_metrics_covers_all_steps_since_the_last_line(tmp_path: Path) -> None:
    for every in (1, 3):
        trainer(tmp_path / str(every), train__log_every=every).run()
    each, lines = ([r for r in read_metrics(tmp_path / str(every)) if "loss" in r] for every in (1, 3))
    assert [line["step"] for line in lines] == [3, 6]
    for name in ("loss", "accuracy", "gradient_norm"):
        expected = [sum(step[name] for step in each[i : i + 3]) / 3 for i in (0, 3)]
        assert [line[name] for line in lines] == pytest.approx(expected), name
    assert [line["tokens"] for line in lines] == [96, 192]


def test_an_interruption_between_two_lines_of_metrics_changes_neither(tmp_path: Path) -> None:
    options = {"train__log_every": 4, "train__curriculum": "length=2..8", "train__steps": 8}
    trainer(tmp_path / "whole", **options).run()
    run = trainer(tmp_path / "run", **options)
    with pytest.raises(Interrupted):
        run.run(lambda event: setattr(run, "stop_requested", run.progress.step >= 2))
    again = trainer(tmp_path / "run", **options)
    again.resume()
    again.run()
    ours, theirs = (read_metrics(tmp_path / name) for name in ("run", "whole"))
    assert ours == theirs and [line["step"] for line in ours if "loss" in line] == [4, 8]


def test_tensorboard_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    seen: list[dict[str, Any]] = []
    callback = with_tensorboard(seen.append, Run(tmp_path))
    callback({"event": "metrics", "step": 1, "loss": 2.0})
    assert seen and not (tmp_path / "tensorboard").exists()


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    callback = with_tensorboard(lambda event: None, Run(tmp_path))
    callback({"event": "metrics", "step": 1, "loss": 2.0, "valid": {"accuracy": 3.0}})
    callback({"event": "metrics", "step": 5, "loss": 1.5})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("train/loss")] == [(1, 2.0), (5, 1.5)]
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("valid/accuracy")] == [(1, 3.0)]


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_does_not_recreate_a_deleted_folder(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    callback = with_tensorboard(seen.append, Run(tmp_path / "gone"))
    callback({"event": "metrics", "step": 1, "loss": 2.0})
    assert seen and not (tmp_path / "gone").exists()


def test_a_curriculum_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    made = experiment("parity/lstm")
    assert made.name == "parity/lstm"
    assert not (tmp_path / "run").exists()
    for wrong in ({"train__curriculum": "height=3"}, {"train__curriculum": "length=2;height=3"}):
        with pytest.raises(ValueError, match="cannot change 'height'"):
            trainer(tmp_path / "run", **wrong)


def test_a_step_uses_the_learning_rate_of_the_schedule(tmp_path: Path) -> None:
    run = trainer(tmp_path, train__warmup=4, train__learning_rate=0.5)
    rates = []
    for _ in range(5):
        run.train_step()
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])


def test_the_gradient_of_a_single_term_is_not_scaled(tmp_path: Path) -> None:
    run = trainer(tmp_path, "counting/lstm", task__length=3, train__max_grad_norm=0, train__batch=1, train__segment=1)
    batch = run.batch_source.read(1)
    while int((batch.targets != IGNORE_INDEX).sum()) != 1:
        batch = run.batch_source.read(1)
    nll, _ = run.model.nll(batch.tokens, batch.targets, run.model.init_state(1), batch.start)
    expected = torch.autograd.grad(nll.sum(), list(run.model.parameters()))
    run.batch_source.read = lambda length: batch  # type: ignore[method-assign]
    run.train_step()
    for gradient, parameter in zip(expected, run.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_signal_handlers_are_restored_after_training(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    trainer(tmp_path).run()
    assert {number: signal.getsignal(number) for number in before} == before


class Fixed:
    primary_metric, higher_is_better = "loss", False

    def __init__(self, score: Any) -> None:
        self.score = score

    def __call__(self, model: Any, split: str) -> dict[str, float]:
        return dict(self.score())


@pytest.mark.parametrize(("which", "steps"), [("last", [4, 5]), ("best", [2, 3])])
def test_the_last_or_the_best_models_are_averaged(which: str, steps: list[int], tmp_path: Path) -> None:
    run = trainer(tmp_path, train__average=2, train__average_of=which, train__validate_every=1, train__steps=5)
    scores = iter([9.0, 1.0, 2.0, 3.0, 8.0])
    run.validation = Fixed(lambda: {"loss": next(scores, 5.0)})  # type: ignore[assignment]
    run.run()
    assert [int(path.stem.removeprefix("step-")) for path in run.folder.snapshots()] == steps


def test_a_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    small, large = trainer(tmp_path / "a"), trainer(tmp_path / "b", core__width=16)
    small.run()
    large.folder.path.mkdir(parents=True)
    (large.folder.path / "checkpoints").symlink_to(small.folder.path / "checkpoints")
    with pytest.raises(UserError, match="does not fit the model"):
        large.resume()


def test_states_of_accumulated_parts_are_resumed(tmp_path: Path) -> None:
    run = trainer(tmp_path, "random-walk/lstm", train__accumulate=2)
    run.run()
    again = trainer(tmp_path, "random-walk/lstm", train__accumulate=2)
    again.resume()
    for ours, theirs in zip(again.objective.states, run.objective.states, strict=True):
        assert all(a.equal(b) for (_, a), (_, b) in zip(ours.tensors(), theirs.tensors(), strict=True))


def test_the_final_phase_starts_with_its_first_step(tmp_path: Path) -> None:
    run = trainer(tmp_path, train__steps=2, train__finetune_steps=2)
    phases: list[int] = []
    train_step = run.train_step
    run.train_step = lambda: (phases.append(run.progress.phase), train_step())  # type: ignore[method-assign, assignment, return-value]
    run.run()
    assert phases == [0, 0, 1, 1]
