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
    start = torch.zeros(6, 2, dtype=torch.bool)
    start[3, 0] = start[5, 1] = True
    expected, expected_state = layer(x, start=start)
    state = None
    outputs = []
    for t in range(6):
        if state is not None:
            keep = (~start[t]).double().view(1, 2, 1)
            state = state * keep if isinstance(state, torch.Tensor) else tuple(part * keep for part in state)
        y, state = layer(x[t : t + 1], state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs), expected, **invariants.CLOSE)
    torch.testing.assert_close(state, expected_state, **invariants.CLOSE)
    gradient = torch.autograd.grad(torch.cat(outputs)[-1].square().sum(), x)[0]
    expected_gradient = torch.autograd.grad(expected[-1].square().sum(), x)[0]
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-9)
    assert expected_gradient[3, 0].any() and not expected_gradient[2, 0].any()


@pytest.mark.parametrize("layer_class", [MemoryGRU, MemoryLSTM])
def test_start_has_the_layout_of_the_input_and_may_hold_0_and_1(layer_class: type[Any]) -> None:
    """With as many streams as frames, the shape does not tell the layouts apart."""
    torch.manual_seed(0)
    by_time = layer_class(CORE, 5).eval()
    by_batch = layer_class(CORE, 5, batch_first=True).eval()
    by_batch.load_state_dict(by_time.state_dict())
    x, start = torch.randn(4, 4, 5), torch.zeros(4, 4)
    start[2, 0] = 1
    expected = by_time(x, start=start.bool())[0]
    torch.testing.assert_close(by_time(x, start=start)[0], expected)
    torch.testing.assert_close(by_batch(x.transpose(0, 1), start=start.T.bool())[0].transpose(0, 1), expected)
    alone = by_time(x[2:, :1])[0]
    torch.testing.assert_close(expected[2:, :1], alone)


def test_wrong_start_tensors_raise() -> None:
    lstm, x = MemoryLSTM(CORE, 5), torch.randn(3, 2, 5)
    with pytest.raises(ValueError, match=r"start has shape \(2, 3\); it must be a tensor \(time, batch\) = \(3, 2\)"):
        lstm(x, start=torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"start has shape \(2,\)"):
        lstm(x, start=torch.zeros(2))
    with pytest.raises(ValueError, match="start has type list"):
        lstm(x, start=[[0, 1]] * 3)
    with pytest.raises(ValueError, match=r"must contain 1 \(or true\) where a stream is reset"):
        lstm(x, start=torch.full((3, 2), 0.5))
    memory = Memory(CORE, 5)
    with pytest.raises(ValueError, match=r"it must be a tensor \(batch, time\) = \(3, 2\)"):
        memory(x, memory.init_state(3), torch.zeros(2, 3))


def test_wrong_calls_of_layers_raise() -> None:
    lstm, gru, x = MemoryLSTM(CORE, 5), MemoryGRU(CORE, 5), torch.randn(4, 2, 5)
    with pytest.raises(ValueError, match=r"shape \(4, 2, 7\); it must be \(time, batch, features\) with 5 features"):
        lstm(torch.randn(4, 2, 7))
    with pytest.raises(TypeError, match=r"the state must be the pair \(h, c\)"):
        lstm(x, torch.zeros(1, 2, lstm.hidden_size))
    with pytest.raises(TypeError, match=r"the state must be a tensor \(1, batch, hidden_size\), not a tuple"):
        gru(x, lstm(x)[1])
    memory = Memory(CORE, 5)
    with pytest.raises(ValueError, match=r"it must be \(batch, time, features\) with 5 features"):
        memory(x[..., :3], memory.init_state(4))


@pytest.mark.parametrize("core", [12, "feedback", {"width": 8}, None])
def test_a_core_that_is_not_a_config_raises(core: Any) -> None:
    with pytest.raises(TypeError, match=r"core must be the config of a core, such as FeedbackConfig\(width=32"):
        MemoryLSTM(core, 32)


def test_code_written_for_torchs_layers_finds_its_attributes() -> None:
    lstm = MemoryLSTM(CORE, 5)
    lstm.flatten_parameters()
    assert lstm.output_size == 8 and "output_size" in (MemoryLSTM.__doc__ or "")


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


def test_a_compiled_layer_returns_the_same() -> None:
    """Segments are large enough for the buffers that the engine keeps for reuse."""
    lstm = MemoryLSTM(FeedbackConfig(width=64, heads=2, layers=1, memory=3), 12)
    x, start = torch.randn(32, 16, 12), torch.zeros(32, 16, dtype=torch.bool)
    start[5, 3] = True
    y, (h, c) = lstm(x, None, start)
    y.sum().backward()
    gradient = lstm.memory.input_projection.weight.grad.clone()
    lstm.zero_grad()
    compiled = torch.compile(lstm, backend="eager")
    for _ in range(2):
        other, (other_h, other_c) = compiled(x, None, start)
        assert (other == y).all() and (other_h == h).all() and (other_c == c).all()
    other.sum().backward()
    torch.testing.assert_close(lstm.memory.input_projection.weight.grad, gradient)
