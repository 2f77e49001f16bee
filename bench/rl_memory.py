"""What a Feedback memory brings to a PPO, and what it costs, in popgym's RepeatPrevious (easy).

    feedback, lstm, lstm-256   RecurrentPPO of sb3-contrib with our policy, and with its own LSTM policy: as many
                               parameters, and sb3-contrib's default sizes. Options of examples/sb3_ten_lines.py.
    stored-states              our PPO: bytes and CPU time per frame by how many states a rollout stores

Training uses one thread. Times are CPU times of the process, since other processes make wall-clock time longer.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bench.agents import our_steps
from bench.records import Record
from stairwell import FeedbackConfig
from stairwell.experiments.papers.stale_states import ENVS, EPOCHS, FRAMES, VARIANTS
from stairwell.rl.rollouts import RolloutSource
from stairwell.runs.config import RunConfig

ENV, NUM_ENVS, TOTAL_FRAMES, SEEDS, ROUNDS = "popgym-RepeatPreviousEasy-v0", 16, 80_000, 3, 5
PPO = {"n_steps": 64, "batch_size": 256, "n_epochs": 4, "learning_rate": 1e-3, "gamma": 0.5}
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "feedback": (
        "MlpMemoryPolicy",
        {"core": FeedbackConfig(width=64, heads=4, layers=1, memory=8), "net_arch": []},
    ),
    "lstm": ("MlpLstmPolicy", {"lstm_hidden_size": 64}),
    "lstm-256": ("MlpLstmPolicy", {}),
}
CASES = (*POLICIES, "stored-states")
POINT = 5  # rollouts per point of a curve


def train_with_sb3(case: str, seed: int, frames: int = TOTAL_FRAMES) -> Record:
    """Train one policy. Returns are means over the last 100 training episodes, and over 100 test episodes."""
    import popgym  # noqa: F401  registers its environments
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    import stairwell.rl.sb3  # noqa: F401  registers our policies

    policy, options = POLICIES[case]
    model = RecurrentPPO(
        policy, make_vec_env(ENV, n_envs=NUM_ENVS, seed=seed), policy_kwargs=options, seed=seed, device="cpu", **PPO
    )
    curve: list[tuple[int, float]] = []

    class Curve(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            if self.n_calls // PPO["n_steps"] % POINT == 0:
                returns = [episode["r"] for episode in model.ep_info_buffer]
                curve.append((self.num_timesteps, round(float(np.mean(returns)), 4)))

    began = time.process_time()
    model.learn(frames, callback=Curve())
    seconds = time.process_time() - began
    test, _ = evaluate_policy(model, make_vec_env(ENV, n_envs=10, seed=1000 + seed), n_eval_episodes=100)
    buffer = model.rollout_buffer
    states = (buffer.hidden_states_pi, buffer.cell_states_pi, buffer.hidden_states_vf, buffer.cell_states_vf)
    return {
        "case": case, "what": policy, "seed": seed, "frames": model.num_timesteps,
        "parameters": sum(parameter.numel() for parameter in model.policy.parameters()),
        "test_return": round(float(np.mean(test)), 4),
        "cpu_microseconds_per_frame": round(1e6 * seconds / model.num_timesteps),
        "state_bytes_per_frame": sum(part.nbytes for part in states) // (PPO["n_steps"] * NUM_ENVS),
        "curve": curve,
    }  # fmt: skip


def cpu_time(function: Callable[[], None]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def measure_stored_states(variants: dict[str, RunConfig], rounds: int = ROUNDS) -> list[Record]:
    """Return bytes and times per frame, the times as medians over interleaved rounds."""
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: our_steps(config, folder)[0] for name, config in variants.items()}
        times: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds + 1):
            for name, parts in steps.items():
                for part in ("playing", "learning"):
                    seconds = cpu_time(parts[part])
                    if number:  # the first round is a warm-up
                        times.setdefault((name, part), []).append(seconds)
    frames = ENVS * FRAMES
    return [
        {
            "case": "stored-states", "what": name, "rounds": rounds, "epochs": EPOCHS,
            "state_bytes_per_frame": stored_bytes(config) / frames,
            "rollout_microseconds_per_frame": round(1e6 * statistics.median(times[name, "playing"]) / frames),
            "learning_microseconds_per_frame": round(1e6 * statistics.median(times[name, "learning"]) / frames),
        }
        for name, config in variants.items()
    ]  # fmt: skip


def stored_bytes(config: RunConfig) -> int:
    """Return the size of the states of one rollout."""
    (task,) = config.make_tasks()
    source: Any = task.batch_source(config.make_model(task), config.train)(range(ENVS), ENVS, 0)
    assert isinstance(source, RolloutSource)
    return sum(state.nbytes for state in source.collect(FRAMES).states)


def measure(cases: Sequence[str] = CASES) -> list[Record]:
    torch.set_num_threads(1)
    measured = []
    for case in cases:
        if case == "stored-states":
            measured += measure_stored_states(VARIANTS)
        else:
            measured += [train_with_sb3(case, seed) for seed in range(SEEDS)]
    return measured
