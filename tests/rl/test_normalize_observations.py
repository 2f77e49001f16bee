"""Symbols count by how seldom they are seen, so that a key in one cell of many is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stairwell.rl.policies import Places
from stairwell.runs.launch import load
from tests.commands import stairwell

ALWAYS, OFTEN, SELDOM = 0, 1, 2


def drawn(N: int = 20_000) -> torch.Tensor:
    """Three places: one that never changes, one like a coin, one that is 1 in a fiftieth of the cases."""
    dice = torch.Generator().manual_seed(0)
    chance = torch.rand(N, 3, generator=dice)
    return torch.stack([torch.ones(N), chance[:, 1] < 0.5, chance[:, 2] < 0.02], 1).long()


def places() -> Places:
    torch.manual_seed(0)
    return Places([2, 2, 2], 64)


def test_what_is_always_there_counts_nothing_and_what_is_seldom_there_counts_most() -> None:
    values, made = drawn(), places()
    made.standardize(values)
    found = made(values).detach()
    assert found.mean(0).abs().max() < 1e-2
    assert found.var(0).mean() == pytest.approx(1, rel=0.3), "as much in all as before"
    usual = torch.tensor([[1, 1, 0]])
    away = {}
    for place in (OFTEN, SELDOM):
        other = usual.clone()
        other[0, place] = 1 - other[0, place]
        away[place] = float((made(other) - made(usual)).detach().norm())
    assert away[SELDOM] > 3 * away[OFTEN]
    assert float((1 - made.mean)[1]) == 0, "the symbol that is always there"


def test_nothing_to_tell_apart_changes_nothing() -> None:
    values, made = torch.ones(50, 3, dtype=torch.int64), places()
    before = made(values)
    made.standardize(values)
    assert made(values).equal(before)


def test_a_training_looks_around_before_it_begins(tmp_path: Path) -> None:
    options = ["--task.length", "4", "--task.valid_episodes", "2", "--train.batch", "4", "--train.segment", "4"]
    for name, more in (("run", []), ("off", ["--model.normalize_observations", "false"])):
        ended = stairwell(tmp_path, "train", "rl/lstm", *options, *more, "--steps", "1", "--quiet", "--out", name)
        assert ended.status == 0, ended
    kept, plain = (load(tmp_path / name)[0].encoders[0].places for name in ("run", "off"))
    assert bool(plain.scale.eq(1).all()) and not plain.mean.any()
    assert kept.scale.max() > 2 * kept.scale.min() and bool(kept.mean.any())
