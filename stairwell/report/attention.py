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
    "Nearest distance that is attended to."
    weights: list[list[list[float]]]
    "Weights by layer, head and distance, nearest first."
    bin: int = 1
    "Number of distances per entry of `weights`."


@torch.no_grad()
def average_attention(
    model: Any, inputs: tuple[Any, ...], last_tokens: int, max_columns: int | None = None
) -> AttentionAverage | None:
    """Return the attention of the last tokens, averaged over them and the batch; None for models without attention.

    With `max_columns`, trailing distances whose weights are all zero are dropped, and the others are summed in bins."""
    with inspect(model) as recorder:
        model(*inputs)
    weights = [layer[:, :, -last_tokens:].mean((0, 2)) for layer in recorder.attention]  # each (H, distances)
    if not weights:
        return None
    bin_width = 1
    if max_columns is not None:
        weights, bin_width = bin_distances(weights, max_columns)
    core: Any = model.config.core
    rounded = [[[round(weight, 4) for weight in head] for head in layer.tolist()] for layer in weights]
    return AttentionAverage(layer_names(len(weights), core.layers), core.first, rounded, bin_width)


def bin_distances(weights: list[Tensor], max_columns: int) -> tuple[list[Tensor], int]:
    """Sum weights (H, distances) in bins of distances. Return the sums and the number of distances per bin."""
    distances = max([1, *(int(j) + 1 for layer in weights for j in layer.sum(0).nonzero().flatten())])
    bin_width = -(-distances // max_columns)
    columns = -(-distances // bin_width)
    bins = []
    for layer in weights:
        padding = columns * bin_width - min(distances, layer.shape[-1])
        padded = torch.nn.functional.pad(layer[:, :distances], (0, padding))
        bins.append(padded.unflatten(-1, (columns, bin_width)).sum(-1))
    return bins, bin_width


def layer_names(count: int, layers: int) -> list[str]:
    """Return the names of `count` layer calls over one or more passes: `layer 1`, or `pass 1, layer 1`."""
    passes = count // layers
    return [f"{f'pass {n + 1}, ' if passes > 1 else ''}layer {l + 1}" for n in range(passes) for l in range(layers)]
