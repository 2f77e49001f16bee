"""A core as a memory for other people's learners: plain, and shaped like torch's own recurrent layers."""

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
from tests.rl.test_agent import core_of

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKS = sorted(set(CORES) - {"global-cached-staircase"})  # whose state grows


def made(kind: type[Any], name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return invariants.scramble(kind(core_of(name), 5, **options).double().eval())


@pytest.mark.parametrize("name", sorted(CORES))
@torch.no_grad()
def test_any_cut_of_a_stream_gives_the_same_features(name: str) -> None:
    memory = made(Memory, name)
    x, start = torch.randn(3, 9, 5, dtype=torch.float64), torch.rand(3, 9) < 0.2
    whole, after = memory(x, memory.init_state(3), start)
    state, parts = memory.init_state(3), []
    for frames in (slice(0, 1), slice(1, 6), slice(6, 9)):
        y, state = memory(x[:, frames], state, start[:, frames])
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, **invariants.CLOSE)
    for (path, one), (_, other) in zip(state.tensors(), after.tensors(), strict=True):
        torch.testing.assert_close(one, other, **invariants.CLOSE, msg=path)
    assert whole.shape == (3, 9, 8)


@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("kind", [MemoryGRU, MemoryLSTM])
def test_a_packed_memory_goes_through_other_libraries_unharmed(kind: type[Any], name: str) -> None:
    """Frame by frame, with rows begun anew by multiplying with 0, as with `start`; gradients through time as well."""
    layer = made(kind, name)
    x = torch.randn(6, 2, 5, dtype=torch.float64, requires_grad=True)
    start = torch.zeros(2, 6, dtype=torch.bool)
    start[0, 3] = start[1, 5] = True
    whole, last = layer(x, start=start)
    hidden = None
    outputs = []
    for t in range(6):
        if hidden is not None:
            keep = (~start[:, t]).double().view(1, 2, 1)
            hidden = hidden * keep if isinstance(hidden, torch.Tensor) else tuple(part * keep for part in hidden)
        y, hidden = layer(x[t : t + 1], hidden)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs), whole, **invariants.CLOSE)
    torch.testing.assert_close(hidden, last, **invariants.CLOSE)
    ours = torch.autograd.grad(torch.cat(outputs)[-1].square().sum(), x)[0]
    theirs = torch.autograd.grad(whole[-1].square().sum(), x)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    assert theirs[3, 0].any() and not theirs[2, 0].any()


def test_sizes_are_those_that_torchs_layers_have() -> None:
    core = FeedbackConfig(width=16, heads=2, layers=1, memory=4)
    gru, lstm = MemoryGRU(core, 5, batch_first=True), MemoryLSTM(core, 5)
    theirs = torch.nn.LSTM(5, lstm.hidden_size)
    for name in ("input_size", "hidden_size", "num_layers", "batch_first", "bidirectional"):
        assert getattr(lstm, name) == getattr(theirs, name)
    y, (h, c) = lstm(torch.zeros(7, 3, 5))
    assert y.shape == (7, 3, 16) and h.shape == c.shape == theirs(torch.zeros(7, 3, 5))[1][0].shape
    y, h = gru(torch.zeros(3, 7, 5))
    assert y.shape == (3, 7, 16) and h.shape == (1, 3, gru.hidden_size)
    assert gru.hidden_size == 4 * 16 + 6  # slots, and the digits of two counts
    with pytest.raises(ValueError, match=r"the input must have rows, time and 5 features, not \(3, 5\)"):
        gru(torch.zeros(3, 5))


@pytest.mark.parametrize("name", ["sb3_recurrent_ppo", "torchrl_memory"])
def test_the_examples_with_other_libraries_run(name: str) -> None:
    pytest.importorskip("sb3_contrib" if "sb3" in name else "torchrl")
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["train"](frames=512)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sb3_recurrent_ppo", "torchrl_memory"])
def test_the_examples_with_other_libraries_learn(name: str) -> None:
    pytest.importorskip("sb3_contrib" if "sb3" in name else "torchrl")
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["train"]() >= 0.9
