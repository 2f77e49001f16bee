"""Weight quantization for decoding: bfloat16, or int8 with one scale per row of a matrix.

    quantize(model, "int8")          round the decoder's matrices in place; sessions then store them in int8
    set_cache_type(model, "bfloat16")        sessions store keys and values in bfloat16

Decoding a few streams is limited by memory bandwidth, so smaller parameters make it faster. The matrices of the layers
and of the head are quantized; untied embeddings, norms, biases, position embeddings and an encoder are not. The model
itself holds the rounded (dequantized) values, so prefill, decoding and evaluation compute the same function. Do not
train or save a model after this.

With many streams or a long memory, reading keys and values takes most of the time, and bfloat16 halves it. Only
sessions round them: a call of the model, as in prefill, uses the exact memory. The state of a session stays exact too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from stairwell.cores.core import TransformerCore
from stairwell.errors import UserError
from stairwell.layers import Layer
from stairwell.models.embedding import Head

Weights = Literal["float32", "bfloat16", "int8"]  # how a session stores matrices; float32: no quantization
STORAGE_CODES: dict[Weights, int] = {"float32": 0, "bfloat16": 1, "int8": 2}  # must match csrc/step.h
LARGEST = 127

Cache = Literal["float32", "bfloat16"]  # how a session stores keys and values

_weights: weakref.WeakKeyDictionary[nn.Module, Weights] = weakref.WeakKeyDictionary()


def weights_of(model: nn.Module) -> Weights:
    """Return how sessions of a model store its matrices."""
    return _weights.get(model, "float32")


_caches: weakref.WeakKeyDictionary[nn.Module, Cache] = weakref.WeakKeyDictionary()


def cache_of(model: nn.Module) -> Cache:
    """Return how new sessions of a model store keys and values; float32: in the dtype of the parameters."""
    return _caches.get(model, "float32")


def set_cache_type(model: Any, cache: Cache) -> None:
    """Store keys and values of new sessions in the type `cache`."""
    if cache not in get_args(Cache):
        raise UserError(f"cache {cache}: choose from {', '.join(get_args(Cache))}")
    if not isinstance(model.core, TransformerCore):
        raise UserError(f"cache {cache} requires a transformer core, not {type(model.core).__name__}")
    dtype = next(model.parameters()).dtype
    if dtype != torch.float32:
        raise UserError(f"cache {cache} requires parameters in float32, not {dtype}")
    _caches[model] = cache


@torch.no_grad()
def quantize(model: Any, weights: Weights) -> None:
    """Round the decoder's matrices in place; sessions then store them in the type `weights`."""
    if weights not in get_args(Weights):
        raise UserError(f"--weights {weights}: choose from {', '.join(get_args(Weights))}")
    if weights == weights_of(model):
        return
    if weights_of(model) != "float32":
        raise UserError(f"the model's parameters are already rounded to {weights_of(model)}; load it again")
    matrices = list(decoding_matrices(model))
    if not matrices:
        raise UserError(f"--weights {weights} requires a transformer core, not {type(model.core).__name__}")
    if other_dtypes := [matrix.dtype for matrix in matrices if matrix.dtype != torch.float32]:
        raise UserError(f"--weights {weights} requires parameters in float32, not {other_dtypes[0]}")
    for matrix in matrices:
        matrix.copy_(rounded(matrix, weights))
    _weights[model] = weights


def decoding_matrices(model: Any) -> Iterator[Tensor]:
    """Yield the matrices of the layers and of the head, each once."""
    if not isinstance(model.core, TransformerCore):
        return
    for layer in model.core.layers:
        assert isinstance(layer, Layer)
        yield from (module.weight for module in layer.modules() if isinstance(module, nn.Linear))
    if isinstance(getattr(model, "head", None), Head):
        yield model.head.weight


def rounded(matrix: Tensor, weights: Weights) -> Tensor:
    """Return a matrix after quantization and dequantization, in its own dtype."""
    values, scale = quantize_matrix(matrix, weights)
    return values.to(matrix.dtype) if scale is None else values * scale[:, None]


def quantize_matrix(matrix: Tensor, weights: Weights) -> tuple[Tensor, Tensor | None]:
    """Return the quantized matrix (m, n) and, for int8, one scale per row (m,)."""
    if weights == "float32":
        return matrix.contiguous(), None
    if weights == "bfloat16":
        return matrix.to(torch.bfloat16).contiguous(), None
    scale = matrix.abs().amax(1) / LARGEST
    scale = torch.where(scale == 0, 1, scale)
    return (matrix / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8).contiguous(), scale
