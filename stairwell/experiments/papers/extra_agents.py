"""Memory in environments that others have made, which are in neither paper: two of popgym's, and MiniGrid's."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

from stairwell.experiments.experiment import Column, Experiment, ExperimentFactory, Scale
from stairwell.experiments.measures import LastEpisodes, Metric
from stairwell.experiments.papers.feedback.agents import LOOKED, RETURN, agents
from stairwell.rl.task import Config
from stairwell.runs.presets.agents import PPO, agent_run

WIDTH: dict[Scale, int] = {"laptop": 64, "paper": 256}
MILLIONS = 15.0  # of frames at paper scale, as popgym's authors have them


class Environment(NamedTuple):
    """An environment and how it is learned."""

    env: str
    title: str
    segment: int
    memory: int
    millions: float  # of frames at laptop scale
    train: dict[str, Any]
    columns: tuple[Column, ...]
    note: str


LAST = LastEpisodes("return, last 500 episodes")
CHANCE = "Returns go from -1 to 1; guessing comes to -0.5."
ENVIRONMENTS = {
    "extra.popgym.repeat-previous": Environment(
        "popgym-RepeatPreviousEasy-v0", "popgym's RepeatPrevious (easy)", 64, 16, 0.5, {}, (LAST, RETURN),
        f"A card's suit must be said four cards later. {CHANCE}",
    ),
    "extra.popgym.autoencode": Environment(
        "popgym-AutoencodeEasy-v0", "popgym's Autoencode (easy)", 104, 104, 1.0, {"gamma": 0.0, "gae_lambda": 0.0},
        (LAST, RETURN),
        f"The suits of 52 cards must be said in reverse order. {CHANCE} What is said changes nothing of what comes, so "
        "that no reward is owed to what was said before: the gamma is 0.",
    ),
    "extra.minigrid": Environment(
        "MiniGrid-MemoryS9-v0", "MiniGrid's Memory, 9x9", 64, 64, 0.5, {"ent_coef": 0.03},
        (Metric("success, test", "success"), RETURN),
        "An object must be remembered from the room to the end of the hallway; by chance half of the episodes succeed. "
        "Most begin out of sight of it, and an agent has to find out that going back to look pays.",
    ),
}  # fmt: skip


def others(name: str, scale: Scale) -> Experiment:
    each, small = ENVIRONMENTS[name], scale == "laptop"
    millions = each.millions if small else MILLIONS
    updates = int(millions * 1e6) * PPO.optimizer_steps_per_rollout // (PPO.batch * each.segment)
    train = dataclasses.replace(
        PPO, segment=each.segment, steps=updates, validate_every=updates // 8, **each.train
    )  # fmt: skip
    base = agent_run(Config(env=each.env), train, width=WIDTH[scale], heads=4, memory=each.memory, normalize=True)
    sizes = f"2 layers of width {WIDTH[scale]}, {millions:g} million frames in 64 rows, PPO."
    budget = f"{sizes} popgym's authors trained for 15 million, with a width of 256." if small else sizes
    return Experiment(
        name=name,
        title=each.title,
        paper="not in the papers; an environment for memory by others",
        scale=scale,
        columns=each.columns,
        variants=agents(base, lstm_layers=2)[::-1],
        seeds=3,
        notes=(each.note, budget, *LOOKED),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {name: partial(others, name) for name in ENVIRONMENTS}
