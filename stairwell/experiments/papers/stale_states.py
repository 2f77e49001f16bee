"""States stored in a rollout against states recomputed with the current parameters, in the epochs of PPO.

A rollout of 64 frames is one window, or is split into windows between which gradients stop. A window starts from the
state stored in the rollout, which is stale after the first optimizer step, or from the state that the current
parameters compute from the start of the rollout. With a state stored for every frame, windows can have one frame.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import LastEpisodes
from stairwell.experiments.papers.feedback.agents import RETURN
from stairwell.rl.task import RLTaskConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core
from stairwell.runs.presets.agents import PPO, agent_run

ENVS, FRAMES, ROLLOUTS = 16, 64, 30
EPOCHS, MINIBATCHES = 10, 2


def agent(window: int, state: Literal["stored", "recomputed"]) -> RunConfig:
    """Return the run of a small Feedback agent in popgym's RepeatPrevious; `window` 0 is the whole rollout."""
    steps = ROLLOUTS * EPOCHS * MINIBATCHES
    train = dataclasses.replace(
        PPO, batch=ENVS, segment=FRAMES, epochs=EPOCHS, minibatches=MINIBATCHES, steps=steps,
        validate_every=steps // 10, checkpoint_every=steps, warmup=0, decay="none", gamma=0.5, ent_coef=0.0,
        bptt_length=window, bptt_state=state,
    )  # fmt: skip
    env = RLTaskConfig(env="popgym-RepeatPreviousEasy-v0", valid_episodes=48, test_episodes=100)
    return with_core(agent_run(env, train, width=64, heads=4, memory=8, normalize=True), "feedback", layers=1)


VARIANTS = {
    "whole rollout": agent(0, "stored"),
    "windows of 8 frames, recomputed": agent(8, "recomputed"),
    "windows of 8 frames, stored": agent(8, "stored"),
    "windows of 1 frame, stored": agent(1, "stored"),
}


def stale_states(scale: Scale) -> Experiment | None:
    if scale == "paper":
        return None
    return Experiment(
        name="extra.stale-states",
        title="Stale states in the epochs of PPO",
        paper="not in the papers; an ablation of PPO with a memory",
        scale=scale,
        columns=(LastEpisodes("return, last 500 episodes"), RETURN),
        variants=tuple(Variant(name, config) for name, config in VARIANTS.items()),
        seeds=3,
        notes=(
            "popgym's RepeatPrevious (easy): the agent outputs the suit of the card shown four steps before. Returns "
            "range from -1 to 1; chance level is -0.5.",
            f"Feedback with one layer of width 64 and 8 memory positions. {ROLLOUTS} rollouts of {FRAMES} frames in "
            f"{ENVS} environments; PPO with {EPOCHS} epochs of {MINIBATCHES} minibatches, as many epochs as is the "
            "default of Stable-Baselines3.",
            "The state at the start of the rollout is a stored one in all variants. Gradients stop between windows, so "
            "windows of 8 frames are compared with each other.",
        ),
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.stale-states": stale_states}
