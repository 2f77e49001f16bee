"""Extreme values of the training config are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from stairwell.errors import UserError
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.train.config import StreamTrainConfig
from stairwell.train.curriculum import Curriculum
from stairwell.train.size_schedule import SizeSchedule


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 1e300),
        ("learning_rate", 1e38),
        ("weight_decay", 1e300),
        ("finetune_lr_factor", 1e300),
        ("state_noise", 1e300),
        ("max_grad_norm", 1e300),
        ("eps", 1e300),
        ("eps", 1e-320),
    ],
)
def test_numbers_beyond_float32_are_rejected(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"train\.{name} must be at (most|least)"):
        StreamTrainConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["clip_range", "ent_coef", "vf_coef"])
def test_coefficients_of_an_agents_loss_beyond_float32_are_rejected(name: str) -> None:
    options: dict[str, Any] = {"algorithm": "ppo", name: 1e300}
    with pytest.raises(UserError, match=rf"train\.{name} must be at most"):
        AgentTrainConfig(**options)


@pytest.mark.parametrize("text", [";", ";;;", " ; ", "length=8;;length=9", "length=8;"])
def test_a_stage_without_options_is_rejected(text: str) -> None:
    with pytest.raises(UserError, match="cannot read the curriculum"):
        Curriculum.parse(text)


def test_a_stage_sets_each_name_once() -> None:
    with pytest.raises(UserError, match="sets a name twice"):
        Curriculum.parse("length=8,length=9")


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_curriculum_has_no_stages(text: str) -> None:
    assert Curriculum.parse(text).stages == [] and SizeSchedule.parse(text).stages == []


def test_a_size_schedule_of_separators_is_rejected() -> None:
    with pytest.raises(UserError, match=r"train\.size_schedule"):
        SizeSchedule.parse(";")
