"""Discrete observations are normalized by their frequencies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stairwell.rl.encoders import DiscreteEncoder
from stairwell.runs.load import load
from tests.commands import stairwell

CONSTANT, FREQUENT, RARE = 0, 1, 2


def random_values(N: int = 20_000) -> torch.Tensor:
    """Three elements: one constant, one that is 1 half of the time, one that is 1 with probability 0.02."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(N, 3, generator=generator)
    return torch.stack([torch.ones(N), u[:, 1] < 0.5, u[:, 2] < 0.02], 1).long()


def make_encoder() -> DiscreteEncoder:
    torch.manual_seed(0)
    return DiscreteEncoder([2, 2, 2], 64)


def encode(encoder: DiscreteEncoder, values: torch.Tensor) -> torch.Tensor:
    """(N, 3) -> (N, D)"""
    return encoder(values[:, None])[:, 0].detach()


def test_constant_values_contribute_nothing_and_rare_values_most() -> None:
    values, encoder = random_values(), make_encoder()
    encoder.update_statistics(values)
    x = encode(encoder, values)
    assert x.mean(0).abs().max() < 1e-2
    assert x.var(0).mean() == pytest.approx(1, rel=0.3), "the variance of the sum does not change"
    usual = torch.tensor([[1, 1, 0]])
    distance = {}
    for element in (FREQUENT, RARE):
        other = usual.clone()
        other[0, element] = 1 - other[0, element]
        distance[element] = float((encode(encoder, other) - encode(encoder, usual)).norm())
    assert distance[RARE] > 3 * distance[FREQUENT]
    assert float((1 - encoder.mean)[1]) == 0, "the constant value"


def test_constant_observations_leave_the_encoder_unchanged() -> None:
    values, encoder = torch.ones(50, 3, dtype=torch.int64), make_encoder()
    before = encode(encoder, values)
    encoder.update_statistics(values)
    assert encode(encoder, values).equal(before)


def test_statistics_are_measured_before_training(tmp_path: Path) -> None:
    options = ["--task.length", "4", "--task.valid_episodes", "2", "--train.batch", "4", "--train.segment", "4"]
    for name, more in (("on", []), ("off", ["--model.normalize_observations", "false"])):
        ended = stairwell(tmp_path, "train", "rl/lstm", *options, *more, "--steps", "1", "--quiet", "--out", name)
        assert ended.status == 0, ended
    on, off = (load(tmp_path / name)[0].encoders[0] for name in ("on", "off"))
    assert bool(off.scale.eq(1).all()) and not off.mean.any()
    assert on.scale.max() > 2 * on.scale.min() and bool(on.mean.any())
