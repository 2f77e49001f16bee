"""Frames a second of an agent's training, Feedback beside Transformer-XL, an LSTM and sb3-contrib's RecurrentPPO.

In one process, taking turns, 64 rows of a laptop study's environment, 2 layers of width 64, PPO of 4 epochs with 4
minibatches each:

    loop       all of it: play a rollout, then its 16 updates; frames are those of the environment
    learning   the 16 updates alone, on one rollout that is kept; a frame counts once an epoch
    playing    the rollout alone

RecurrentPPO plays in the same batched environment, with one LSTM for policy and value (pip install
'stairwell[bench]'). Ratios are taken round by round, so that a slow moment of the machine hits both sides.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bench.speed import spread, take_turns
from stairwell.experiments.papers.feedback.agents import CORRIDOR, MAZE, AgentSetting
from stairwell.rl.learners import ActorCritic
from stairwell.rl.rollouts import Rollouts
from stairwell.rl.rows import Rows
from stairwell.rl.spaces import MultiDiscrete, to_gymnasium
from stairwell.rl.task import Reinforcement, agent_trainer
from stairwell.train.run import Run

ROUNDS = 5
WARM_UP = 1  # a step is a whole rollout already
SETTINGS: dict[str, AgentSetting] = {"maze": MAZE["laptop"], "corridor": CORRIDOR["laptop"]}
CASES = tuple(SETTINGS)
CORES = ("feedback", "transformer-xl", "lstm")
PARTS = ("loop", "learning", "playing")

Steps = dict[str, Callable[[], None]]


def our_steps(setting: AgentSetting, core: str, folder: str) -> tuple[Steps, int]:
    """What is timed of one of our agents, and how many parameters it has."""
    experiment = setting.experiment(core, setting.memory)
    config = experiment.train
    torch.manual_seed(0)
    (task,) = experiment.make_tasks()
    agent = experiment.make_model(task)

    def update(trainer: Any) -> Callable[[], None]:
        def step() -> None:
            for _ in range(config.reads):
                trainer.update()

        return step

    loop, learning = (agent_trainer(agent, [task], config, Run(folder)) for _ in range(2))
    kept: Any = learning.batch_source
    assert isinstance(kept, Rollouts) and isinstance(learning.objective, ActorCritic)
    rollout = kept.play(config.segment)
    playing = task.batch_source(agent, config)(range(config.batch), config.batch, 1)
    kept.play = lambda length: rollout
    steps: Steps = {
        "loop": update(loop),
        "learning": update(learning),
        "playing": lambda: playing.play(config.segment) and None,
    }
    return steps, sum(parameter.numel() for parameter in agent.parameters())


def sb3_steps(setting: AgentSetting) -> tuple[Steps, int]:
    """The same of sb3-contrib's RecurrentPPO, in the same batched environment."""
    from sb3_contrib import RecurrentPPO

    config = setting.train
    rows = Reinforcement(setting.env).open(range(config.batch), 0)
    model = RecurrentPPO(
        "MlpLstmPolicy", sb3_environment(rows), n_steps=config.segment, n_epochs=config.epochs, seed=0, device="cpu",
        batch_size=config.batch * config.segment // config.minibatches, learning_rate=config.learning_rate,
        gamma=config.gamma, gae_lambda=config.gae_lambda, ent_coef=config.ent_coef, vf_coef=config.vf_coef,
        policy_kwargs={
            "lstm_hidden_size": setting.width, "n_lstm_layers": setting.lstm_layers, "net_arch": [],
            "shared_lstm": True, "enable_critic_lstm": False,
        },
    )  # fmt: skip
    frames = config.batch * config.segment

    def playing() -> None:
        model.collect_rollouts(model.env, nothing, model.rollout_buffer, config.segment)

    def loop() -> None:
        model.learn(frames, reset_num_timesteps=False)

    loop()
    nothing = model._init_callback(None)
    nothing.on_training_start({}, {})
    steps: Steps = {"loop": loop, "learning": model.train, "playing": playing}
    return steps, sum(parameter.numel() for parameter in model.policy.parameters())


def sb3_environment(rows: Rows) -> Any:
    """Rows as a vector environment of stable-baselines3, which begins new episodes by itself too. Of several whole
    numbers it sees a place for each value: its LSTM does not take them otherwise."""
    from gymnasium.spaces import Box
    from stable_baselines3.common.vec_env import VecEnv

    assert isinstance(rows.observation_space, MultiDiscrete)
    sizes = np.array(rows.observation_space.sizes)
    places, numbers = np.concatenate([[0], sizes[:-1].cumsum()]), np.arange(rows.B)[:, None]

    def ones(observations: Any) -> Any:
        seen = np.zeros((rows.B, int(sizes.sum())), dtype=np.float32)
        seen[numbers, places + observations["observation"]] = 1
        return seen

    class Environment(VecEnv):
        def __init__(self) -> None:
            super().__init__(rows.B, Box(0, 1, (int(sizes.sum()),)), to_gymnasium(rows.action_space))

        def reset(self) -> Any:
            return ones(rows.begin())

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            frame = rows.step(self.actions)
            infos: list[dict[str, Any]] = [{} for _ in range(rows.B)]
            over = frame.terminated | frame.truncated
            last = ones(frame.last) if over.any() else None
            for row in np.flatnonzero(over):
                infos[row] = {"terminal_observation": last[row], "TimeLimit.truncated": bool(frame.truncated[row])}
            return ones(frame.observations), frame.rewards, over, infos

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * rows.B

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **options: Any) -> list[Any]:
            raise NotImplementedError(method_name)

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * rows.B

    return Environment()


def measure_case(name: str, setting: AgentSetting, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    frames, epochs = setting.train.batch * setting.train.segment, setting.train.epochs
    with tempfile.TemporaryDirectory() as folder:
        found = {core: our_steps(setting, core, folder) for core in CORES}
        try:
            found["sb3-contrib RecurrentPPO"] = sb3_steps(setting)
        except ImportError as missing:
            print(f"sb3-contrib left out: {missing}; pip install 'stairwell[bench]'", file=sys.stderr)
        records: dict[str, dict[str, Any]] = {
            who: {"case": name, "what": who, "weights": weights, "rounds": rounds}
            for who, (_, weights) in found.items()
        }
        for part in PARTS:
            times = take_turns({who: steps[part] for who, (steps, _) in found.items()}, rounds, WARM_UP)
            counted = frames * epochs if part == "learning" else frames
            for who, record in records.items():
                ratios = [theirs / ours for ours, theirs in zip(times["feedback"], times[who])]
                record[f"{part}_frames_per_second"] = round(counted / statistics.median(times[who]))
                record[f"{part}_spread"] = spread(times[who])
                record[f"{part}_feedback_over_this"] = round(statistics.median(ratios), 2)
                record[f"{part}_ratios"] = [round(min(ratios), 2), round(max(ratios), 2)]
    return list(records.values())


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_case(name, SETTINGS[name])]
