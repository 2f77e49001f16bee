"""Training with noise on the memory (`train.state_noise`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.runs.presets import preset
from stairwell.train import CrossEntropy, StreamTrainConfig, streams
from stairwell.train.streams import add_noise
from tests.commands import assert_same_tensors, stairwell

NOISY = ["--train.state_noise", "0.2", "--train.noise_every", "3"]


def model_and_batch(core: str) -> tuple[Any, Any]:
    experiment = preset(f"parity/{core}").with_options({"core.width": "8", "task.length": "5"})
    task = experiment.make_tasks()[0]
    model = experiment.make_model(task).double()
    return model, task.batch_source(range(4), 4, 0).read(13)


@pytest.mark.parametrize("core", list(CORES))
def test_splitting_a_segment_for_noise_changes_nothing_else(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, gradients and the state after are those of one call."""
    model, batch = model_and_batch(core)
    results = []
    for noise in (0.0, 0.5):
        monkeypatch.setattr(streams, "add_noise", lambda state, size: state)
        objective = CrossEntropy(model, noise, noise_every=3).train()
        model.zero_grad()
        outcome = objective(batch)
        outcome.loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append(
            [outcome.loss.detach(), *gradients, *(tensor for _, tensor in objective.stream_state().tensors())]
        )
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("core", list(CORES))
def test_noise_has_the_configured_size_and_keeps_empty_positions_empty(core: str) -> None:
    model, batch = model_and_batch(core)
    initial = model.init_state(4)
    for (_, before), (_, after) in zip(initial.tensors(), add_noise(initial, 0.5).tensors()):
        assert before.equal(after)
    _, state = model(batch.tokens, initial)
    noisy = add_noise(state, 0.25)
    assert noisy.count.equal(state.count) and noisy.croppable.equal(state.croppable)
    for (name, before), (_, after) in zip(state.tensors(), noisy.tensors()):
        if before.is_floating_point() and before.numel() > 100:
            ratio = (after - before).square().sum().sqrt() / before.square().sum().sqrt()
            assert 0.15 < ratio < 0.35, name


def test_noise_is_added_in_training_only() -> None:
    model, batch = model_and_batch("feedback")
    losses = [CrossEntropy(model, noise).eval()(batch).loss for noise in (0.0, 0.5)]
    assert losses[0].equal(losses[1])
    assert not losses[0].equal(CrossEntropy(model, 0.5).train()(batch).loss)


def test_a_run_with_noise_resumes_bit_for_bit(tmp_path: Path) -> None:
    small = ["--core.width", "8", "--train.batch", "4", "--train.segment", "8", "--train.curriculum", ""]
    small += ["--task.valid_episodes", "4", *NOISY]
    for name in ("whole", "resumed"):
        steps = "12" if name == "whole" else "7"
        assert stairwell(tmp_path, "train", "parity/feedback", "--out", name, "--steps", steps, *small).status == 0
    assert stairwell(tmp_path, "train", "--resume", "--out", "resumed", "--steps", "12").status == 0
    assert_same_tensors(tmp_path / "whole", tmp_path / "resumed")
    assert stairwell(tmp_path, "train", "parity/feedback", "--out", "quiet", "--steps", "12", *small[:-4]).status == 0
    with pytest.raises(AssertionError):
        assert_same_tensors(tmp_path / "whole", tmp_path / "quiet")


def test_negative_noise_is_rejected() -> None:
    with pytest.raises(UserError, match=r"train\.state_noise must be at least 0"):
        StreamTrainConfig(state_noise=-0.1)
