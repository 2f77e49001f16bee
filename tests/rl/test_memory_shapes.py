"""Memories refuse sizes and states that do not fit, instead of reading a part of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stairwell import FeedbackConfig
from stairwell.rl import Memory, MemoryGRU, MemoryLSTM

CORE = FeedbackConfig(width=8, heads=2, layers=1, memory=3)


@pytest.mark.parametrize("features", [0, -1, 1.5, True])
def test_features_are_a_count(features: Any) -> None:
    with pytest.raises(ValueError, match="features must be an integer of at least 1"):
        Memory(CORE, features)


def test_states_of_two_layers_are_refused() -> None:
    lstm, gru, x = MemoryLSTM(CORE, 5), MemoryGRU(CORE, 5), torch.randn(4, 2, 5)
    for shape in ((2, 2), (1, 3)):
        with pytest.raises(ValueError, match="a state must be"):
            lstm(x, (torch.zeros(*shape, lstm.hidden_size), torch.zeros(*shape, lstm.hidden_size)))
        with pytest.raises(ValueError, match="a state must be"):
            gru(x, torch.zeros(*shape, gru.hidden_size))
    _, states = lstm(x)
    assert lstm(x, states)[0].shape == (4, 2, 8) and gru(x, gru(x)[1])[0].shape == (4, 2, 8)
