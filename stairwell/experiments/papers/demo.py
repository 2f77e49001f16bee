"""The demo: Feedback, a Cached Staircase and a Transformer-XL of one size on the random walk, trained side by side."""

from __future__ import annotations

from stairwell.experiments.experiment import FEEDBACK, STAIRCASE, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.runs import presets

LENGTH = 50  # actions per episode
STEPS = 2600  # at most
STOPPING_THRESHOLD = 99.0  # percent accuracy in validation


def demo(scale: Scale) -> Experiment | None:
    if scale == "paper":
        return None
    train = {
        "curriculum": f"length=8..{LENGTH}", "steps": STEPS, "learning_rate": 0.003, "validate_every": STEPS // 20,
        "stopping_threshold": STOPPING_THRESHOLD, "log_every": 20, "decay": "cosine",
    }  # fmt: skip
    # The Transformer's memory holds a whole episode and the reset before it; the Staircase attends as far as Feedback.
    core: dict[str, dict[str, int]] = {
        "feedback": {},
        "cached-staircase": {"chunk": 1, "passes": 17},
        "transformer-xl": {"memory": LENGTH + 1},
    }
    configs = {
        name: presets.random_walk(name).replace(core=options, task={"length": LENGTH}, train=train)
        for name, options in core.items()
    }
    return Experiment(
        name="demo",
        title="Random walk of 50 actions: three models",
        paper=f"{FEEDBACK}, table 1 (100 actions); {STAIRCASE}, table 1 (400 actions)",
        scale=scale,
        columns=(Metric("test accuracy (%)", "accuracy"),),
        variants=(
            Variant("Feedback", configs["feedback"], ("100",)),
            Variant("Cached Staircase", configs["cached-staircase"], ("99.9 (400 actions, C=4)",)),
            Variant("Transformer-XL", configs["transformer-xl"], ("68",), paper_name="Transformer"),
        ),
        claim="Feedback and Staircase track the agent; a Transformer, which attends to every action, does not.",
        notes=(
            f"Laptop scale: models of 0.1 million parameters, episodes of {LENGTH} actions, a curriculum over the "
            "length; the papers have 3.2 million parameters and episodes of 100 and 400 actions.",
            f"All models have the same curriculum and at most {STEPS:,} steps. Training stops at "
            f"{STOPPING_THRESHOLD:g}% validation accuracy. Feedback and the Staircase attend to 16 tokens, the "
            "Transformer to the whole episode.",
            "The experiment staircase.table1.random-walk also trains the Transformer without a curriculum, which does "
            "not help it.",
        ),
        jobs=3,
        page=True,
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"demo": demo}
