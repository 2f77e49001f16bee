"""Configs: documentation, parsing from text and JSON, type checks, and presets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from stairwell import FeedbackConfig, LSTMConfig, configs
from stairwell.cores import CORES, GlobalCachedStaircaseConfig
from stairwell.errors import UserError
from stairwell.experiments.papers import find_experiments
from stairwell.models import LanguageModelConfig
from stairwell.models.encoder import EncoderConfig
from stairwell.runs import RunConfig, preset
from stairwell.runs.run import Run
from stairwell.tasks import TASKS, task_type
from stairwell.tasks.translation import TranslationConfig
from stairwell.train import StreamTrainConfig, stream_trainer

pytestmark = pytest.mark.quick

CONFIG_TYPES = {
    **{f"core {name}": entry.config for name, entry in CORES.items()},
    **{f"task {name}": task_type(name)[0] for name in TASKS},
    "model": LanguageModelConfig,
    "train": StreamTrainConfig,
}
READS_FILES = ("lm", "labeled", "translation", "summarization")
AGENTS = ("rl",)  # tests/rl trains them
PRESETS = [f"{task}/{core}" for task in TASKS for core in CORES]


@pytest.mark.parametrize("name", CONFIG_TYPES)
def test_every_field_is_documented(name: str) -> None:
    help = configs.field_help(CONFIG_TYPES[name])
    for field in configs.field_types(CONFIG_TYPES[name]):
        assert help.get(field), f"{name}: {field} has no help"
        assert len(help[field]) < 160 and help[field].endswith("."), f"{name}: {field}"
        assert f"\n    {field}: " in CONFIG_TYPES[name].__doc__


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("12", int, 12), ("1_000", int, 1000), (" 3 ", int, 3), ("1e-3", float, 1e-3), ("2", float, 2.0),
        ("true", bool, True), ("off", bool, False), ("No", bool, False), ("word", str, "word"), ("", str, ""),
        ("none", int | None, None), ("7", int | None, 7), ("post", Literal["pre", "post"], "post"),
        ("1,2, 3", tuple[int, ...], (1, 2, 3)), ("", tuple[int, ...], ()), ("top", int | str, "top"),
        ("2", int | str, 2),
    ],
)  # fmt: skip
def test_text_becomes_a_value_of_its_type(text: str, kind: Any, value: Any) -> None:
    parsed = configs.parse(text, kind, "here")
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1.5", int), ("many", float), ("nan", float), ("inf", float), ("maybe", bool),
        ("middle", Literal["pre", "post"]), ("1,x", tuple[int, ...]), ("", int), ("9" * 400, int), ("9" * 400, float),
    ],
)  # fmt: skip
def test_text_of_another_type_is_rejected(text: str, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"here: .* is not an? "):
        configs.parse(text, kind, "here")


@pytest.mark.parametrize("value", ["1e400", "-1e400", "NaN", "9" * 400])
def test_infinite_numbers_are_rejected(value: str) -> None:
    data = json.loads(f'{{"learning_rate": {value}}}')
    with pytest.raises(UserError, match="here: 'learning_rate': expected a finite number, not"):
        configs.from_json(StreamTrainConfig, data, "here")


REQUIRED: dict[str, dict[str, Any]] = {"model": {"core": CORES["feedback"].config(), "inputs": 5}}
WRONG = {int: (1.5, 64.0, True, "4", None), bool: ("yes", 1, 0.0, None), float: ("0.1", True, None), str: (1, None)}


@pytest.mark.parametrize("name", CONFIG_TYPES)
def test_a_config_checks_the_types_of_its_fields(name: str) -> None:
    for field, kind in configs.field_types(CONFIG_TYPES[name]).items():
        for value in WRONG.get(kind, ()):
            with pytest.raises(ValueError, match=f"{field} must be {kind.__name__}, not {value!r}"):
                CONFIG_TYPES[name](**{**REQUIRED.get(name, {}), field: value})


def test_a_config_checks_unions_and_literals() -> None:
    kind = CORES["feedback"].config
    with pytest.raises(ValueError, match="attend_to_current must be bool, not 'yes'"):
        kind(attend_to_current="yes")
    with pytest.raises(ValueError, match=r"head_width must be int or None, not 2\.0"):
        kind(head_width=2.0)
    with pytest.raises(ValueError, match=r"'average' or 'recurrent' or int, not 1\.0"):
        kind(memory_composition=1.0)
    assert kind(attention_dropout=0, head_width=None).attention_dropout == 0  # an integer is a number


def test_an_unknown_option_suggests_a_similar_one() -> None:
    with pytest.raises(
        ValueError, match=r"unknown option --train\.learning_rat; did you mean --train\.learning_rate\?"
    ):
        configs.set_fields(StreamTrainConfig(), {"learning_rat": "1"}, "train")
    with pytest.raises(ValueError, match="follows from the task and the core"):
        preset("parity/lstm").with_options({"model.inputs": "3"})


def test_a_language_model_cannot_have_a_source() -> None:
    with pytest.raises(ValueError, match=r"--core\.cross cannot be set"):
        preset("parity/feedback").with_options({"core.cross": "true"})
    data = preset("parity/feedback").to_json()
    data["core"]["cross"] = True
    with pytest.raises(ValueError, match="a language model has no source"):
        RunConfig.from_json(data, "here")


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("staircase", {"attend_to_current"}),
        ("multi-vector-rnn", {"attend_to_current", "chunk", "passes"}),
        ("memory-network", {"attend_to_current", "chunk", "compute"}),
    ],
)
def test_a_core_has_no_options_for_its_fixed_fields(name: str, fixed: set[str]) -> None:
    assert not fixed & set(configs.field_types(CORES[name].config))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_saved_and_loaded_as_json(name: str) -> None:
    config = preset(name)
    data = json.loads(json.dumps(config.to_json()))
    assert RunConfig.from_json(data, "here") == config
    assert RunConfig.from_json(data, "here").to_json() == data


STATE_TRACKING = (
    "labeled", "parity", "s5", "parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic", "group-words",
)  # fmt: skip


@pytest.mark.parametrize("task", STATE_TRACKING)
def test_presets_of_state_tracking_are_the_benchmarks(task: str) -> None:
    """A short memory, so that the state has to be kept, and the same gradient clipping."""
    variants = find_experiments("extra.state-tracking.parity-check", "laptop")[0].variants
    of_core = {variant.config.core_name: variant.config for variant in variants}
    assert preset(f"{task}/feedback").core.memory == of_core["feedback"].core.memory == 2
    cached, ours = of_core["cached-staircase"].core, preset(f"{task}/cached-staircase").core
    assert (ours.chunk, ours.passes) == (cached.chunk, cached.passes)
    for core in CORES:
        assert preset(f"{task}/{core}").train.max_grad_norm == of_core["feedback"].train.max_grad_norm == 0.1


def test_missing_fields_get_their_defaults_and_lists_become_tuples() -> None:
    data = preset("parity/lstm").to_json()
    data["train"] = {"steps": 3}
    data["model"] = {"adaptive": [2, 4]}
    config = RunConfig.from_json(data, "here")
    assert config.train == StreamTrainConfig(steps=3) and config.model.adaptive == (2, 4)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.partition("/")[0] not in READS_FILES + AGENTS])
def test_every_preset_builds_and_trains(name: str, tmp_path: Path) -> None:
    """One step of the preset's model, with segments just long enough that some tokens are scored."""
    options = {"train.batch": "2", "train.segment": "5", "train.accumulate": "2"}
    if name.startswith("algorithmic"):
        options["train.segment"] = "24"
    if name.startswith("counting"):
        options["task.length"] = "2"
    train_one_step(preset(name).with_options(options), tmp_path)


