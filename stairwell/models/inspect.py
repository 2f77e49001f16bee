"""Recording attention weights and the memory composition of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from stairwell.cores import AttentionRecorder, Core
from stairwell.models.seq2seq import SourceAttention


@contextmanager
def inspect(model: nn.Module) -> Iterator[AttentionRecorder]:
    """Record attention: `with inspect(model) as recorder: model(tokens, state)`. Uses the reference engine.

    `recorder.attention[layer]` is (B, H, T, distances), nearest first (the current token if the core attends to it,
    else the one before); `recorder.source_attention[layer]` is (B, H, T, source tokens) for models with a source; and
    `recorder.layer_weights` is the share of each layer in the memory."""
    recorder = AttentionRecorder()
    modules = [module for module in model.modules() if isinstance(module, Core | SourceAttention)]
    if not modules:
        raise TypeError(f"{type(model).__name__} contains no core to inspect")
    for module in modules:
        module.recorder = recorder
    try:
        yield recorder
    finally:
        for module in modules:
            module.recorder = None
