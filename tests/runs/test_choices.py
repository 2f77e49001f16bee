"""Devices and options that do not exist are rejected in one line that names them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stairwell.errors import UserError
from stairwell.runs.device import choose_device
from stairwell.runs.long_streams import stream_of
from stairwell.runs.presets import preset
from stairwell.runs.sizes import what_to_lower
from tests.commands import TINY, stairwell


@pytest.mark.parametrize(
    "name", ["meta", "privateuseone", "mkldnn", "hip", "lazy", "", "None", "cpu:7", "cuda:99999999999"]
)
def test_what_cannot_compute_is_no_device(name: str) -> None:
    with pytest.raises(UserError, match="--device") as rejected:
        choose_device(name)
    assert len(str(rejected.value)) < 300 and "\n" not in str(rejected.value)


def test_the_processor_is_a_device() -> None:
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("command", [["train", "parity/lstm", *TINY], ["reproduce", "extra.parity", "--dry-run"]])
@pytest.mark.parametrize("option", [["--device", "meta"], ["--seeds", "99999999999"]])
def test_commands_reject_them_in_one_line(tmp_path: Any, command: list[str], option: list[str]) -> None:
    assert option[0] in stairwell(tmp_path, *command, *option).error_line


def test_options_without_a_section_are_rejected() -> None:
    with pytest.raises(UserError, match="unknown option 'nothing'"):
        preset("parity/lstm").with_options({"nothing": "1"})


def test_options_are_text() -> None:
    options: Any = {"core.width": 16}
    with pytest.raises(UserError, match=r"core\.width: 16 is not text"):
        preset("parity/lstm").with_options(options)


def test_heads_are_never_what_to_lower() -> None:
    experiment = preset("parity/feedback").with_options({"core.heads": "2", "train.batch": "99999999"})
    assert what_to_lower(experiment) == "--train.batch (now 99,999,999)"


def test_a_task_without_streams_names_the_options() -> None:
    with pytest.raises(UserError, match="--horizon and --inside"):
        stream_of(object())
