"""Looking inside a model: what its cores attend to and what their memory is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from stairwell.cores import AttentionRecorder, Core
from stairwell.models.seq2seq import SourceReader


@contextmanager
def inspect(model: nn.Module) -> Iterator[AttentionRecorder]:
    """Look inside: `with inspect(model) as seen: model(tokens, state)`.

    Then `seen.attention[layer]` is (B, H, T, slots), the nearest slot first (the token itself where it sees itself,
    else the one before), `seen.source_attention[layer]` (B, H, T, source tokens) what a model with a source attends to
    there, and `seen.layer_weights` what the memory is made of. Runs the reference engine."""
    seen = AttentionRecorder()
    cores = [module for module in model.modules() if isinstance(module, Core | SourceReader)]
    if not cores:
        raise TypeError(f"{type(model).__name__} has no core to look into")
    for core in cores:
        core.seen = seen
    try:
        yield seen
    finally:
        for core in cores:
            core.seen = None
