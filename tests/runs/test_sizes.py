"""Sizes beyond reason are rejected by a count of bytes, before anything is allocated."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.runs import sizes
from stairwell.runs.presets import preset
from tests import language_pair

pytestmark = pytest.mark.quick

CPU = torch.device("cpu")
PAIR = {"task.source": "xx", "task.target": "yy", "task.vocabulary": "300"}
BEYOND = {
    "parity/feedback": ["core.width=1_000_000_000", "core.memory=1000000000000", "core.layers=1000000"],
    "parity/lstm": ["train.batch=1000000000", "core.layers=1000000", "task.length=1000000000000"],
    "parity/staircase": ["core.chunk=1000000000", "core.passes=1000000000", "train.segment=1000000000000"],
    "parity/global-cached-staircase": ["core.compute=1000000000", "core.distances=1000000000"],
    "parity/deltanet": ["core.products=1000000000000"],
    "random-walk/transformer-xl": ["task.grid=1000000000", "core.inner=100000000000", "train.valid_batch=1000000000"],
}


@pytest.fixture(autouse=True)
def a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "memory_of", lambda device: 16_000_000_000)


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in BEYOND for option in BEYOND[name]])
def test_a_size_beyond_reason_is_rejected_with_the_numbers_and_what_to_lower(name: str, option: str) -> None:
    field, _, value = option.partition("=")
    experiment = preset(name).with_options({field: value})
    with pytest.raises(UserError) as error:
        sizes.check_training(experiment, experiment.make_tasks()[0], CPU)
    message = str(error.value)
    assert message.startswith(f"{name} would need at least ") and "and cpu has 16 GB" in message
    assert f"lower --{field} (now {int(value):,})" in message


def test_a_last_stage_of_the_curriculum_beyond_reason_is_rejected() -> None:
    config = preset("parity/feedback").with_options({"train.curriculum": "length=1..999999999999"})
    with pytest.raises(UserError, match=r"lower --train.curriculum length \(now 999,999,999,999\)"):
        sizes.check_training(config, config.make_tasks()[0], CPU)
    sizes.check_training(preset("parity/feedback"), preset("parity/feedback").make_tasks()[0], CPU)


@pytest.mark.parametrize("option", ["model.encoder_layers=1000000", "model.encoder_inner=1000000000"])
def test_an_encoder_beyond_reason_is_rejected(option: str, tmp_path: Path) -> None:
    language_pair.write(tmp_path)
    field, _, value = option.partition("=")
    experiment = preset("translation/feedback").with_options(PAIR | {"task.path": str(tmp_path), field: value})
    task = experiment.make_tasks()[0]
    with pytest.raises(UserError, match=rf"lower --{field} \(now {int(value):,}\)"):
        sizes.check_training(experiment, task, CPU)
    few = experiment.with_options({field: "37"})
    numbers, _ = sizes.model_and_state(few, task)
    model: Any = few.make_model(task)
    assert numbers == sum(parameter.numel() for parameter in model.parameters())


def test_limits_of_a_batch_of_pairs_are_not_its_size(tmp_path: Path) -> None:
    """The largest batch of the data counts, not the limits."""
    language_pair.write(tmp_path)
    given = PAIR | {"task.path": str(tmp_path), "train.batch": "10000000"}
    experiment = preset("translation/feedback").with_options(given)
    task = experiment.make_tasks()[0]
    sizes.check_training(experiment, task, CPU)
    for batch, tokens in ((10_000_000, 4096), (64, 4096), (7, 100), (10_000_000, 10**12)):
        given = PAIR | {"task.path": str(tmp_path), "train.batch": str(batch), "train.batch_tokens": str(tokens)}
        experiment = preset("translation/feedback").with_options(given)
        batch_source = task.batch_source(range(batch), batch, 0, tokens)  # type: ignore[call-arg]
        read = [batch_source.read(1) for _ in batch_source.batches]
        rows, size = sizes.largest_batch(experiment, task, 1)
        assert size <= max(each.tokens.numel() for each in read) and rows <= max(len(each.tokens) for each in read)
        assert size >= 0.9 * max(each.tokens.numel() for each in read)
        assert sizes.model_bytes(experiment, task, 1)["states"] == rows * sizes.model_and_state(experiment, task)[1]
    assert sizes.largest_batch(experiment, task, 4)[0] == -(-rows // 4)


def test_pairs_that_no_machine_could_hold_at_once_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language_pair.write(tmp_path)
    given = {"task.path": str(tmp_path), "train.batch": "1000000", "train.batch_tokens": "1000000000"}
    experiment = preset("translation/feedback").with_options(PAIR | given)
    monkeypatch.setattr(sizes, "memory_of", lambda device: 1_000_000)
    with pytest.raises(UserError, match=r"lower --train.batch_tokens \(now 1,000,000,000\)"):
        sizes.check_training(experiment, experiment.make_tasks()[0], CPU)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_that_would_be_read_for_days_is_rejected(split: str) -> None:
    experiment = preset("parity/feedback").with_options({f"task.{split}_episodes": "1000000000000"})
    with pytest.raises(UserError, match=rf"--task.{split}_episodes 1,000,000,000,000: .* lower it"):
        sizes.check_training(experiment, experiment.make_tasks()[0], CPU)
    some = experiment.with_options({"train.valid_tokens": "1000"})
    if split == "valid":
        sizes.check_training(some, some.make_tasks()[0], CPU)


@pytest.mark.parametrize("core", CORES)
def test_what_is_counted_is_what_is_there(core: str) -> None:
    """Parameters and states of the model that would be built, also where layers are extrapolated."""
    experiment = preset(f"parity/{core}").with_options({"core.layers": "37"})
    task = experiment.make_tasks()[0]
    model: Any = experiment.make_model(task)
    numbers, state = sizes.model_and_state(experiment, task)
    assert numbers == sum(parameter.numel() for parameter in model.parameters())
    assert state == model.init_state(1).nbytes


def test_the_estimate_that_decides_whether_to_count_is_never_far_too_small() -> None:
    for core in CORES:
        for options in ({}, {"core.width": "512"}, {"core.layers": "12"}, {"train.batch": "4096"}):
            experiment = preset(f"random-walk/{core}").with_options(options)
            task = experiment.make_tasks()[0]
            parts = {**sizes.model_bytes(experiment, task, 1), **sizes.batch_bytes(experiment, task, 1)}
            assert sum(parts.values()) < 8 * sizes.estimate_bytes(experiment, task), (core, options, parts)


def test_passes_that_are_only_seen_in_the_cache_are_not_counted() -> None:
    experiment = preset("parity/cached-staircase").with_options({"core.passes": "9", "core.compute": "2"})
    task = experiment.make_tasks()[0]
    core, train = experiment.core, experiment.train
    activations = sizes.batch_bytes(experiment, task, 1)["activations"]
    assert activations == 4 * train.batch * train.segment * 2 * core.layers * core.width / train.accumulate


def test_one_layer_as_memory_does_not_keep_layers_from_being_counted() -> None:
    experiment = preset("parity/feedback").with_options({"core.layers": "200", "core.memory_composition": "20"})
    task = experiment.make_tasks()[0]
    model: Any = experiment.make_model(task)
    assert sizes.model_and_state(experiment, task)[0] == sum(parameter.numel() for parameter in model.parameters())


def test_processes_share_the_batch_and_parts_share_the_activations() -> None:
    experiment = preset("parity/feedback").with_options({"train.batch": "1000"})
    task, parts = experiment.make_tasks()[0], experiment.with_options({"train.accumulate": "4"})
    whole = sizes.batch_bytes(experiment, task, 1)
    assert sizes.batch_bytes(experiment, task, 4)["activations"] == whole["activations"] / 4
    assert sizes.batch_bytes(parts, task, 1)["activations"] == whole["activations"] / 4
    assert sizes.model_bytes(experiment, task, 4)["states"] == sizes.model_bytes(experiment, task, 1)["states"] / 4


def test_minibatches_share_the_activations_of_a_rollout() -> None:
    experiment = preset("rl/feedback").with_options({"train.batch": "1024"})
    task = experiment.make_tasks()[0]
    assert experiment.train.minibatches == 4  # type: ignore[attr-defined]
    whole = sizes.batch_bytes(experiment.with_options({"train.minibatches": "1"}), task, 1)["activations"]
    assert sizes.batch_bytes(experiment, task, 1)["activations"] == whole / 4
    a2c = {"train.algorithm": "a2c", "train.minibatches": "4", "train.epochs": "4"}
    assert sizes.batch_bytes(experiment.with_options(a2c), task, 1)["activations"] == whole


def test_a_model_that_is_only_used_needs_no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = preset("parity/feedback").with_options({"core.width": "8000", "core.heads": "8"})
    task = experiment.make_tasks()[0]
    sizes.check_model(experiment, task, CPU)
    with pytest.raises(UserError, match="gradients and optimizer"):
        sizes.check_training(experiment, task, CPU)
    larger = dataclasses.replace(experiment, core=dataclasses.replace(experiment.core, width=80_000))
    with pytest.raises(UserError, match=r"at least .* \(parameters "):
        sizes.check_model(larger, task, CPU)


def test_nothing_is_rejected_if_the_available_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "memory_of", lambda device: None)
    experiment = preset("parity/feedback").with_options({"core.width": "1000000000"})
    sizes.check_training(experiment, experiment.make_tasks()[0], CPU)


def test_the_memory_of_a_container_is_what_it_may_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sizes, "CGROUP", tmp_path / "memory.max")
    whole = sizes.memory_of(CPU)
    assert whole is not None and whole > 100_000_000
    (tmp_path / "memory.max").write_text("1234567\n")
    assert sizes.memory_of(CPU) == 1234567
    (tmp_path / "memory.max").write_text("max\n")
    assert sizes.memory_of(CPU) == whole


class Camera(gymnasium.Env[Any, Any]):
    def __init__(self, space: Any) -> None:
        self.observation_space, self.action_space = space, gymnasium.spaces.Discrete(2)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


spaces = gymnasium.spaces
LARGE = {
    "pictures": (
        spaces.Box(0, 255, (3, 2000, 2000), np.uint8),
        r"at least 98\.\d GB \(activations .* observations 98\.\d GB",
    ),
    "numbers": (
        spaces.Dict({"lidar": spaces.Box(-1, 1, (5_000_000,), np.float64)}),
        r"at least \d+ GB \(.*observations 1\d\d GB",
    ),
    "symbols": (spaces.Discrete(10**9), r"parameters 256 GB, gradients and optimizer 768 GB"),
}
for _name, (_space, _) in LARGE.items():
    gymnasium.register(f"Camera-{_name}-v0", entry_point=f"{__name__}:Camera", kwargs={"space": _space})


@pytest.mark.parametrize("name", LARGE)
def test_observations_too_large_for_a_rollout_are_rejected(name: str) -> None:
    experiment = preset("rl/feedback").with_options({"task.env": f"Camera-{name}-v0"})
    with pytest.raises(UserError, match=LARGE[name][1]) as error:
        sizes.check_training(experiment, experiment.make_tasks()[0], CPU)
    assert "lower --train.batch, --train.segment" in str(error.value)
    if name == "pictures":
        few = experiment.with_options({"train.batch": "4", "train.segment": "8"})
        sizes.check_training(few, few.make_tasks()[0], CPU)
