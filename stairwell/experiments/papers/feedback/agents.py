"""Shared by the agents of Fan et al. 2020: hyperparameters (sections 7.2 and 7.3; laptop scale) and notes."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, Scale, Variant
from stairwell.experiments.measures import LastEpisodes, Metric
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core

RETURN = Metric("return, test", "return")


MODELS = {"LSTM": "lstm", "Transformer": "transformer-xl", "Feedback": "feedback"}


def agents(base: RunConfig, lstm_layers: int, lstm_lr: float | None = None) -> tuple[Variant, ...]:
    """Return the three models. The LSTM has as many parameters as the others by its depth, not by its width."""
    train = {"learning_rate": lstm_lr} if lstm_lr else None
    lstm = with_core(base, "lstm", train=train, width=base.core.width, layers=lstm_layers)
    return tuple(Variant(name, lstm if core == "lstm" else with_core(base, core)) for name, core in MODELS.items())


def maze_experiment(
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


WATER_LSTM_LR: dict[Scale, float | None] = {"laptop": None, "paper": 4e-4}

PAPER_NOTES = (
    "A2C as in section 7.2: gamma 0.99, no generalized advantage estimation. The weight of the value loss is not "
    "given; ours is 0.5. The paper gives the number of steps only for the water maze (500 million frames).",
)
LAPTOP_NOTES = (
    "PPO instead of A2C, 64 environments, width 64, 6 million frames in the mazes: the papers' agents were trained on "
    "hundreds of millions of frames.",
)
NORMALIZED = (
    "Before training, 4,096 frames of random actions are collected to normalize observations, so rare values have a "
    "larger effect.",
)
LAST = (
    "Agents observe their last action and reward, zeros at the start of an episode. The paper does not say what agents "
    'observe besides the environment\'s observation, but mentions "a history of actions" (6.1).',
)
CORRIDOR_NOTES = {
    "laptop": (*LAPTOP_NOTES, "The corridor has 20 steps, more than layers times memory for memories below 10."),
    "paper": (
        *PAPER_NOTES,
        ("The paper gives neither length, sizes nor memories for figure 3; ours are those of the maze."),
    ),
}
MAZE_NOTES = {
    "laptop": (
        *LAPTOP_NOTES,
        *NORMALIZED,
        *LAST,
        "A maze of 5x5 cells with 4 targets and episodes of 100 steps; the paper's have 9x9, 8 and 200.",
    ),
    "paper": (*PAPER_NOTES, *LAST),
}
WATER_NOTES = {
    "laptop": (
        *LAPTOP_NOTES,
        *NORMALIZED,
        *LAST,
        "A water maze of 7x7 cells and episodes of 100 steps; the paper's have 15x15 and 200.",
    ),
    "paper": (*PAPER_NOTES, *LAST),
}
