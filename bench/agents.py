"""Frames per second of training agents: Feedback, Transformer-XL, LSTM and sb3-contrib's RecurrentPPO.

All are interleaved in one process, with 64 environments of a laptop-scale experiment, 2 layers of width 64, and PPO
with 4 epochs of 4 minibatches:

    loop       collect a rollout, then take its 16 optimizer steps; frames are those of the environment
    learning   only the 16 steps, on one fixed rollout; a frame counts once per epoch
    playing    only the rollout

RecurrentPPO uses the same batched environment, with one LSTM for policy and value (pip install "sb3-contrib>=2.6").
Ratios are computed per round, so that a slow phase of the machine affects both sides.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bench.speed import spread, time_interleaved
from stairwell.errors import install_command
from stairwell.experiments.papers.feedback.agents import agents
from stairwell.rl.algorithms import ActorCritic
from stairwell.rl.rollouts import RolloutSource
from stairwell.rl.spaces import MultiDiscrete, to_gymnasium
from stairwell.rl.task import agent_trainer
from stairwell.rl.vector_env import VectorEnv
from stairwell.runs import presets
from stairwell.runs.config import RunConfig
from stairwell.runs.run import Run

ROUNDS = 5
WARM_UP = 1  # a step is a whole rollout
CORES = ("feedback", "transformer-xl", "lstm")
PARTS = ("loop", "learning", "playing")

Configs = dict[str, RunConfig]  # by core
Steps = dict[str, Callable[[], None]]


def configs_by_core(base: RunConfig, lstm_layers: int) -> Configs:
    configs = {variant.config.core_name: variant.config for variant in agents(base, lstm_layers)}
    return {core: configs[core] for core in CORES}


CONFIGS: dict[str, Configs] = {
    "maze": configs_by_core(presets.maze(scale="laptop"), 3),
    "corridor": configs_by_core(presets.corridor(scale="laptop"), 2),
}
CASES = tuple(CONFIGS)


def our_steps(config: RunConfig, folder: str) -> tuple[Steps, int]:
    """Return the steps to time of one of our agents, and its number of parameters."""
    train = config.train
    torch.manual_seed(0)
    (task,) = config.make_tasks()
    agent = config.make_model(task)

    def train_on_rollout(trainer: Any) -> Callable[[], None]:
        def step() -> None:
            for _ in range(train.optimizer_steps_per_rollout):
                trainer.train_step()

        return step

    loop, learning = (agent_trainer(agent, task, train, Run(folder)) for _ in range(2))
    source: Any = learning.batch_source
    assert isinstance(source, RolloutSource) and isinstance(learning.objective, ActorCritic)
    rollout = source.collect(train.segment)
    playing = task.batch_source(agent, train)(range(train.batch), train.batch, 1)
    source.collect = lambda length: rollout
    steps: Steps = {
        "loop": train_on_rollout(loop),
        "learning": train_on_rollout(learning),
        "playing": lambda: playing.collect(train.segment) and None,
    }
    return steps, sum(parameter.numel() for parameter in agent.parameters())


def sb3_steps(config: RunConfig) -> tuple[Steps, int]:
    """Return the same for sb3-contrib's RecurrentPPO, in the same environment, with the sizes of our LSTM."""
    from sb3_contrib import RecurrentPPO

    train = config.train
    (task,) = config.make_tasks()
    model = RecurrentPPO(
        "MlpLstmPolicy", sb3_environment(task.make_env(range(train.batch), 0)), n_steps=train.segment,
        n_epochs=train.epochs, batch_size=train.batch * train.segment // train.minibatches, seed=0, device="cpu",
        learning_rate=train.learning_rate, gamma=train.gamma, gae_lambda=train.gae_lambda, ent_coef=train.ent_coef,
        vf_coef=train.vf_coef,
        policy_kwargs={
            "lstm_hidden_size": config.core.width, "n_lstm_layers": config.core.layers, "net_arch": [],
            "shared_lstm": True, "enable_critic_lstm": False,
        },
    )  # fmt: skip
    frames = train.batch * train.segment

    def playing() -> None:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, train.segment)

    def loop() -> None:
        model.learn(frames, reset_num_timesteps=False)

    loop()
    callback = model._init_callback(None)
    callback.on_training_start({}, {})
    steps: Steps = {"loop": loop, "learning": model.train, "playing": playing}
    return steps, sum(parameter.numel() for parameter in model.policy.parameters())


def sb3_environment(env: VectorEnv) -> Any:
    """Wrap our environment as a vector environment of stable-baselines3. Integer observations are one-hot encoded,
    because its LSTM policy does not accept them otherwise."""
    from gymnasium.spaces import Box
    from stable_baselines3.common.vec_env import VecEnv

    assert isinstance(env.observation_space, MultiDiscrete)
    nvec, num_envs = np.array(env.observation_space.nvec), env.num_envs
    offsets, indices = np.concatenate([[0], nvec[:-1].cumsum()]), np.arange(num_envs)[:, None]

    def one_hot(observations: Any) -> Any:
        encoded = np.zeros((num_envs, int(nvec.sum())), dtype=np.float32)
        encoded[indices, offsets + observations["observation"]] = 1
        return encoded

    class Environment(VecEnv):
        def __init__(self) -> None:
            super().__init__(num_envs, Box(0, 1, (int(nvec.sum()),)), to_gymnasium(env.action_space))

        def reset(self) -> Any:
            return one_hot(env.reset())

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            step = env.step(self.actions)
            infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
            done = step.terminated | step.truncated
            final = one_hot(step.final_observations) if done.any() else None
            for i in np.flatnonzero(done):
                infos[i] = {"terminal_observation": final[i], "TimeLimit.truncated": bool(step.truncated[i])}
            return one_hot(step.observations), step.rewards, done, infos

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **options: Any) -> list[Any]:
            raise NotImplementedError(method_name)

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * num_envs

    return Environment()


def measure_case(case: str, configs: Configs, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    train = configs["feedback"].train
    frames, epochs = train.batch * train.segment, train.epochs
    with tempfile.TemporaryDirectory() as folder:
        timed = {core: our_steps(config, folder) for core, config in configs.items()}
        try:
            timed["sb3-contrib RecurrentPPO"] = sb3_steps(configs["lstm"])
        except ImportError as missing:
            print(f"sb3-contrib skipped: {missing}; {install_command('sb3-contrib>=2.6')}", file=sys.stderr)
        records: dict[str, dict[str, Any]] = {
            name: {"case": case, "what": name, "parameters": parameters, "rounds": rounds}
            for name, (_, parameters) in timed.items()
        }
        for part in PARTS:
            times = time_interleaved({name: steps[part] for name, (steps, _) in timed.items()}, rounds, WARM_UP)
            counted = frames * epochs if part == "learning" else frames
            for name, record in records.items():
                ratios = [theirs / ours for ours, theirs in zip(times["feedback"], times[name])]
                record[f"{part}_frames_per_second"] = round(counted / statistics.median(times[name]))
                record[f"{part}_spread"] = spread(times[name])
                record[f"{part}_feedback_over_this"] = round(statistics.median(ratios), 2)
                record[f"{part}_ratios"] = [round(min(ratios), 2), round(max(ratios), 2)]
    return list(records.values())


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    return [record for case in cases for record in measure_case(case, CONFIGS[case])]
