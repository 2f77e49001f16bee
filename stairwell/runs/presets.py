"""Presets: one function per task returns the RunConfig of a small model that trains on two CPU cores in minutes.

`stairwell train random-walk/feedback` starts from `random_walk("feedback")`; the papers' tables build their runs with
`base_run` and `with_core`. All cores of a task have about the same number of parameters and the same data, curriculum
and number of steps; only the context that they attend to differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from stairwell.cores import config_type
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.errors import UserError
from stairwell.layers import LayerConfig
from stairwell.models import LanguageModelConfig
from stairwell.rl.config import AgentTrainConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.families import family_of
from stairwell.tasks import task_type
from stairwell.train.config import PairTrainConfig, StreamTrainConfig, TrainConfig

# Fields of a core's config that `with_core` carries over to another core.
SHARED_FIELDS = ({field.name for field in dataclasses.fields(LayerConfig)} - {"cross"}) | {"memory"}
# Both papers clip gradients at 0.1. With 1.0 a model can forget a state-tracking task within a few steps.
PAPER_CLIP = 0.1


def base_run(
    *,
    task_name: str,
    task: Any,
    train: TrainConfig,
    layers: int,
    width: int,
    heads: int,
    dropout: float = 0.0,
    core: dict[str, Any] | None = None,
    model: Any = None,
) -> RunConfig:
    """Return a run of a Transformer-XL. `with_core` makes runs of other cores from it.

    `dropout` applies to attention weights and to the feed-forward's ReLU; `core` has further options.
    """
    options = {"attention_dropout": dropout, "relu_dropout": dropout, **(core or {})}
    config = TransformerXLConfig(layers=layers, width=width, heads=heads, **options)
    return RunConfig(
        task_name=task_name,
        core_name="transformer-xl",
        core=config,
        task=task,
        model=LanguageModelConfig() if model is None else model,
        train=train,
    )


def with_core(
    base: RunConfig,
    core_name: str,
    task: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    **options: Any,
) -> RunConfig:
    """Return the run of another core with the sizes of `base`; `options`, `task` and `train` replace fields."""
    config = config_type(core_name)
    if core_name == "lstm":
        width = matched_lstm_width(base.core.width)
        shared = {"layers": base.core.layers, "width": width, "dropout": base.core.attention_dropout}
    else:
        names = SHARED_FIELDS & {field.name for field in dataclasses.fields(config) if field.init}
        shared = {name: getattr(base.core, name) for name in names}
    run = dataclasses.replace(base, core_name=core_name, core=config(**{**shared, **options}))
    return run.replace(task=task, train=train)


def matched_lstm_width(width: int) -> int:
    """Return the width at which an LSTM has as many parameters as a transformer: 8 D^2 per layer instead of 12 D^2."""
    return round(width * 1.225 / 8) * 8


def preset(name: str) -> RunConfig:
    """Return the preset of a name `task/core`, such as `random-walk/feedback`."""
    task_name, slash, core_name = name.partition("/")
    if not slash:
        raise UserError(f"a run is a task and a core, such as '{name or 'random-walk'}/feedback'")
    task_type(task_name)  # raises if there is no such task
    config_type(core_name)
    return PRESETS.get(task_name, lambda core: small_run(task_name, core))(core_name)


def small_run(
    task_name: str,
    core_name: str,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    memory: int = 32,
    context: int = 100,
    chunk: int = 4,
    train: TrainConfig | None = None,
    task: dict[str, Any] | None = None,
    core: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
) -> RunConfig:
    """Return a run of a small model; the defaults suit a task about which nothing is known.

    `memory`: tokens that recurrent cores attend to. `context`: tokens that cores without recurrence attend to, which
    have to see everything they need. `chunk`: tokens per chunk, for Staircases.
    """
    family = family_of(task_name)
    base = base_run(
        task_name=task_name,
        task=task_type(task_name)[0](**(task or {})),
        train=train or StreamTrainConfig(steps=2000, batch=32, segment=32, warmup=100),
        layers=layers, width=width, heads=heads, core=core, model=family.model_config(**(model or {})),
    )  # fmt: skip
    run = with_core(base, core_name, **context_options(core_name, memory, context, chunk))
    return dataclasses.replace(run, core=family.fit_core(run.core, run.task))


def context_options(core_name: str, memory: int, context: int, chunk: int) -> dict[str, Any]:
    """Return the options that set how far back a core attends."""
    chunks = max(2, -(-memory // chunk) + 1)  # enough for `memory` tokens from any position in a chunk
    options: dict[str, dict[str, Any]] = {
        "feedback": {"memory": memory},
        "transformer-xl": {"memory": context},
        "universal": {"memory": context, "passes": 2},
        "staircase": {"chunk": chunk, "passes": min(chunks, 4)},
        "cached-staircase": {"chunk": chunk, "passes": chunks},
        "global-cached-staircase": {"chunk": chunk},
        "memory-network": {"passes": context + 1},
    }
    return options.get(core_name, {})


def random_walk(core: str) -> RunConfig:
    return small_run(
        "random-walk", core, heads=1, memory=16,
        train=StreamTrainConfig(
            steps=6000, batch=128, segment=32, learning_rate=1e-3, warmup=300, curriculum="length=8..100",
            validate_every=1000, checkpoint_every=1000, valid_batch=50,
        ),
    )  # fmt: skip


def algorithmic(core: str) -> RunConfig:
    return small_run(
        "algorithmic", core, width=128, chunk=8,
        train=StreamTrainConfig(
            steps=10000, batch=128, segment=64, learning_rate=1e-3, warmup=300,
            curriculum="variables=1,statements=10;variables=2,statements=10;variables=3,statements=10..100",
            curriculum_accuracy=93, validate_every=2000, checkpoint_every=1000, valid_batch=50,
        ),
    )  # fmt: skip


def copy(core: str) -> RunConfig:
    return small_run(
        "copy", core, width=128, heads=4, memory=801, context=801, chunk=16, task={"test_episodes": 100},
        train=StreamTrainConfig(steps=4000, batch=32, segment=82, warmup=300, curriculum="length=2..40",
        valid_batch=50),
    )  # fmt: skip


def reverse(core: str) -> RunConfig:
    return dataclasses.replace(copy(core), task_name="reverse").replace(task={"reverse": True})


def counting(core: str) -> RunConfig:
    return small_run(
        "counting", core, memory=101, context=101, chunk=8,
        train=StreamTrainConfig(steps=3000, batch=64, segment=64, warmup=300, valid_batch=50),
    )  # fmt: skip


def state_tracking(task_name: str, core: str, train: TrainConfig, context: int = 64, **sizes: int) -> RunConfig:
    """Return a run with a memory of two tokens: too short to look up short sequences, so that the model has to carry
    its state, which is what generalizes to longer sequences than those of training."""
    train = dataclasses.replace(train, max_grad_norm=PAPER_CLIP)
    return small_run(task_name, core, memory=2, context=context, chunk=1, train=train, **sizes)  # type: ignore[arg-type]


def parity(core: str) -> RunConfig:
    train = StreamTrainConfig(
        steps=2000, batch=128, segment=40, learning_rate=2e-3, warmup=100, curriculum="length=2..40", valid_batch=50
    )
    return state_tracking("parity", core, train, width=32, heads=1)


def s5(core: str) -> RunConfig:
    train = StreamTrainConfig(
        steps=5000, batch=128, segment=20, learning_rate=1e-3, warmup=300, curriculum="length=1..20", valid_batch=50
    )
    return state_tracking("s5", core, train, width=128)


def labeled(core: str) -> RunConfig:
    return state_tracking("labeled", core, StreamTrainConfig(steps=2000, batch=32, segment=32, warmup=100), context=100)


def benchmark(task_name: str) -> Callable[[str], RunConfig]:
    """Return the preset function of a task of the state-tracking benchmark. Published models have no curriculum and
    100,000 steps; this trains in minutes."""
    train = StreamTrainConfig(
        steps=5000, batch=128, segment=40, learning_rate=2e-3, warmup=300, decay="cosine", curriculum="length=3..40",
        valid_batch=50,
    )  # fmt: skip
    return lambda core: state_tracking(task_name, core, train, heads=4)


def language_model(core: str) -> RunConfig:
    return small_run(
        "lm", core, width=128, layers=3, heads=4, memory=64, context=64, chunk=16,
        train=StreamTrainConfig(
            steps=2000, batch=32, segment=64, learning_rate=1.5e-3, warmup=200, validate_every=500,
            valid_tokens=200_000,
        ),
    )  # fmt: skip


# Sizes and dropout for about 30,000 sentence pairs; larger corpora need more width.
SEQ2SEQ_CORE: dict[str, Any] = {"inner": 256, "residual_dropout": 0.3}
SEQ2SEQ_MODEL: dict[str, Any] = {
    "encoder_layers": 4, "encoder_inner": 256, "encoder_dropout": 0.3, "embedding_dropout": 0.3,
}  # fmt: skip


def translation(core: str) -> RunConfig:
    return small_run(
        "translation", core, width=128, heads=4, memory=128, context=128, chunk=16, core=SEQ2SEQ_CORE,
        model=SEQ2SEQ_MODEL,
        train=PairTrainConfig(
            steps=10000, batch=512, batch_tokens=4096, learning_rate=3e-3, warmup=1000, decay="inverse-sqrt",
            beta2=0.98, label_smoothing=0.1, validate_every=500, checkpoint_every=500, average=10,
        ),
    )  # fmt: skip


def summarization(core: str) -> RunConfig:
    return small_run(
        "summarization", core, width=128, heads=4, memory=256, context=256, chunk=16, core=SEQ2SEQ_CORE,
        model=SEQ2SEQ_MODEL,
        train=PairTrainConfig(
            steps=4000, batch=64, batch_tokens=8192, learning_rate=2e-3, warmup=500, decay="inverse-sqrt",
            beta2=0.98, label_smoothing=0.1, validate_every=250, checkpoint_every=250, average=5,
        ),
    )  # fmt: skip


def rl(core: str) -> RunConfig:
    return small_run(
        "rl", core, heads=4,
        train=AgentTrainConfig(
            algorithm="ppo", steps=1500, batch=64, segment=64, learning_rate=1e-3, warmup=50, decay="cosine",
            gae_lambda=0.95, ent_coef=0.01, normalize_advantage=True, validate_every=500, checkpoint_every=500,
            valid_batch=64,
        ),
    )  # fmt: skip


PRESETS: dict[str, Callable[[str], RunConfig]] = {
    "random-walk": random_walk,
    "algorithmic": algorithmic,
    "copy": copy,
    "reverse": reverse,
    "counting": counting,
    "parity": parity,
    "s5": s5,
    "labeled": labeled,
    **{
        name: benchmark(name)
        for name in ("parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic", "group-words")
    },
    "lm": language_model,
    "translation": translation,
    "summarization": summarization,
    "rl": rl,
}
