"""A preset for every task and core: small models that train on two CPU cores in minutes, one recipe a task.

All cores of a task have about the same number of weights and the same data, curriculum and number of updates; what
differs is how each one looks back, which `look_back` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stairwell.cores import config_type
from stairwell.cores.lstm import LSTMConfig
from stairwell.errors import UserError
from stairwell.rl.config import AgentTrainConfig
from stairwell.runs.experiment import Experiment
from stairwell.runs.kinds import kind_of
from stairwell.tasks import task_type
from stairwell.train.config import TrainConfig


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


# For a task of which nothing is known: a small model, a short training.
PLAIN = Recipe(
    64, 2, 2, recall=32, context=100, chunk=4,
    train=TrainConfig(steps=2000, batch=32, segment=32, warmup=100),
)  # fmt: skip
RECIPES: dict[str, Recipe] = {
    "random-walk": Recipe(
        64, 2, 1, recall=16, context=100, chunk=4,
        train=TrainConfig(
            steps=6000, batch=128, segment=32, learning_rate=1e-3, warmup=300, curriculum="length=8..100",
            validate_every=1000, checkpoint_every=1000, valid_rows=50,
        ),
    ),
    "algorithmic": Recipe(
        128, 2, 2, recall=32, context=100, chunk=8,
        train=TrainConfig(
            steps=10000, batch=128, segment=64, learning_rate=1e-3, warmup=300,
            curriculum="variables=1,statements=10;variables=2,statements=10;variables=3,statements=10..100",
            curriculum_accuracy=93, validate_every=2000, checkpoint_every=1000, valid_rows=50,
        ),
    ),
    "copy": Recipe(
        128, 2, 4, recall=801, context=801, chunk=16,
        train=TrainConfig(steps=4000, batch=32, segment=82, warmup=300, curriculum="length=2..40", valid_rows=50),
        task={"test_episodes": 100},
    ),
    "counting": Recipe(
        64, 2, 2, recall=101, context=101, chunk=8,
        train=TrainConfig(steps=3000, batch=64, segment=64, warmup=300, valid_rows=50),
    ),
    "parity": Recipe(
        32, 2, 1, recall=8, context=64, chunk=2,
        train=TrainConfig(
            steps=2000, batch=128, segment=40, learning_rate=2e-3, warmup=100, curriculum="length=2..40", valid_rows=50,
        ),
    ),
    "s5": Recipe(
        128, 2, 2, recall=8, context=64, chunk=2,
        train=TrainConfig(
            steps=5000, batch=128, segment=20, learning_rate=1e-3, warmup=300, curriculum="length=1..20", valid_rows=50,
        ),
    ),
    "lm": Recipe(
        128, 3, 4, recall=64, context=64, chunk=16,
        train=TrainConfig(
            steps=2000, batch=32, segment=64, learning_rate=1.5e-3, warmup=200, validate_every=500,
            valid_tokens=200_000,
        ),
    ),
    "labelled": PLAIN,
    "rl": Recipe(
        64, 2, 4, recall=32, context=100, chunk=4,
        train=AgentTrainConfig(
            learner="ppo", steps=1500, batch=64, segment=64, learning_rate=1e-3, warmup=50, decay="cosine", gae=0.95,
            entropy_cost=0.01, normalise_advantages=True, validate_every=500, checkpoint_every=500, valid_rows=64,
        ),
    ),
}  # fmt: skip
RECIPES["reverse"] = Recipe(**{**vars(RECIPES["copy"]), "task": {"test_episodes": 100, "reverse": True}})
# The published tables have no curriculum and 100,000 updates; this is for minutes.
LEAGUE = Recipe(
    64, 2, 4, recall=8, context=64, chunk=2,
    train=TrainConfig(
        steps=5000, batch=128, segment=40, learning_rate=2e-3, warmup=300, decay="cosine", curriculum="length=3..40",
        valid_rows=50,
    ),
)  # fmt: skip
for name in ("parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic", "group-words"):
    RECIPES[name] = LEAGUE


def preset(name: str) -> Experiment:
    """The experiment of a name `task/core`, such as `random-walk/feedback`."""
    task_name, slash, core_name = name.partition("/")
    if not slash:
        raise UserError(f"an experiment is a task and a core, such as '{name or 'random-walk'}/feedback'")
    task_config, _ = task_type(task_name)
    core_config = config_type(core_name)
    recipe = RECIPES.get(task_name, PLAIN)
    return Experiment(
        task_name=task_name,
        core_name=core_name,
        core=core_config(**sizes(core_config, recipe), **look_back(core_name, recipe)),
        task=task_config(**recipe.task),
        model=kind_of(task_name).model(),
        train=recipe.train,
    )


def sizes(kind: type[Any], recipe: Recipe) -> dict[str, Any]:
    """Width and depth. An LSTM layer has 8 D^2 weights where a transformer layer has 12 D^2: it gets more width."""
    width = round(recipe.width * 1.25 / 8) * 8 if kind is LSTMConfig else recipe.width
    wanted = {"width": width, "layers": recipe.layers, "heads": recipe.heads}
    return {name: size for name, size in wanted.items() if name in kind.__dataclass_fields__}


def look_back(core_name: str, recipe: Recipe) -> dict[str, Any]:
    """How far each core sees. Those that carry a state onwards get `recall` tokens, the others `context`."""
    steps = max(2, -(-recipe.recall // recipe.chunk) + 1)
    return {
        "feedback": {"memory": recipe.recall},
        "transformer-xl": {"memory": recipe.context},
        "universal": {"memory": recipe.context, "passes": 2},
        "staircase": {"chunk": recipe.chunk, "passes": min(steps, 4)},
        "cached-staircase": {"chunk": recipe.chunk, "passes": steps},
        "global-cached-staircase": {"chunk": recipe.chunk},
        "multi-vector-rnn": {},
        "memory-network": {"passes": recipe.context + 1},
        "lstm": {},
        "deltanet": {},
    }.get(core_name, {})
