"""Presets of agents. At paper scale the hyperparameters are those of sections 7.2 and 7.3 of Fan et al. 2020."""

from __future__ import annotations

import dataclasses

from stairwell.rl.agent import AgentConfig
from stairwell.rl.task import RLTaskConfig
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.presets.build import PresetScale, base_run, small_run, with_core

PPO = AgentTrainConfig(
    algorithm="ppo", steps=6000, batch=64, segment=100, learning_rate=1e-3, warmup=50, decay="cosine", gae_lambda=0.95,
    ent_coef=0.01, normalize_advantage=True, normalize_rewards=False, validate_every=1000, checkpoint_every=500,
    valid_batch=64,
)  # fmt: skip
LONG_PPO = dataclasses.replace(PPO, steps=15_000, validate_every=1500)  # 6 million frames
A2C_ADAM = AgentTrainConfig(
    algorithm="a2c", steps=20_000, batch=1024, segment=100, learning_rate=3e-4, warmup=0, ent_coef=5e-4,
    max_grad_norm=0, normalize_rewards=False, validate_every=1000, checkpoint_every=1000,
)  # fmt: skip
A2C_RMSPROP = dataclasses.replace(A2C_ADAM, optimizer="rmsprop", eps=0.01, batch=128, steps=40_000)


def rl(core: str) -> RunConfig:
    return small_run(
        "rl", core, heads=4,
        train=AgentTrainConfig(
            algorithm="ppo", steps=1500, batch=64, segment=64, learning_rate=1e-3, warmup=50, decay="cosine",
            gae_lambda=0.95, ent_coef=0.01, normalize_advantage=True, validate_every=500, checkpoint_every=500,
            valid_batch=64,
        ),
    )  # fmt: skip


def agent_run(
    env: RLTaskConfig, train: AgentTrainConfig, *, width: int, heads: int, memory: int, history: bool = False,
    normalize: bool = False,
) -> RunConfig:  # fmt: skip
    """Return a run of an agent with two Transformer-XL layers.

    `history`: the agent observes its last action and reward. `normalize`: observations are normalized, which the paper
    does not do.
    """
    model = AgentConfig(normalize_observations=normalize, last_action=history, last_reward=history)
    return base_run(
        task_name="rl", task=env, train=train, layers=2, width=width, heads=heads, core={"memory": memory}, model=model
    )


def corridor(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    if scale == "laptop":
        train = dataclasses.replace(PPO, steps=1600, segment=64)
        base = agent_run(RLTaskConfig(env="corridor", length=20), train, width=64, heads=4, memory=4)
    else:
        train = dataclasses.replace(A2C_ADAM, segment=200)
        base = agent_run(RLTaskConfig(env="corridor", length=100), train, width=256, heads=4, memory=100)
    return with_core(base, core)


def maze(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    if scale == "laptop":
        env = RLTaskConfig(env="maze-navigation", side=5, targets=4, max_steps=100)
        base = agent_run(env, LONG_PPO, width=64, heads=4, memory=100, history=True, normalize=True)
    else:
        base = agent_run(RLTaskConfig(env="maze-navigation"), A2C_ADAM, width=256, heads=4, memory=200, history=True)
    return with_core(base, core)


def easy_maze(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    run = maze(core, scale).replace(task={"env": "maze-navigation-easy"})
    return run if scale == "laptop" else dataclasses.replace(run, train=A2C_RMSPROP)


def water_maze(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    if scale == "laptop":
        env = RLTaskConfig(env="water-maze", side=7, max_steps=100)
        base = agent_run(env, LONG_PPO, width=64, heads=1, memory=100, history=True, normalize=True)
    else:
        # 500 million frames in steps of 64 times 200 frames.
        train = dataclasses.replace(A2C_RMSPROP, batch=64, segment=200, ent_coef=1e-4, steps=39_063)
        base = agent_run(RLTaskConfig(env="water-maze"), train, width=64, heads=1, memory=200, history=True)
    return with_core(base, core)
