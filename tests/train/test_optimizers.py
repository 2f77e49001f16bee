"""Optimizers are torch's, with the options asked for; what they remember is saved whatever its names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.train import Run, TrainConfig, optimizers
from tests.commands import assert_same_weights
from tests.train.test_loop import trainer

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"train__beta1": 0.5, "train__beta2": 0.7, "train__eps": 1e-3, "train__weight_decay": 0.1},
    "adamw": {"train__beta1": 0.5, "train__weight_decay": 0.1},
    "rmsprop": {"train__alpha": 0.8, "train__momentum": 0.5, "train__eps": 1e-2, "train__weight_decay": 0.1},
}
REMEMBERED = {
    "adam": {"step", "exp_avg", "exp_avg_sq"},
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
    "rmsprop": {"step", "square_avg", "momentum_buffer"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    options = {"train__optimizer": name, "train__validate_every": 3, **OPTIMIZERS[name]}
    trainer(tmp_path / "whole", "parity/lstm", **options).run()
    trainer(tmp_path / "stopped", "parity/lstm", **options, train__steps=3).run()
    resumed = trainer(tmp_path / "stopped", "parity/lstm", **options)
    resumed.resume()
    resumed.run()
    assert_same_weights(tmp_path / "stopped", tmp_path / "whole")
    tensors, _, _ = Run(tmp_path / "whole").load_checkpoint()
    assert {key.split(".")[1] for key in tensors if key.startswith("optimizer.")} == REMEMBERED[name]


def worked_by_hand(name: str, gradients: list[float]) -> float:
    """A single parameter that begins at 2, after these gradients."""
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
def test_the_options_reach_the_optimizer(name: str) -> None:
    given = {"alpha": 0.8, "momentum": 0.5} if name == "rmsprop" else {"beta1": 0.5, "beta2": 0.7}
    config = TrainConfig(optimizer=name, learning_rate=0.01, eps=1e-2, weight_decay=0.1, **given)  # type: ignore[arg-type]
    module = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(module.weight, 2.0)
    optimizer, gradients = optimizers.make(module, config), [0.3, -0.7, 0.2]
    for gradient in gradients:
        module.weight.grad = torch.full_like(module.weight, gradient)
        optimizer.step()
    assert module.weight.item() == pytest.approx(worked_by_hand(name, gradients), rel=1e-9)


def test_a_count_of_steps_stays_where_torch_wants_it() -> None:
    """On the CPU and in float32, whatever the parameters are."""
    module = torch.nn.Linear(2, 2).double()
    optimizer = optimizers.make(module, TrainConfig())
    module(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    saved = optimizers.tensors(optimizer, module)
    other = torch.nn.Linear(2, 2, device="meta", dtype=torch.float64)
    fresh = optimizers.make(other, TrainConfig())
    optimizers.load(fresh, other, saved)
    state = fresh.state[other.weight]
    assert state["step"].device.type == "cpu" and state["step"] == 1
    assert state["exp_avg"].device.type == "meta" and state["exp_avg"].dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"momentum": 0.5}, "train.momentum is not read with train.optimizer adam"),
        ({"optimizer": "rmsprop", "beta2": 0.9}, "train.beta2 is not read with train.optimizer rmsprop"),
        ({"beta1": 1.0}, r"train.beta1 must be in \[0, 1\), not 1.0"),
        ({"eps": 0.0}, "train.eps must be above 0"),
        ({"weight_decay": -1.0}, "train.weight_decay must be at least 0"),
    ],
)
def test_an_option_that_is_wrong_or_not_read_is_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TrainConfig(**options)
