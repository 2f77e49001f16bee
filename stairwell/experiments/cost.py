"""Estimates of training time from a count of operations."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from torch import nn

from stairwell.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.device import choose_device
from stairwell.tasks.language import LanguageConfig
from stairwell.train.config import PairTrainConfig

UTILIZATION = 0.25  # training speed as a fraction of the speed of large matrix products
VOCABULARY = {"bytes": 256, "characters": 50, "words": 267_735, "bpe": 8000}  # typical sizes; words: WikiText-103


def estimate(config: RunConfig, rate: float) -> float:
    """Return an estimate of the seconds of a run if matrix products run at `rate` operations per second."""
    with torch.device("meta"):
        model = blueprint(config)
    core: Any = config.core
    context: int = getattr(core, "memory", 0) or getattr(core, "distances", 0)
    passes: int = getattr(core, "computed", 0) or getattr(core, "passes", 1)
    attention = 2 * core.layers * core.width * context
    parts = dict(model.named_children())
    in_core = sum(parameter.numel() for parameter in parts.pop("core").parameters())
    # An embedding lookup is not a product.
    elsewhere = sum(num_parameters(part) for name, part in parts.items() if "embedding" not in name)
    if (head := parts.get("head")) is not None and not num_parameters(head):  # tied to the embedding
        elsewhere += num_parameters(parts["embedding"])
    train = config.train
    calls = 3.0  # forward, and backward with twice as many operations
    if isinstance(train, AgentTrainConfig):
        calls = 1 / train.optimizer_steps_per_rollout + 3.0  # a rollout is another forward pass
    each = 2 * calls * (passes * (in_core + attention) + elsewhere)
    return train.total_steps * tokens_per_step(config) * each / (UTILIZATION * rate)


def num_parameters(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def tokens_per_step(config: RunConfig) -> int:
    """Return the number of tokens, target tokens or environment steps per optimizer step; for pairs the maximum, with
    padding."""
    train = config.train
    if isinstance(train, PairTrainConfig):
        return train.batch_tokens
    streams = train.batch // train.minibatches if isinstance(train, AgentTrainConfig) else train.batch
    return streams * train.segment


def total_tokens(config: RunConfig) -> int:
    """Return the number of tokens of a whole training, or of environment steps, each counted once."""
    train = config.train
    if isinstance(train, AgentTrainConfig):
        return train.total_steps // train.optimizer_steps_per_rollout * train.batch * train.segment
    return train.total_steps * tokens_per_step(config)


def blueprint(config: RunConfig) -> nn.Module:
    """Return the model. If its corpus may be missing, the vocabulary has a typical size."""
    if isinstance(config.model, Seq2SeqConfig):
        sizes = dict.fromkeys(("sources", "targets"), config.option("task.vocabulary") + 1)
        seq2seq = dataclasses.replace(config.model, core=config.core, joint=config.option("task.joint"), **sizes)
        return Seq2Seq(seq2seq, "reference")
    if isinstance(config.task, LanguageConfig) and isinstance(config.model, LanguageModelConfig):
        sizes = dict.fromkeys(("inputs", "outputs"), config.task.vocabulary or VOCABULARY[config.task.unit])
        return LanguageModel(dataclasses.replace(config.model, core=config.core, **sizes), "reference")
    model: nn.Module = config.make_model(config.make_tasks()[0], "meta", "reference")
    return model


def machine_rate(device: str) -> float:
    """Measure the operations per second of float32 matrix products on this machine."""
    chosen = choose_device(device)
    a = torch.randn(1024, 1024, device=chosen)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        (a @ a).sum().item()
        times.append(time.perf_counter() - start)
    return 2 * 1024**3 / min(times)  # other processes only make it slower


def format_duration(seconds: float) -> str:
    """Return a duration in words: 2.5 minutes."""
    for size, name in ((365 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}"
    return "1 second" if seconds < 1.5 else f"{seconds:.0f} seconds"