@pytest.mark.parametrize("core", CORES)
def test_every_preset_that_reads_files_builds_and_trains(core: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a rose is a rose\n" * 40)
    (tmp_path / "mine.tokens").write_text("a b a b\n" * 40)
    (tmp_path / "mine.labels").write_text("0 1 - 1\n" * 40)
    for task, file in (("lm", "text.txt"), ("labeled", "mine.tokens")):
        options = {"train.batch": "2", "train.segment": "5", "task.path": str(tmp_path / file)}
        train_one_step(preset(f"{task}/{core}").with_options(options), tmp_path)


def train_one_step(config: RunConfig, folder: Path) -> None:
    tasks = config.make_tasks()
    model = config.make_model(tasks[0])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = stream_trainer(model, tasks, config.train, Run(folder))
    trainer.train_step()
    metrics = trainer.progress.metrics
    assert torch.tensor(float(metrics.sums["loss"])).isfinite() and metrics.steps == 1
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(parameter.isfinite().all() for parameter in model.parameters()) and sum(changed) > len(changed) // 2


def test_all_cores_of_a_task_have_similar_numbers_of_parameters() -> None:
    for task in (name for name in TASKS if name not in READS_FILES + AGENTS):
        sizes = {}
        for core in CORES:
            config = preset(f"{task}/{core}")
            model = config.make_model(config.make_tasks()[0])
            sizes[core] = sum(parameter.numel() for parameter in model.parameters())
        assert max(sizes.values()) < 2 * min(sizes.values()), (task, sizes)


def test_a_task_without_a_preset_gets_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "my-parity", TASKS["parity"])
    for core in CORES:
        train_one_step(preset(f"my-parity/{core}").with_options({"train.batch": "2", "train.segment": "5"}), tmp_path)


def test_an_invalid_length_is_rejected_before_the_curriculum_uses_it() -> None:
    for length in ("-3", "0"):
        with pytest.raises(ValueError, match=f"^--task.length is {length}; it must be at least 1$"):
            preset("random-walk/lstm").with_options({"task.length": length})


def test_configs_are_frozen() -> None:
    for config_type in CONFIG_TYPES.values():
        assert dataclasses.is_dataclass(config_type) and config_type.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "make",
    [
        lambda: LSTMConfig(width=0),
        lambda: LSTMConfig(layers=0),
        lambda: LSTMConfig(dropout=1.0),
        lambda: GlobalCachedStaircaseConfig(chunk=0),
        lambda: GlobalCachedStaircaseConfig(distances=0),
        lambda: EncoderConfig(encoder_dropout=1.0),
        lambda: EncoderConfig(encoder_relu_drop=-0.1),
        lambda: LanguageModelConfig(core=FeedbackConfig(width=8, heads=2, layers=2, memory=3), inputs=0),
        lambda: LanguageModelConfig(core=FeedbackConfig(width=8, heads=2, layers=2, memory=3), inputs=0, outputs=3),
        lambda: LanguageModelConfig(core=FeedbackConfig(width=8, heads=2, layers=2, memory=3), inputs=3, outputs=0),
        lambda: TranslationConfig(max_source_length=0),
        lambda: TranslationConfig(max_target_length=0),
    ],
)
def test_invalid_sizes_and_rates_are_rejected(make: Any) -> None:
    with pytest.raises(ValueError):
        make()
    LanguageModelConfig(core=FeedbackConfig(width=8, heads=2, layers=2, memory=3), inputs=1, outputs=1)
