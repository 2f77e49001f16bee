"""How presets are built: the run of a Transformer-XL from its sizes, and runs of other cores with the same sizes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch

from stairwell.cores import build, config_type
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.layers import LayerConfig
from stairwell.models import LanguageModelConfig
from stairwell.runs.config import AnyTrainConfig, RunConfig, with_context
from stairwell.runs.families import family_of
from stairwell.tasks import task_type
from stairwell.tasks.pair_task import PairConfig
from stairwell.train.config import StreamTrainConfig

# quick: minutes on two CPU cores, the default of `stairwell train`; laptop and paper: the scales of experiments.
PresetScale = Literal["quick", "laptop", "paper"]
# Fields of a core's config that `with_core` carries over to another core.
SHARED_FIELDS = ({field.name for field in dataclasses.fields(LayerConfig)} - {"cross"}) | {"memory"}


def base_run(
    *,
    task_name: str,
    task: Any,
    train: AnyTrainConfig,
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
        width, dropout = lstm_width(base.core.width), base.option("core.attention_dropout")
        shared = {"layers": base.core.layers, "width": width, "dropout": dropout}
    else:
        names = SHARED_FIELDS & {field.name for field in dataclasses.fields(config) if field.init}
        shared = {name: getattr(base.core, name) for name in names}
    run = dataclasses.replace(base, core_name=core_name, core=config(**{**shared, **options}))
    return run.replace(task=task, train=train)


def lstm_width(width: int) -> int:
    """Return the width at which an LSTM has about as many parameters as a transformer: 8 D^2 per layer, not 12 D^2."""
    return round(width * 1.225 / 8) * 8


def match_parameters(goal: RunConfig, run: RunConfig, vocabulary_size: int = 0) -> RunConfig:
    """Return a run with as many parameters as `goal`: an LSTM with another width, counting its embeddings if the
    vocabulary size is given; other cores with another inner width of the feed-forward."""
    core, parameters = run.core, count_parameters(goal.core)
    if run.core_name == "lstm":
        # 8 L (D^2 + D) parameters in L layers of width D

        def difference(D: int) -> int:
            embeddings = 2 * vocabulary_size * (D - goal.core.width)
            return abs(int(8 * core.layers * D * (D + 1) + embeddings - parameters))

        return run.replace(core={"width": min(range(2, 8 * core.width, 2), key=difference)})
    smallest, second = (count_parameters(run.replace(core={"inner": inner}).core) for inner in (8, 16))
    return run.replace(core={"inner": 8 * max(1, 1 + round((parameters - smallest) / (second - smallest)))})


def matched_feedback(base: RunConfig, scale: PresetScale, **core: Any) -> RunConfig:
    """Return the run of a Feedback Transformer with as many parameters as the Transformer-XL `base`: with one pair of
    key and value projections per layer at paper scale, with a wider feed-forward at laptop scale."""
    if scale == "paper":
        return with_core(base, "feedback", share_kv=False, **core)
    return match_parameters(with_core(base, "transformer-xl"), with_core(base, "feedback", **core))


def count_parameters(core: Any) -> int:
    """Return the number of parameters of a core, from its config alone."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(core).parameters())


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
    train: AnyTrainConfig | None = None,
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
    return attend_to_target(run)


def attend_to_target(run: RunConfig) -> RunConfig:
    """Return a run whose decoder attends to a whole target, if its task has targets."""
    if not isinstance(run.task, PairConfig):
        return run
    return dataclasses.replace(run, core=with_context(run.core, run.task.max_target_length))


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
