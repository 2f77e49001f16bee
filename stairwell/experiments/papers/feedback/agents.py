"""What the agents of Fan et al. 2020 share: sections 7.2 and 7.3, the laptop's recipe, what has to be said."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, Experiment, Scale, Variant
from stairwell.experiments.measures import LastEpisodes, Metric
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core

RETURN = Metric("return, test", "return")


MODELS = {"LSTM": "lstm", "Transformer": "transformer-xl", "Feedback": "feedback"}


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
