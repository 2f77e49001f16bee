"""The benchmark of memories in PPO: it counts what a rollout stores, and trains as the example does."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from bench import rl_memory
from stairwell.experiments.papers.stale_states import FRAMES, VARIANTS

pytest.importorskip("popgym")
EXAMPLE = Path(__file__).parents[2] / "examples" / "sb3_ten_lines.py"


def test_a_state_per_frame_needs_as_many_times_the_memory() -> None:
    whole, single = (rl_memory.stored_bytes(VARIANTS[name]) for name in ("whole rollout", "windows of 1 frame, stored"))
    assert single == FRAMES * whole
    assert whole == rl_memory.ENVS * (4 * 8 * 64 + 2 * 8)  # 8 memory positions of width 64, and two counts


def test_stored_states_are_timed() -> None:
    small = {name: config.with_options({"train.epochs": "1"}) for name, config in VARIANTS.items()}
    records = rl_memory.measure_stored_states(small, rounds=1)
    assert [record["what"] for record in records] == list(VARIANTS)
    assert all(record["rollout_microseconds_per_frame"] > 0 for record in records)


def test_recurrent_ppo_is_trained_with_the_options_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    sb3_contrib = pytest.importorskip("sb3_contrib")
    record = rl_memory.train_with_sb3("feedback", seed=0, frames=5 * 1024)
    # For the actor and the critic: 8 memory positions of width 64, and two counts of three numbers each.
    assert record["state_bytes_per_frame"] == 2 * 4 * (8 * 64 + 2 * 3)
    assert len(record["curve"]) == 1 and record["curve"][0][0] == 5 * 1024
    calls: list[Any] = []

    class Recorded:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            calls.append((arguments, options))

        def learn(self, frames: int) -> Recorded:
            calls.append(frames)
            return self

        def save(self, path: str) -> None: ...

    monkeypatch.setattr(sb3_contrib, "RecurrentPPO", Recorded)
    runpy.run_path(str(EXAMPLE))
    (arguments, options), frames = calls
    policy, policy_options = rl_memory.POLICIES["feedback"]
    assert arguments[0] == policy and arguments[1].num_envs == rl_memory.NUM_ENVS
    assert options == {**rl_memory.PPO, "policy_kwargs": policy_options, "verbose": 1, "seed": 0}
    assert frames == rl_memory.TOTAL_FRAMES
