"""What the agents of Fan et al. 2020 share: sections 7.2 and 7.3, the laptop's recipe, what has to be said."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from stairwell.cores import config_type
from stairwell.experiments.experiment import FEEDBACK, Experiment, Row, Scale
from stairwell.experiments.measures import LastEpisodes, Metric
from stairwell.rl.agent import AgentConfig
from stairwell.rl.config import AgentTrainConfig
from stairwell.rl.task import Config
from stairwell.runs.config import RunConfig

RETURN = Metric("return, test", "return")


@dataclass(frozen=True, kw_only=True)
class AgentSetting:
    env: Config
    train: AgentTrainConfig
    width: int
    layers: int
    heads: int
    memory: int
    lstm_layers: int
    lstm_rate: float | None = None
    "learning rate of the LSTM, where it has its own"
    normalize_observations: bool = False
    "let symbols count by how seldom they are seen, which the paper does not"
    last_action_and_reward: bool = False
    "read the last action and the last reward"

    def experiment(self, core_name: str, memory: int, **train: Any) -> RunConfig:
        kind = config_type(core_name)
        if core_name == "lstm":
            core: Any = kind(width=self.width, layers=self.lstm_layers)
            train = ({"learning_rate": self.lstm_rate} if self.lstm_rate else {}) | train
        else:
            core = kind(width=self.width, layers=self.layers, heads=self.heads, memory=memory)
        model = AgentConfig(
            normalize_observations=self.normalize_observations,
            last_action=self.last_action_and_reward,
            last_reward=self.last_action_and_reward,
        )
        return RunConfig(
            task_name="rl",
            core_name=core_name,
            core=core,
            task=self.env,
            model=model,
            train=dataclasses.replace(self.train, **train),
        )


def agents(setting: AgentSetting, memory: int) -> tuple[Row, ...]:
    names = {"LSTM": "lstm", "Transformer": "transformer-xl", "Feedback": "feedback"}
    return tuple(Row(model, setting.experiment(core, memory)) for model, core in names.items())


def maze_study(
    name: str, title: str, figure: str, claim: str, setting: AgentSetting, notes: tuple[str, ...], scale: Scale
) -> Experiment:
    """The three models in one maze."""
    return Experiment(
        name=name,
        title=title,
        paper=f"{FEEDBACK}, {figure}",
        scale=scale,
        columns=(LastEpisodes("return, last 500 episodes"), RETURN),
        rows=agents(setting, setting.memory),
        seeds=2 if scale == "laptop" else 10,
        claim=claim,
        notes=notes,
    )


PPO = AgentTrainConfig(
    learner="ppo", steps=6000, batch=64, segment=100, learning_rate=1e-3, warmup=50, decay="cosine", gae_lambda=0.95,
    ent_coef=0.01, normalize_advantage=True, normalize_rewards=False, validate_every=1000, checkpoint_every=500,
    valid_batch=64,
)  # fmt: skip
MINUTES = dataclasses.replace(PPO, steps=15_000, validate_every=1500)  # 6 million frames
ADAM = AgentTrainConfig(
    learner="a2c", steps=20_000, batch=1024, segment=100, learning_rate=3e-4, warmup=0, ent_coef=5e-4, max_grad_norm=0,
    normalize_rewards=False, validate_every=1000, checkpoint_every=1000,
)  # fmt: skip
RMSPROP = dataclasses.replace(ADAM, optimizer="rmsprop", eps=0.01, batch=128, steps=40_000)
CORRIDOR: dict[Scale, AgentSetting] = {
    "laptop": AgentSetting(
        env=Config(env="corridor", length=20), width=64, layers=2, heads=4, memory=4, lstm_layers=2,
        train=dataclasses.replace(PPO, steps=1600, segment=64),
    ),
    "paper": AgentSetting(
        env=Config(env="corridor", length=100), width=256, layers=2, heads=4, memory=100, lstm_layers=3,
        train=dataclasses.replace(ADAM, segment=200),
    ),
}  # fmt: skip
MAZE: dict[Scale, AgentSetting] = {
    "laptop": AgentSetting(
        env=Config(env="maze-navigation", side=5, targets=4, steps=100), width=64, layers=2, heads=4, memory=100,
        lstm_layers=3, train=MINUTES, normalize_observations=True, last_action_and_reward=True,
    ),
    "paper": AgentSetting(
        env=Config(env="maze-navigation"), width=256, layers=2, heads=4, memory=200, lstm_layers=3, train=ADAM,
        last_action_and_reward=True,
    ),
}  # fmt: skip
EASY: dict[Scale, AgentSetting] = {
    "laptop": dataclasses.replace(MAZE["laptop"], env=Config(env="maze-navigation-easy", side=5, targets=4, steps=100)),
    "paper": dataclasses.replace(MAZE["paper"], env=Config(env="maze-navigation-easy"), train=RMSPROP),
}
WATER: dict[Scale, AgentSetting] = {
    "laptop": AgentSetting(
        env=Config(env="water-maze", side=7, steps=100), width=64, layers=2, heads=1, memory=100, lstm_layers=2,
        train=MINUTES, normalize_observations=True, last_action_and_reward=True,
    ),
    # 500 million steps in updates of 64 times 200 frames.
    "paper": AgentSetting(
        env=Config(env="water-maze"), width=64, layers=2, heads=1, memory=200, lstm_layers=2, lstm_rate=4e-4,
        train=dataclasses.replace(RMSPROP, batch=64, segment=200, ent_coef=1e-4, steps=39_063),
        last_action_and_reward=True,
    ),
}  # fmt: skip
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
