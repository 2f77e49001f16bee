"""Pack a model for `engine.js`: a JSON header, and all parameters as one base64 block.

The header has the core's config, its step description (`stairwell.cores.step_of`) and all parameters in the order of
the block:

    {"core": {"name": "feedback", "width": 64, ..., "first": 1, "K": 64, "longest_span": 32},
     "step": {"applications": [...], ...}, "outputs": 64,
     "tensors": {"core.position.vectors": {"offset": 0, "size": 1024}, ...}}

`offset` and `size` count elements, not bytes: they are the position in the decoded float32 array of all parameters.
In the block of `pack_language_model` and `pack` the parameters are float32. In that of `pack_quantized` each one has a
type of its own, so that a reader must decode the parameters in order:

    {"offset": 1024, "size": 4096, "type": "int8", "rows": 64}    float32 scales of the rows, then the int8 elements
    {"offset": 5120, "size": 64, "type": "float16"}               or "float32"
"""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from stairwell import configs
from stairwell.cores import Core, name_of, step_of
from stairwell.cores.delta import DeltaNetConfig
from stairwell.decode.weights import Weights, decoding_matrices, quantize, quantize_matrix
from stairwell.errors import UserError
from stairwell.layers import LayerConfig
from stairwell.models import LanguageModel

RECURRENT = ("lstm", "deltanet")  # cores that engine.js implements by hand, without a step description


@dataclass(frozen=True)
class PackedModel:
    header: dict[str, Any]
    block: str


def pack_language_model(model: LanguageModel) -> PackedModel:
    """Return the header and the parameters of a model. Raise an error if `engine.js` does not support it."""
    supported_core(model)
    return pack(model, outputs=model.config.V)


def pack(model: Any, **header: Any) -> PackedModel:
    """Return the header and the parameters of any model with a core. `header`: further fields of the header."""
    described = describe_core(model.core, model.config.core)
    parameters = float32_parameters(model)
    tensors, offset = {}, 0
    for key, value in parameters.items():
        tensors[key] = {"offset": offset, "size": value.numel()}
        offset += value.numel()
    block = b"".join(bytes_of(value, "<f4") for value in parameters.values())
    return PackedModel({**described, "tensors": tensors, **header}, base64.b64encode(block).decode("ascii"))


def pack_quantized(model: Any, weights: Weights, **header: Any) -> PackedModel:
    """Like `pack`, with a smaller block: with int8, the matrices of the layers and of the head are stored with one
    scale per row, and the model is rounded in place; other parameters are stored in half precision if that is exact."""
    described = describe_core(model.core, model.config.core)
    matrices = int8_matrices(model) if weights == "int8" else {}
    quantize(model, weights)
    tensors: dict[str, Any] = {}
    block, offset = [], 0
    for key, value in float32_parameters(model).items():
        tensors[key] = {"offset": offset, "size": value.numel()}
        offset += value.numel()
        if key in matrices:
            integers, scales = matrices[key]
            tensors[key] |= {"type": "int8", "rows": len(scales)}
            block += [bytes_of(scales, "<f4"), bytes_of(integers, "i1")]
        elif torch.equal(value.half().float(), value):
            tensors[key]["type"] = "float16"
            block.append(bytes_of(value, "<f2"))
        else:
            tensors[key]["type"] = "float32"
            block.append(bytes_of(value, "<f4"))
    return PackedModel({**described, "tensors": tensors, **header}, base64.b64encode(b"".join(block)).decode("ascii"))


def int8_matrices(model: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the matrices of the layers and of the head in int8, with one scale per row, by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices = {}
    for matrix in decoding_matrices(model):
        integers, scales = quantize_matrix(matrix.detach(), "int8")
        assert scales is not None
        matrices[names[id(matrix)]] = (integers, scales)
    return matrices


def float32_parameters(model: Any) -> dict[str, Tensor]:
    return {key: value.detach().to("cpu", torch.float32) for key, value in model.state_dict().items()}


def bytes_of(values: Tensor, dtype: str) -> bytes:
    return values.flatten().cpu().numpy().astype(dtype).tobytes()


def describe_core(core: Core[Any, Any], config: Any) -> dict[str, Any]:
    """Return the config of a core and its step description."""
    described = core_header(supported_core_name(core), config)
    if spans := core.spans():
        described["longest_span"] = spans[0].longest
    with torch.no_grad():
        # In float64, as engine.js computes.
        description = step_of(copy.deepcopy(core).double())
    return {"core": described, "step": description.to_json() if description is not None else None}


def supported_core(model: LanguageModel) -> str:
    """Return the name of the model's core. Raise an error if `engine.js` does not support the model."""
    name = supported_core_name(model.core)
    if model.config.adaptive:
        raise UserError("a page does not support adaptive embeddings and softmax; train with an empty model.adaptive")
    return name


def supported_core_name(core: Core[Any, Any]) -> str:
    """Return the name of a core. Raise an error if `engine.js` does not support it."""
    name = name_of(core.config)
    if name is None or (name not in RECURRENT and step_of(core) is None):
        raise UserError(
            f"a page does not support the core {name or type(core.config).__name__}: it supports attention cores that "
            f"describe their step, and {', '.join(RECURRENT)}"
        )
    return name


def core_header(name: str, config: Any) -> dict[str, Any]:
    """Return the core's config for the header: its fields, those that are not options (`init=False`), the nearest
    distance (`first`) and the width of a head (`K`)."""
    fixed = {field.name: getattr(config, field.name) for field in fields(config) if not field.init}
    derived = {"first": config.first} if isinstance(config, LayerConfig) else {}
    if isinstance(config, LayerConfig | DeltaNetConfig):
        derived["K"] = config.K
    return {"name": name, **configs.to_json(config), **fixed, **derived}
