"""The module for TorchRL: rollouts equal segments, and episodes start with an empty memory."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchrl")

from tensordict import TensorDict

from stairwell import FeedbackConfig
from stairwell.rl.torchrl import MemoryModule


def test_frames_and_segments_are_equal() -> None:
    memory = MemoryModule(FeedbackConfig(width=8, heads=2, layers=1, memory=3), input_size=5)
    x, start = torch.randn(2, 7, 5), torch.zeros(2, 7, 1, dtype=torch.bool)
    start[:, 0], start[0, 4] = True, True
    state, outputs, states = torch.zeros(2, memory.gru.hidden_size), [], []
    for t in range(7):
        states.append(state)
        frame = memory(TensorDict({"observation": x[:, t], "memory": state, "is_init": start[:, t]}, [2]))
        outputs.append(frame["features"])
        state = frame["next", "memory"]
    whole = TensorDict({"observation": x, "memory": torch.stack(states, 1), "is_init": start}, [2, 7])
    torch.testing.assert_close(memory(whole)["features"], torch.stack(outputs, 1), rtol=1e-4, atol=1e-5)
    # A segment may start anywhere, with the memory stored there.
    torch.testing.assert_close(
        memory(whole[:, 3:].clone())["features"], torch.stack(outputs[3:], 1), rtol=1e-4, atol=1e-5
    )
    alone = memory(
        TensorDict({"observation": x[:1, 4], "memory": torch.zeros_like(states[0][:1]), "is_init": start[:1, 4]}, [1])
    )
    torch.testing.assert_close(alone["features"], outputs[4][:1], rtol=1e-4, atol=1e-5)


def test_other_batch_sizes_are_rejected() -> None:
    memory = MemoryModule(FeedbackConfig(width=8, heads=2, layers=1, memory=3), input_size=5)
    with pytest.raises(ValueError, match=r"it must be \(B,\) or \(B, T\)"):
        memory(
            TensorDict(
                {
                    "observation": torch.zeros(2, 3, 4, 5),
                    "memory": torch.zeros(2, 3, 4, 9),
                    "is_init": torch.zeros(2, 3, 4, 1, dtype=torch.bool),
                },
                [2, 3, 4],
            )
        )
