"""A preset for every task and core: small models that train on two CPU cores in minutes, one recipe a task.

All cores of a task have about the same number of weights and the same data, curriculum and number of updates; what
differs is how each one looks back, which its entry in `stairwell.cores` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stairwell.cores import Entry, entry
from stairwell.errors import UserError
from stairwell.rl.config import AgentTrainConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.families import kind_of
from stairwell.tasks import task_type
from stairwell.train.config import PairTrainConfig, TrainConfig


@dataclass(frozen=True)
class Recipe:
    """What a task needs, whatever the core."""

    width: int
    layers: int
    heads: int
    recall: int  # tokens of memory for cores that carry a state onwards
    context: int  # tokens of memory for cores that do not: everything they need must be in sight
    chunk: int
    train: TrainConfig
    task: dict[str, Any] = field(default_factory=dict)
    core: dict[str, Any] = field(default_factory=dict)  # options of the core, where it has them
    model: dict[str, Any] = field(default_factory=dict)


# For a task of which nothing is known: a small model, a short training.
PLAIN = Recipe(
    64, 2, 2, recall=32, context=100, chunk=4,
    train=TrainConfig(steps=2000, batch=32, segment=32, warmup=100),
)  # fmt: skip
# State tracking: with a memory of two tokens a model cannot look short sequences up and has to carry the state on,
# which is what holds at lengths it was not trained at. Gradients are clipped at 0.1, as both papers do: at 1 a model
# that has learned a task can lose it within a few steps.
SHORT: dict[str, Any] = {"recall": 2, "context": 64, "chunk": 1}
CLIP = 0.1
RECIPES: dict[str, Recipe] = {
    "random-walk": Recipe(
        64, 2, 1, recall=16, context=100, chunk=4,
        train=TrainConfig(
            steps=6000, batch=128, segment=32, learning_rate=1e-3, warmup=300, curriculum="length=8..100",
            validate_every=1000, checkpoint_every=1000, valid_batch=50,
        ),
    ),
    "algorithmic": Recipe(
        128, 2, 2, recall=32, context=100, chunk=8,
        train=TrainConfig(
            steps=10000, batch=128, segment=64, learning_rate=1e-3, warmup=300,
            curriculum="variables=1,statements=10;variables=2,statements=10;variables=3,statements=10..100",
            curriculum_accuracy=93, validate_every=2000, checkpoint_every=1000, valid_batch=50,
        ),
    ),
    "copy": Recipe(
        128, 2, 4, recall=801, context=801, chunk=16,
        train=TrainConfig(steps=4000, batch=32, segment=82, warmup=300, curriculum="length=2..40", valid_batch=50),
        task={"test_episodes": 100},
    ),
    "counting": Recipe(
        64, 2, 2, recall=101, context=101, chunk=8,
        train=TrainConfig(steps=3000, batch=64, segment=64, warmup=300, valid_batch=50),
    ),
    "parity": Recipe(
        32, 2, 1, **SHORT,
        train=TrainConfig(
            steps=2000, batch=128, segment=40, learning_rate=2e-3, warmup=100, max_grad_norm=CLIP, curriculum="length=2..40",
            valid_batch=50,
        ),
    ),
    "s5": Recipe(
        128, 2, 2, **SHORT,
        train=TrainConfig(
            steps=5000, batch=128, segment=20, learning_rate=1e-3, warmup=300, max_grad_norm=CLIP, curriculum="length=1..20",
            valid_batch=50,
        ),
    ),
    "lm": Recipe(
        128, 3, 4, recall=64, context=64, chunk=16,
        train=TrainConfig(
            steps=2000, batch=32, segment=64, learning_rate=1.5e-3, warmup=200, validate_every=500,
            valid_tokens=200_000,
        ),
    ),
    "labeled": Recipe(
        64, 2, 2, **{**SHORT, "context": 100},
        train=TrainConfig(steps=2000, batch=32, segment=32, warmup=100, max_grad_norm=CLIP),
    ),
    # About the size and dropout that suit some 30,000 sentences; larger corpora want more width. Targets are in sight
    # as a whole: `fit_core` sets how far a core looks back.
    "translation": Recipe(
        128, 2, 4, recall=128, context=128, chunk=16,
        train=PairTrainConfig(
            steps=10000, batch=512, batch_tokens=4096, learning_rate=3e-3, warmup=1000, decay="inverse-sqrt",
            beta2=0.98, label_smoothing=0.1, validate_every=500, checkpoint_every=500, average=10,
        ),
        core={"inner": 256, "residual_dropout": 0.3},
        model={
            "encoder_layers": 4, "encoder_inner": 256, "encoder_dropout": 0.3, "embedding_dropout": 0.3,
        },
    ),
    "summarization": Recipe(
        128, 2, 4, recall=256, context=256, chunk=16,
        train=PairTrainConfig(
            steps=4000, batch=64, batch_tokens=8192, learning_rate=2e-3, warmup=500, decay="inverse-sqrt",
            beta2=0.98, label_smoothing=0.1, validate_every=250, checkpoint_every=250, average=5,
        ),
        core={"inner": 256, "residual_dropout": 0.3},
        model={
            "encoder_layers": 4, "encoder_inner": 256, "encoder_dropout": 0.3, "embedding_dropout": 0.3,
        },
    ),
    "rl": Recipe(
        64, 2, 4, recall=32, context=100, chunk=4,
        train=AgentTrainConfig(
            learner="ppo", steps=1500, batch=64, segment=64, learning_rate=1e-3, warmup=50, decay="cosine", gae_lambda=0.95,
            ent_coef=0.01, normalize_advantage=True, validate_every=500, checkpoint_every=500, valid_batch=64,
        ),
    ),
}  # fmt: skip
RECIPES["reverse"] = Recipe(**{**vars(RECIPES["copy"]), "task": {"test_episodes": 100, "reverse": True}})
# The published tables have no curriculum and 100,000 updates; this is for minutes.
LEAGUE = Recipe(
    64, 2, 4, **SHORT,
    train=TrainConfig(
        steps=5000, batch=128, segment=40, learning_rate=2e-3, warmup=300, decay="cosine", max_grad_norm=CLIP,
        curriculum="length=3..40", valid_batch=50,
    ),
)  # fmt: skip
for name in ("parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic", "group-words"):
    RECIPES[name] = LEAGUE


def preset(name: str) -> RunConfig:
    """The experiment of a name `task/core`, such as `random-walk/feedback`."""
    task_name, slash, core_name = name.partition("/")
    if not slash:
        raise UserError(f"an experiment is a task and a core, such as '{name or 'random-walk'}/feedback'")
    task_config, _ = task_type(task_name)
    core = entry(core_name)
    recipe, kind = RECIPES.get(task_name, PLAIN), kind_of(task_name)
    task = task_config(**recipe.task)
    config = core.config(**sizes(core, recipe), **core.look_back(recipe), **known(core, recipe.core))
    return RunConfig(
        task_name=task_name,
        core_name=core_name,
        core=kind.fit_core(config, task),
        task=task,
        model=kind.config(**recipe.model),
        train=recipe.train,
    )


def sizes(core: Entry, recipe: Recipe) -> dict[str, Any]:
    """Width and depth, such that all cores have about as many weights."""
    width = round(recipe.width * core.width_factor / 8) * 8 if core.width_factor != 1 else recipe.width
    wanted = {"width": width, "layers": recipe.layers, "heads": recipe.heads}
    return known(core, wanted)


def known(core: Entry, options: dict[str, Any]) -> dict[str, Any]:
    """The options that a core's config has."""
    return {name: value for name, value in options.items() if name in core.config.__dataclass_fields__}
