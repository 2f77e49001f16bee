"""Pack a model for `engine.js`: a JSON header, and all parameters as one base64 block of float32.

The header has the core's config, its step description and the offset of each parameter in the block:

    {"core": {"name": "feedback", "width": 64, ...}, "step": {"applications": [...], ...}, "outputs": 64,
     "tensors": {"core.position.vectors": {"offset": 0, "size": 1024}, ...}}
"""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, fields
from typing import Any

import torch

from stairwell import configs
from stairwell.cores import Core, name_of, step_of
from stairwell.cores.delta import DeltaNetConfig
from stairwell.errors import UserError
from stairwell.layers import LayerConfig
from stairwell.models import LanguageModel

RECURRENT = ("lstm", "deltanet")  # cores without a step description that engine.js supports


@dataclass(frozen=True)
class PackedModel:
    header: dict[str, Any]
    block: str


def pack(model: LanguageModel) -> PackedModel:
    """Return the header and the parameters of a model. Raise an error if `engine.js` does not support it."""
    check(model)
    return pack_model(model, outputs=model.config.V)


def pack_model(model: Any, **header: Any) -> PackedModel:
    """Return the parameters and the header of any model with a core. `header` is what else its engine reads."""
    name = check_core(model.core)
    parameters = {key: value.detach().to("cpu", torch.float32) for key, value in model.state_dict().items()}
    tensors, offset = {}, 0
    for key, value in parameters.items():
        tensors[key] = {"offset": offset, "size": value.numel()}
        offset += value.numel()
    block = torch.cat([value.flatten() for value in parameters.values()]).numpy().astype("<f4").tobytes()
    core = core_header(name, model.config.core)
    if spans := model.core.spans():
        core["longest_span"] = spans[0].longest
    with torch.no_grad():
        # In float64, as the engine computes.
        description = step_of(copy.deepcopy(model.core).double())
    step = description.to_json() if description is not None else None
    return PackedModel(
        {"core": core, "step": step, "tensors": tensors, **header}, base64.b64encode(block).decode("ascii")
    )


def check(model: LanguageModel) -> str:
    """Return the name of the model's core. Raise an error if `engine.js` does not support the model."""
    name = check_core(model.core)
    if model.config.adaptive:
        raise UserError("a page does not support adaptive embeddings and softmax; train with an empty model.adaptive")
    return name


def check_core(core: Core[Any, Any]) -> str:
    """Return the name of a core. Raise an error if `engine.js` does not support it."""
    name = name_of(core.config)
    if name is None or (name not in RECURRENT and step_of(core) is None):
        raise UserError(
            f"a page does not support the core {name or type(core.config).__name__}: it supports attention cores that "
            f"describe their step, and {', '.join(RECURRENT)}"
        )
    return name


def core_header(name: str, config: Any) -> dict[str, Any]:
    """Return the core's config with its fixed fields, the head width and the nearest distance."""
    fixed = {field.name: getattr(config, field.name) for field in fields(config) if not field.init}
    derived = {"first": config.first} if isinstance(config, LayerConfig) else {}
    if isinstance(config, LayerConfig | DeltaNetConfig):
        derived["K"] = config.K
    return {"name": name, **configs.to_json(config), **fixed, **derived}
