"""The comparison of two checkouts: its options exist, names are converted, and a difference is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stairwell.runs import preset
from tools.same_numbers import RUNS, SHORT, differences, earlier_options

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", RUNS)
def test_every_run_has_its_options(name: str) -> None:
    options = [*SHORT, *RUNS[name]]
    config = preset(name).with_options(
        {option.removeprefix("--"): value for option, value in zip(options[::2], options[1::2], strict=True)}
    )
    assert config.train.batch == 8 and config.name == name


def test_the_runs_cover_every_family() -> None:
    assert {preset(name).family.name for name in RUNS} == {"streams", "pairs", "rl"}


def write_run(folder: Path, parameter: str, value: float, **scores: float) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 5, "seconds": value, **scores}) + "\n")
    tensors = {f"model.{parameter}": torch.full((2,), value), "optimizer.0": torch.zeros(1)}
    save_file(tensors, folder / "checkpoints" / "step-5.safetensors")
    return folder


def test_a_changed_metric_or_parameter_is_a_difference(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", "start_embedding.vector", 1.0, loss=2.0)
    assert differences(first, first, earlier_names=False) == []
    second = write_run(tmp_path / "second", "start_embedding.vector", 1.5, loss=2.5)
    assert differences(first, second, earlier_names=False) == [
        "step 5: loss was 2.0, is 2.5",
        "start_embedding.vector differs",
    ]


def test_earlier_names_are_converted(tmp_path: Path) -> None:
    assert earlier_options(["--train.max_grad_norm", "0.1", "--train.steps", "5"]) == [
        "--train.clip", "0.1", "--train.steps", "5",
    ]  # fmt: skip
    before = write_run(tmp_path / "before", "first_token.vector", 1.0, divergence=0.5)
    after = write_run(tmp_path / "after", "start_embedding.vector", 1.0, approx_kl=0.5)
    assert differences(before, after, earlier_names=True) == []
    assert differences(before, after, earlier_names=False)
