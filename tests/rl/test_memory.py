"""Cores as recurrent memories: `Memory`, and the interfaces of torch's recurrent layers."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import FeedbackConfig
from stairwell.cores import CORES
from stairwell.rl.memory import Memory, MemoryGRU, MemoryLSTM
from tests import invariants
from tests.rl.test_agent import small_core

EXAMPLES = Path(__file__).parents[2] / "examples"
FIXED_SIZE = sorted(set(CORES) - {"global-cached-staircase"})  # the state of the other one grows
CORE = FeedbackConfig(width=8, heads=2, layers=1, memory=3)


def make_layer(layer: type[Any], name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return invariants.scramble(layer(small_core(name), 5, **options).double().eval())


@pytest.mark.parametrize("name", sorted(CORES))
@torch.no_grad()
def test_any_split_of_a_stream_gives_the_same_output(name: str) -> None:
    memory = make_layer(Memory, name)
    x, start = torch.randn(3, 9, 5, dtype=torch.float64), torch.rand(3, 9) < 0.2
    expected, expected_state = memory(x, memory.init_state(3), start)
    state, outputs = memory.init_state(3), []
    for frames in (slice(0, 1), slice(1, 6), slice(6, 9)):
        y, state = memory(x[:, frames], state, start[:, frames])
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, **invariants.CLOSE)
    for (path, tensor), (_, other) in zip(state.tensors(), expected_state.tensors(), strict=True):
        torch.testing.assert_close(tensor, other, **invariants.CLOSE, msg=path)
    assert expected.shape == (3, 9, 8)


@pytest.mark.parametrize("name", FIXED_SIZE)
@pytest.mark.parametrize("layer_class", [MemoryGRU, MemoryLSTM])
def test_multiplying_the_state_with_0_equals_start(layer_class: type[Any], name: str) -> None:
    """Frame by frame, as other libraries reset; also the gradients through time."""
    layer = make_layer(layer_class, name)
    x = torch.randn(6, 2, 5, dtype=torch.float64, requires_grad=True)
    start = torch.zeros(2, 6, dtype=torch.bool)
    start[0, 3] = start[1, 5] = True
    expected, expected_state = layer(x, start=start)
    state = None
    outputs = []
    for t in range(6):
        if state is not None:
            keep = (~start[:, t]).double().view(1, 2, 1)
            state = state * keep if isinstance(state, torch.Tensor) else tuple(part * keep for part in state)
        y, state = layer(x[t : t + 1], state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs), expected, **invariants.CLOSE)
    torch.testing.assert_close(state, expected_state, **invariants.CLOSE)
    gradient = torch.autograd.grad(torch.cat(outputs)[-1].square().sum(), x)[0]
    expected_gradient = torch.autograd.grad(expected[-1].square().sum(), x)[0]
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-9)
    assert expected_gradient[3, 0].any() and not expected_gradient[2, 0].any()


def test_attributes_and_shapes_are_those_of_torchs_layers() -> None:
    core = FeedbackConfig(width=16, heads=2, layers=1, memory=4)
    gru, lstm = MemoryGRU(core, 5, batch_first=True), MemoryLSTM(core, 5)
    torch_lstm = torch.nn.LSTM(5, lstm.hidden_size)
    for name in ("input_size", "hidden_size", "num_layers", "batch_first", "bidirectional"):
        assert getattr(lstm, name) == getattr(torch_lstm, name)
    y, (h, c) = lstm(torch.zeros(7, 3, 5))
    assert y.shape == (7, 3, 16) and h.shape == c.shape == torch_lstm(torch.zeros(7, 3, 5))[1][0].shape
    y, h = gru(torch.zeros(3, 7, 5))
    assert y.shape == (3, 7, 16) and h.shape == (1, 3, gru.hidden_size)
    assert gru.hidden_size == 4 * 16 + 6  # memory positions, and the digits of two counts
    with pytest.raises(ValueError, match=r"shape \(3, 5\); it must be \(batch, time, features\) with 5 features"):
        gru(torch.zeros(3, 5))


@pytest.mark.parametrize("features", [0, -1, 1.5, True])
def test_invalid_numbers_of_features_raise(features: Any) -> None:
    with pytest.raises(ValueError, match="features must be an integer of at least 1"):
        Memory(CORE, features)


def test_states_of_a_wrong_shape_raise() -> None:
    lstm, gru, x = MemoryLSTM(CORE, 5), MemoryGRU(CORE, 5), torch.randn(4, 2, 5)
    for shape in ((2, 2), (1, 3)):
        with pytest.raises(ValueError, match=r"it must be \(1, batch, hidden_size\)"):
            lstm(x, (torch.zeros(*shape, lstm.hidden_size), torch.zeros(*shape, lstm.hidden_size)))
        with pytest.raises(ValueError, match=r"it must be \(1, batch, hidden_size\)"):
            gru(x, torch.zeros(*shape, gru.hidden_size))
    _, states = lstm(x)
    assert lstm(x, states)[0].shape == (4, 2, 8) and gru(x, gru(x)[1])[0].shape == (4, 2, 8)


@pytest.mark.parametrize("name", ["sb3_recurrent_ppo", "torchrl_memory"])
def test_examples_with_other_libraries_run(name: str) -> None:
    pytest.importorskip("sb3_contrib" if "sb3" in name else "torchrl")
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["train"](frames=512)


def test_the_single_file_ppo_runs() -> None:
    pytest.importorskip("gymnasium")
    example = runpy.run_path(str(EXAMPLES / "ppo_memory.py"))
    assert 0 <= example["train"](example["Args"](frames=2048)) <= 1


@pytest.mark.slow
def test_the_single_file_ppo_learns() -> None:
    example = runpy.run_path(str(EXAMPLES / "ppo_memory.py"))
    assert example["train"](example["Args"]()) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sb3_recurrent_ppo", "torchrl_memory"])
def test_examples_with_other_libraries_learn(name: str) -> None:
    pytest.importorskip("sb3_contrib" if "sb3" in name else "torchrl")
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["train"]() >= 0.9
