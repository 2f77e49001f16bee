"""`save_pretrained` never overwrites a run folder, whose files have the same names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stairwell.errors import UserError
from stairwell.hf import StairwellConfig, StairwellForCausalLM


def small_model() -> StairwellForCausalLM:
    options = {"width": 8, "heads": 2, "layers": 1, "memory": 3}
    return StairwellForCausalLM(StairwellConfig(core="feedback", core_options=options, vocab_size=9))


def run_folder(parent: Path) -> Path:
    folder = parent / "run"
    folder.mkdir()
    config = {"format": 1, "core": {"width": 8}, "task": {}, "train": {}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"trained for days")
    return folder


def test_a_run_folder_is_not_overwritten(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="is the folder of a run"):
        small_model().save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_saved_model_can_be_overwritten(tmp_path: Path) -> None:
    model = small_model()
    for _ in range(2):
        model.save_pretrained(tmp_path / "model")
    assert StairwellForCausalLM.from_pretrained(tmp_path / "model").config.vocab_size == 9


def test_from_pretrained_of_a_run_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="from_run"):
        StairwellForCausalLM.from_pretrained(run_folder(tmp_path))
