"""The module for TorchRL: rollouts equal segments, and episodes start with an empty memory."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchrl")

import gymnasium
from gymnasium.wrappers import FlattenObservation
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.envs import Compose, GymWrapper, InitTracker, SerialEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import ProbabilisticActor
from torchrl.objectives.value import GAE
from torchrl.objectives.value.functional import generalized_advantage_estimate

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


def test_an_environment_resets_the_memory_of_finished_episodes_only() -> None:
    """A rollout of torchrl, in which episodes of two environments end at different frames."""
    memory = MemoryModule(FeedbackConfig(width=8, heads=2, layers=1, memory=3), input_size=9)

    data = corridor_rollout(memory, 2, 30)
    with torch.no_grad():
        start = data["is_init"][..., 0]
        assert (start.sum(1) > 2).all() and (start[0] != start[1]).any()
        assert (data["memory"][start] == 0).all() and (data["memory"][~start] != 0).any(-1).all()
        torch.testing.assert_close(memory(data.clone())["features"], data["features"], rtol=1e-4, atol=1e-5)


def corridor_rollout(memory: MemoryModule, num_envs: int | None, frames: int, max_steps: int = 12) -> TensorDict:
    """Return a rollout of several environments, or of one without a dimension for them (None)."""

    def corridor() -> GymWrapper:
        return GymWrapper(FlattenObservation(gymnasium.make("stairwell/Corridor-v0", length=2, max_steps=max_steps)))

    base = corridor() if num_envs is None else SerialEnv(num_envs, corridor)
    env = TransformedEnv(base, Compose(InitTracker(), memory.make_tensordict_primer()))
    env.set_seed(0)
    torch.manual_seed(0)
    head = TensorDictModule(nn.Linear(8, 3), in_keys=["features"], out_keys=["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(memory, head), in_keys=["logits"], spec=env.action_spec,
        distribution_class=torch.distributions.OneHotCategorical,
    )  # fmt: skip
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        return env.rollout(frames, actor, break_when_any_done=False)


def test_a_single_environment_needs_no_batch_dimension() -> None:
    memory = MemoryModule(FeedbackConfig(width=8, heads=2, layers=1, memory=3), input_size=9)
    data = corridor_rollout(memory, None, 24)
    assert data.batch_size == (24,) and data["is_init"].sum() > 1
    torch.testing.assert_close(memory(data[None].clone())["features"][0], data["features"], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_shifted_advantages_equal_those_of_single_frames() -> None:
    memory = MemoryModule(FeedbackConfig(width=8, heads=2, layers=1, memory=3), input_size=9)
    data = corridor_rollout(memory, 2, 25, max_steps=4)
    # If an episode starts in the last frame, TorchRL also starts one after it.
    length = max(t for t in range(10, 26) if not data["is_init"][:, t - 1].any())
    data = data[:, :length]
    done, terminated = data["next", "done"], data["next", "terminated"]
    assert (done & ~terminated).any()
    value_head = TensorDictModule(nn.Linear(8, 1), in_keys=["features"], out_keys=["state_value"])
    network = TensorDictSequential(memory, value_head)
    # The value of each next observation, from the memory after its frame.
    frames = data["next"].select("observation", "memory").reshape(-1)
    frames["is_init"] = torch.zeros(2 * length, 1, dtype=torch.bool)
    value, next_value = network(data.copy())["state_value"], network(frames)["state_value"].view(2, length, 1)
    expected, _ = generalized_advantage_estimate(
        0.99, 0.95, value, next_value, data["next", "reward"], done, terminated
    )
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=network, shifted=True, shifted_budget=8)
    torch.testing.assert_close(gae(data.copy())["advantage"], expected, rtol=1e-4, atol=1e-5)


def test_advantages_by_vmap_are_rejected_with_advice() -> None:
    memory = MemoryModule(FeedbackConfig(width=8, heads=2, layers=1, memory=3), input_size=9)
    data = corridor_rollout(memory, 2, 6)
    value_head = TensorDictModule(nn.Linear(8, 1), in_keys=["features"], out_keys=["state_value"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=TensorDictSequential(memory, value_head))
    with pytest.raises(RuntimeError, match=r"does not support vmap.*use GAE\(..., shifted=True\)"):
        gae(data)


def test_other_batch_sizes_are_rejected() -> None:
    memory = MemoryModule(FeedbackConfig(width=8, heads=2, layers=1, memory=3), input_size=5)
    with pytest.raises(ValueError, match=r"it must be \(\), \(B,\) or \(B, T\)"):
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
