"""What the agents of Fan et al. 2020 share: sections 7.2 and 7.3, the laptop's recipe, what has to be said."""

from __future__ import annotations

import dataclasses

from stairwell.experiments.experiment import FEEDBACK, Experiment, Scale, Variant
from stairwell.experiments.measures import LastEpisodes, Metric
from stairwell.rl.agent import AgentConfig
from stairwell.rl.config import AgentTrainConfig
from stairwell.rl.task import Config
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import base_run, with_core

RETURN = Metric("return, test", "return")


MODELS = {"LSTM": "lstm", "Transformer": "transformer-xl", "Feedback": "feedback"}


def agent_run(
    env: Config, train: AgentTrainConfig, *, width: int, heads: int, memory: int, history: bool = False,
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


def agents(base: RunConfig, lstm_layers: int, lstm_rate: float | None = None) -> tuple[Variant, ...]:
    """Return the three models. The LSTM has as many parameters as the others by its depth, not by its width."""
    train = {"learning_rate": lstm_rate} if lstm_rate else None
    lstm = with_core(base, "lstm", train=train, width=base.core.width, layers=lstm_layers)
    return tuple(Variant(name, lstm if core == "lstm" else with_core(base, core)) for name, core in MODELS.items())


def maze_study(
    name: str, title: str, figure: str, claim: str, variants: tuple[Variant, ...], notes: tuple[str, ...], scale: Scale
) -> Experiment:
    """Return the experiment of the three models in one maze."""
    return Experiment(
        name=name,
        title=title,
        paper=f"{FEEDBACK}, {figure}",
        scale=scale,
        columns=(LastEpisodes("return, last 500 episodes"), RETURN),
        variants=variants,
        seeds=2 if scale == "laptop" else 10,
        claim=claim,
        notes=notes,
    )


PPO = AgentTrainConfig(
    algorithm="ppo", steps=6000, batch=64, segment=100, learning_rate=1e-3, warmup=50, decay="cosine", gae_lambda=0.95,
    ent_coef=0.01, normalize_advantage=True, normalize_rewards=False, validate_every=1000, checkpoint_every=500,
    valid_batch=64,
)  # fmt: skip
MINUTES = dataclasses.replace(PPO, steps=15_000, validate_every=1500)  # 6 million frames
ADAM = AgentTrainConfig(
    algorithm="a2c", steps=20_000, batch=1024, segment=100, learning_rate=3e-4, warmup=0, ent_coef=5e-4,
    max_grad_norm=0,
    normalize_rewards=False, validate_every=1000, checkpoint_every=1000,
)  # fmt: skip
RMSPROP = dataclasses.replace(ADAM, optimizer="rmsprop", eps=0.01, batch=128, steps=40_000)
CORRIDOR: dict[Scale, RunConfig] = {
    "laptop": agent_run(
        Config(env="corridor", length=20), dataclasses.replace(PPO, steps=1600, segment=64), width=64, heads=4, memory=4
    ),
    "paper": agent_run(
        Config(env="corridor", length=100), dataclasses.replace(ADAM, segment=200), width=256, heads=4, memory=100
    ),
}
MAZE: dict[Scale, RunConfig] = {
    "laptop": agent_run(
        Config(env="maze-navigation", side=5, targets=4, max_steps=100), MINUTES, width=64, heads=4, memory=100,
        history=True, normalize=True,
    ),
    "paper": agent_run(Config(env="maze-navigation"), ADAM, width=256, heads=4, memory=200, history=True),
}  # fmt: skip
EASY: dict[Scale, RunConfig] = {
    "laptop": MAZE["laptop"].replace(task={"env": "maze-navigation-easy"}),
    "paper": dataclasses.replace(MAZE["paper"], task=Config(env="maze-navigation-easy"), train=RMSPROP),
}
WATER: dict[Scale, RunConfig] = {
    "laptop": agent_run(
        Config(env="water-maze", side=7, max_steps=100), MINUTES, width=64, heads=1, memory=100, history=True,
        normalize=True,
    ),
    # 500 million frames in steps of 64 times 200 frames.
    "paper": agent_run(
        Config(env="water-maze"),
        dataclasses.replace(RMSPROP, batch=64, segment=200, ent_coef=1e-4, steps=39_063),
        width=64, heads=1, memory=200, history=True,
    ),
}  # fmt: skip
WATER_LSTM_RATE: dict[Scale, float | None] = {"laptop": None, "paper": 4e-4}

PAPER_NOTES = (
    "A2C as in section 7.2: gamma 0.99, no generalized advantages; the weight of the value's loss is not printed: "
    "0.5. The number of updates is not printed but for the water maze's 500 million steps.",
)
LAPTOP_NOTES = (
    "PPO instead of A2C, 64 environments, width 64, 6 million frames in the mazes: the papers' agents saw hundreds of "
    "millions of frames.",
)
LOOKED = (
    "Before a training 4,096 frames of random actions are looked at, to let symbols count by how seldom they are seen.",
)
LAST = (
    "Agents read their last action and reward, zeros at the start of an episode. The paper does not say what they read "
    'beside the observation, but speaks of "a history of actions" (6.1).',
)
CORRIDOR_NOTES = {
    "laptop": (*LAPTOP_NOTES, "A corridor of 20 steps: longer than layers times memory for memories below 10."),
    "paper": (*PAPER_NOTES, "Length, sizes and memories of figure 3 are not printed; those of the maze were taken."),
}
MAZE_NOTES = {
    "laptop": (
        *LAPTOP_NOTES,
        *LOOKED,
        *LAST,
        "A maze of 5x5 cells with 4 targets and episodes of 100 steps; the paper: 9x9, 8, 200.",
    ),
    "paper": (*PAPER_NOTES, *LAST),
}
WATER_NOTES = {
    "laptop": (
        *LAPTOP_NOTES,
        *LOOKED,
        *LAST,
        "A water maze of 7x7 cells and episodes of 100 steps; the paper: 15x15 and 200.",
    ),
    "paper": (*PAPER_NOTES, *LAST),
}
