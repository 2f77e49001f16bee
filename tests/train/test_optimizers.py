"""Optimizers: options, and saving and loading of their state."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.errors import UserError
from stairwell.runs.run import Run
from stairwell.train import StreamTrainConfig, optimizers
from tests.commands import assert_same_tensors
from tests.train.test_loop import trainer

pytestmark = pytest.mark.quick

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"train__beta1": 0.5, "train__beta2": 0.7, "train__eps": 1e-3, "train__weight_decay": 0.1},
    "adamw": {"train__beta1": 0.5, "train__weight_decay": 0.1},
    "rmsprop": {"train__alpha": 0.8, "train__momentum": 0.5, "train__eps": 1e-2, "train__weight_decay": 0.1},
}
STATE_KEYS = {
    "adam": {"step", "exp_avg", "exp_avg_sq"},
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
    "rmsprop": {"step", "square_avg", "momentum_buffer"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    options = {"train__optimizer": name, "train__validate_every": 3, **OPTIMIZERS[name]}
    trainer(tmp_path / "whole", "parity/lstm", **options).run()
    trainer(tmp_path / "stopped", "parity/lstm", **options, train__steps=3).run()
    resumed = trainer(tmp_path / "stopped", "parity/lstm", **options)
    resumed.resume()
    resumed.run()
    assert_same_tensors(tmp_path / "stopped", tmp_path / "whole")
    tensors, _, _ = Run(tmp_path / "whole").load_checkpoint()
    assert {key.split(".")[1] for key in tensors if key.startswith("optimizer.")} == STATE_KEYS[name]


def expected_parameter(name: str, gradients: list[float]) -> float:
    """Return a single parameter that starts at 2, after steps with these gradients."""
    x, average, square, momentum = 2.0, 0.0, 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        if name == "rmsprop":
            gradient += 0.1 * x
            square = 0.8 * square + 0.2 * gradient**2
            momentum = 0.5 * momentum + gradient / (math.sqrt(square) + 1e-2)
            x -= 0.01 * momentum
            continue
        if name == "adam":
            gradient += 0.1 * x
        else:
            x -= 0.01 * 0.1 * x
        average, square = 0.5 * average + 0.5 * gradient, 0.7 * square + 0.3 * gradient**2
        x -= 0.01 * (average / (1 - 0.5**t)) / (math.sqrt(square / (1 - 0.7**t)) + 1e-2)
    return x


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_has_the_configured_options(name: str) -> None:
    options = {"alpha": 0.8, "momentum": 0.5} if name == "rmsprop" else {"beta1": 0.5, "beta2": 0.7}
    config = StreamTrainConfig(optimizer=name, learning_rate=0.01, eps=1e-2, weight_decay=0.1, **options)  # type: ignore[arg-type]
    module = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(module.weight, 2.0)
    optimizer, gradients = optimizers.make(module, config), [0.3, -0.7, 0.2]
    for gradient in gradients:
        module.weight.grad = torch.full_like(module.weight, gradient)
        optimizer.step()
    assert module.weight.item() == pytest.approx(expected_parameter(name, gradients), rel=1e-9)


def test_the_step_count_stays_on_the_cpu_in_float32() -> None:
    module = torch.nn.Linear(2, 2).double()
    optimizer = optimizers.make(module, StreamTrainConfig())
    module(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    saved = optimizers.tensors(optimizer, module)
    other = torch.nn.Linear(2, 2, device="meta", dtype=torch.float64)
    loaded = optimizers.make(other, StreamTrainConfig())
    optimizers.load(loaded, other, saved)
    state = loaded.state[other.weight]
    assert state["step"].device.type == "cpu" and state["step"] == 1
    assert state["exp_avg"].device.type == "meta" and state["exp_avg"].dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.5}, "train.momentum 0.5 has no effect; it is for train.optimizer rmsprop"),
        ({"optimizer": "rmsprop", "beta2": 0.9}, "train.beta2 0.9 has no effect; it is for train.optimizer adam"),
        ({"beta1": 1.0}, r"train.beta1 must be in \[0, 1\), not 1.0"),
        ({"eps": 0.0}, "train.eps must be above 0"),
        ({"weight_decay": -1.0}, "train.weight_decay must be at least 0"),
    ],
)
def test_an_invalid_option_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamTrainConfig(**options)


@pytest.mark.parametrize("changes", [{"train__optimizer": "rmsprop"}, {"train__momentum": 0.5}])
def test_a_checkpoint_of_another_optimizer_is_rejected(changes: dict[str, Any], tmp_path: Path) -> None:
    options = {"train__optimizer": "rmsprop"} if "train__momentum" in changes else {}
    trainer(tmp_path, "parity/lstm", **options, train__steps=3).run()
    with pytest.raises(UserError, match="the checkpoint was made with another optimizer or momentum"):
        trainer(tmp_path, "parity/lstm", **(options | changes)).resume()
