"""Attention of a model by distance, averaged over tokens. Letters: H heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stairwell.models import inspect


@dataclass(frozen=True)
class AttentionAverage:
    layers: list[str]
    "Names of the layers."
    first: int
    "Nearest distance."
    weights: list[list[list[float]]]
    "Weights by layer, head and distance, nearest first."
    bin: int = 1
    "Number of distances per entry of `weights`."


@torch.no_grad()
def average_attention(
    model: Any, inputs: tuple[Any, ...], tokens: int, max_columns: int | None = None
) -> AttentionAverage | None:
    """Return the attention of the last tokens, averaged over them and the batch; None for models without attention.

    With `max_columns`, distances beyond all attention are left out and the others are summed in bins."""
    with inspect(model) as recorder:
        model(*inputs)
    weights = [layer[:, :, -tokens:].mean((0, 2)) for layer in recorder.attention]  # each (H, distances)
    if not weights:
        return None
    size = 1
    if max_columns is not None:
        weights, size = binned(weights, max_columns)
    core: Any = model.config.core
    rounded = [[[round(weight, 4) for weight in head] for head in layer.tolist()] for layer in weights]
    return AttentionAverage(layer_names(len(weights), core.layers), core.first, rounded, size)


def binned(weights: list[Tensor], max_columns: int) -> tuple[list[Tensor], int]:
    """Sum weights (H, distances) in bins of distances. Return them and the size of a bin."""
    distances = max([1, *(int(j) + 1 for layer in weights for j in layer.sum(0).nonzero().flatten())])
    size = -(-distances // max_columns)
    columns = -(-distances // size)
    bins = []
    for layer in weights:
        padding = columns * size - min(distances, layer.shape[-1])
        padded = torch.nn.functional.pad(layer[:, :distances], (0, padding))
        bins.append(padded.unflatten(-1, (columns, size)).sum(-1))
    return bins, size


def layer_names(count: int, layers: int) -> list[str]:
    """Return the names of `count` applications of the layers: `layer 1`, or `pass 1, layer 1` with several passes."""
    passes = count // layers
    return [f"{f'pass {n + 1}, ' if passes > 1 else ''}layer {l + 1}" for n in range(passes) for l in range(layers)]
