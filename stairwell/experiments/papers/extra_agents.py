"""Published memory environments that are in neither paper: two of popgym's and one of MiniGrid's."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

from stairwell.experiments.experiment import Column, Experiment, ExperimentFactory, Scale
from stairwell.experiments.measures import LastEpisodes, Metric
from stairwell.experiments.papers.feedback.agents import NORMALIZED, RETURN, agents
from stairwell.rl.task import RLTaskConfig
from stairwell.runs.presets.agents import PPO, agent_run

WIDTH: dict[Scale, int] = {"laptop": 64, "paper": 256}
MILLIONS = 15.0  # of frames at paper scale, as in popgym's paper


class Environment(NamedTuple):
    """An environment and its training."""

    env: str
    title: str
    segment: int
    memory: int
    millions: float  # of frames at laptop scale
    train: dict[str, Any]
    columns: tuple[Column, ...]
    note: str


LAST = LastEpisodes("return, last 500 episodes")
CHANCE = "Returns range from -1 to 1; chance level is -0.5."
ENVIRONMENTS = {
    "extra.popgym.repeat-previous": Environment(
        "popgym-RepeatPreviousEasy-v0", "popgym's RepeatPrevious (easy)", 64, 16, 0.5, {}, (LAST, RETURN),
        f"The agent outputs the suit of the card shown four steps before. {CHANCE}",
    ),
    "extra.popgym.autoencode": Environment(
        "popgym-AutoencodeEasy-v0", "popgym's Autoencode (easy)", 104, 104, 1.0, {"gamma": 0.0, "gae_lambda": 0.0},
        (LAST, RETURN),
        f"The agent outputs the suits of 52 cards in reverse order. {CHANCE} Actions do not affect later observations, "
        "so gamma is 0.",
    ),
    "extra.minigrid": Environment(
        "MiniGrid-MemoryS9-v0", "MiniGrid's Memory, 9x9", 64, 64, 0.5, {"ent_coef": 0.03},
        (Metric("success, test", "success"), RETURN),
        "The agent must remember an object from the start room to the end of the hallway; chance level is half of the "
        "episodes. In most episodes the object is not visible at the start, so the agent has to learn to go back and "
        "look at it.",
    ),
}  # fmt: skip


def others(name: str, scale: Scale) -> Experiment:
    each, small = ENVIRONMENTS[name], scale == "laptop"
    millions = each.millions if small else MILLIONS
    steps = int(millions * 1e6) * PPO.optimizer_steps_per_rollout // (PPO.batch * each.segment)
    train = dataclasses.replace(
        PPO, segment=each.segment, steps=steps, validate_every=steps // 8, **each.train
    )  # fmt: skip
    base = agent_run(RLTaskConfig(env=each.env), train, width=WIDTH[scale], heads=4, memory=each.memory, normalize=True)
    sizes = f"2 layers of width {WIDTH[scale]}, {millions:g} million frames in 64 environments, PPO."
    budget = f"{sizes} popgym's authors trained for 15 million frames with a width of 256." if small else sizes
    return Experiment(
        name=name,
        title=each.title,
        paper="not in the papers; a published memory environment",
        scale=scale,
        columns=each.columns,
        variants=agents(base, lstm_layers=2)[::-1],
        seeds=3,
        notes=(each.note, budget, *NORMALIZED),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {name: partial(others, name) for name in ENVIRONMENTS}
