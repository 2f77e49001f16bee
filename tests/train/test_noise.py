"""Noise on the memory while a stream is trained: nothing but the noise differs, and a stopped training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.rl.config import AgentTrainConfig
from stairwell.runs.presets import preset
from stairwell.train import CrossEntropy, TrainConfig, streams
from stairwell.train.config import PairTrainConfig
from stairwell.train.streams import disturbed
from tests.commands import assert_same_weights, stairwell

NOISY = ["--train.state_noise", "0.2", "--train.noise_every", "3"]


def model_and_batch(core: str) -> tuple[Any, Any]:
    experiment = preset(f"parity/{core}").with_options({"core.width": "8", "task.length": "5"})
    task = experiment.make_tasks()[0]
    model = experiment.make_model(task).double()
    return model, task.batch_source(range(4), 4, 0).read(13)


@pytest.mark.parametrize("core", list(CORES))
def test_but_for_the_noise_all_is_as_without_it(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is read in several calls, which is the same as one: losses, gradients and the state after."""
    model, batch = model_and_batch(core)
    found = []
    for noise in (0.0, 0.5):
        monkeypatch.setattr(streams, "disturbed", lambda state, size: state)
        objective = CrossEntropy(model, noise, noise_every=3).train()
        model.zero_grad()
        outcome = objective(batch)
        outcome.loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([outcome.loss.detach(), *gradients, *(tensor for _, tensor in objective.carried().tensors())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("core", list(CORES))
def test_noise_is_as_large_as_asked_and_leaves_what_is_empty_empty(core: str) -> None:
    model, batch = model_and_batch(core)
    fresh = model.init_state(4)
    for (_, before), (_, after) in zip(fresh.tensors(), disturbed(fresh, 0.5).tensors()):
        assert before.equal(after)
    _, state = model(batch.tokens, fresh)
    noisy = disturbed(state, 0.25)
    assert noisy.count.equal(state.count) and noisy.room.equal(state.room)
    for (name, before), (_, after) in zip(state.tensors(), noisy.tensors()):
        if before.is_floating_point() and before.numel() > 100:
            ratio = (after - before).square().sum().sqrt() / before.square().sum().sqrt()
            assert 0.15 < ratio < 0.35, name


def test_noise_is_for_training_only() -> None:
    model, batch = model_and_batch("feedback")
    losses = [CrossEntropy(model, noise).eval()(batch).loss for noise in (0.0, 0.5)]
    assert losses[0].equal(losses[1])
    assert not losses[0].equal(CrossEntropy(model, 0.5).train()(batch).loss)


def test_a_noisy_training_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    small = ["--core.width", "8", "--train.batch", "4", "--train.segment", "8", "--train.curriculum", ""]
    small += ["--task.valid_episodes", "4", *NOISY]
    for name in ("whole", "parted"):
        steps = "12" if name == "whole" else "7"
        assert stairwell(tmp_path, "train", "parity/feedback", "--out", name, "--steps", steps, *small).status == 0
    assert stairwell(tmp_path, "train", "--resume", "--out", "parted", "--steps", "12").status == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "parted")
    assert stairwell(tmp_path, "train", "parity/feedback", "--out", "quiet", "--steps", "12", *small[:-4]).status == 0
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "whole", tmp_path / "quiet")


def test_noise_that_nothing_reads_is_refused() -> None:
    for config in (PairTrainConfig, AgentTrainConfig):
        with pytest.raises(UserError, match="for tasks that are streams of tokens"):
            config(state_noise=0.1)
    with pytest.raises(UserError, match=r"read with train\.state_noise only"):
        TrainConfig(noise_every=4)
    with pytest.raises(UserError, match=r"train\.state_noise must be at least 0"):
        TrainConfig(state_noise=-0.1)
