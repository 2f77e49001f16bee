"""About how long a training takes, by a count of operations."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

import torch
from torch import nn

from stairwell.models import LanguageModel, Seq2Seq, Seq2SeqConfig
from stairwell.rl.config import AgentTrainConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.device import choose_device
from stairwell.train.config import PairTrainConfig

SHARE = 0.25  # of the rate of large matrix products that a training comes to, about
USUAL = {"bytes": 256, "characters": 50, "words": 267_735, "bpe": 8000}  # symbols; words: those of WikiText-103


def estimate(experiment: RunConfig, rate: float) -> float:
    """About how many seconds a training takes where matrix products run at `rate` operations a second."""
    with torch.device("meta"):
        model = blueprint(experiment)
    core: Any = experiment.core
    reach: int = getattr(core, "memory", 0) or getattr(core, "distances", 0)
    passes: int = getattr(core, "computed", 0) or getattr(core, "passes", 1)
    attention = 2 * core.layers * core.width * reach
    parts = dict(model.named_children())
    inside = sum(parameter.numel() for parameter in parts.pop("core").parameters())
    # What is looked up in a table is not multiplied.
    outside = sum(weights(part) for name, part in parts.items() if "embedding" not in name)
    if (head := parts.get("head")) is not None and not weights(head):  # tied: the embedding's table
        outside += weights(parts["embedding"])
    train = experiment.train
    calls = 3.0  # forward, and backward twice as much
    if isinstance(train, AgentTrainConfig):
        calls = 1 / train.optimizer_steps_per_rollout + 3.0  # a rollout is one more forward
    each = 2 * calls * (passes * (inside + attention) + outside)
    return train.total_steps * tokens_per_step(experiment) * each / (SHARE * rate)


def weights(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def tokens_per_step(experiment: RunConfig) -> int:
    """Tokens of a stream, of targets, or frames that an update learns from; of pairs at most, padding included."""
    train = experiment.train
    if isinstance(train, PairTrainConfig):
        return train.batch_tokens
    rows = train.batch // train.minibatches if isinstance(train, AgentTrainConfig) else train.batch
    return rows * train.segment


def blueprint(experiment: RunConfig) -> nn.Module:
    """The model; of one whose texts may not be there yet, with about as many symbols."""
    task, change = experiment.task, partial(dataclasses.replace, experiment.model, core=experiment.core)
    if isinstance(experiment.model, Seq2SeqConfig):
        symbols = task.vocabulary + 1
        return Seq2Seq(change(sources=symbols, targets=symbols, joint=task.joint), "reference")
    if experiment.task_name == "lm":
        symbols = task.vocabulary or USUAL[task.unit]
        return LanguageModel(change(inputs=symbols, outputs=symbols), "reference")
    model: nn.Module = experiment.make_model(experiment.make_tasks()[0], "meta", "reference")
    return model


def machine_rate(device: str) -> float:
    """Operations a second of this machine's matrix products in float32, measured in an instant."""
    chosen = choose_device(device)
    a = torch.randn(1024, 1024, device=chosen)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        (a @ a).sum().item()
        times.append(time.perf_counter() - began)
    return 2 * 1024**3 / min(times)  # another process only ever makes it slower


def format_duration(seconds: float) -> str:
    """A duration as people say it."""
    for size, name in ((365 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}"
    return "a second" if seconds < 1.5 else f"{seconds:.0f} seconds"
