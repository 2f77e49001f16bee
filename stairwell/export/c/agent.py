"""Agents with discrete actions as C: an observation in; action, logits and value out.

Everything that the observation encoders add regardless of the observation is one vector, `input_bias`: the mean of the
normalized integers and the biases. Letters: D width.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from stairwell.errors import UserError
from stairwell.export.c.parameters import KEYWORDS, Parameters, float_literal, wrapped
from stairwell.export.c.source import ModelSource
from stairwell.rl.agent import Agent
from stairwell.rl.distributions import MASKED_LOGIT, Categorical
from stairwell.rl.encoders import BoxEncoder, DiscreteEncoder, ImageEncoder
from stairwell.rl.flatten import ROOT

RESERVED = {"last_action", "last_reward", "action_mask"}


def agent_source(agent: Agent, parameters: Parameters) -> ModelSource:
    """Add the encoders and the heads."""
    distribution = agent.action_dist
    if not isinstance(distribution, Categorical):
        raise UserError("a C file supports agents with discrete actions; export this agent with --onnx")
    share = len(agent.leaves) ** -0.5
    fields = field_names(list(agent.leaves))
    bias = torch.zeros(agent.config.core.width)
    leaves = []
    for field, encoder in zip(fields, agent.encoders):
        leaf, leaf_bias = encoder_source(f"input_{field}", encoder, share, parameters)
        leaves.append({**leaf, "field": field, "input": f"input->{field}"})
        bias = bias + leaf_bias
    parameters.floats("input_bias", bias)
    last_action = None
    if agent.last_action is not None:
        last_action, action_bias = encoder_source("last_action", agent.last_action, 1.0, parameters)
        parameters.floats("last_action_bias", action_bias)
    if agent.last_reward is not None:
        parameters.floats("last_reward_weight", agent.last_reward.weight)
        parameters.floats("last_reward_bias", agent.last_reward.bias)
    # The value is in rewards of the environment.
    for name, head, scale in (("policy", agent.policy, 1.0), ("value", agent.value, agent.reward_scale)):
        parameters.floats(f"{name}_weight", head.weight * scale)
        parameters.floats(f"{name}_bias", head.bias * scale)
    return ModelSource(
        template="agent",
        constants=[],
        functions={"log2f", "fabsf"} if agent.last_reward is not None else set(),
        context={
            "leaves": leaves,
            "last_action": last_action,
            "last_reward": agent.last_reward is not None,
            "action_sizes": wrapped([str(size) for size in distribution.nvec]),
            "actions": distribution.action_size,
            "logits": distribution.head_size,
            "masked_logit": float_literal(MASKED_LOGIT),
        },
        adds=True,
    )


def encoder_source(
    name: str, encoder: nn.Module, share: float, parameters: Parameters
) -> tuple[dict[str, Any], Tensor]:
    """Add an encoder, multiplied by `share`. Return what the template says about it, and its bias (D,)."""
    if isinstance(encoder, DiscreteEncoder):
        table = encoder.weight * encoder.scale[:, None]
        edges = [*encoder.offsets.tolist(), len(table)]
        sizes = [end - start for start, end in pairwise(edges)]
        parameters.floats(f"{name}_embedding", table * share)
        bias = -(encoder.mean * encoder.scale) @ encoder.weight
        return {"type": "integers", "name": name, "size": len(sizes), "sizes": wrapped(list(map(str, sizes))),
                "largest": max(sizes) - 1}, bias.cpu() * share  # fmt: skip
    assert isinstance(encoder, BoxEncoder)
    parameters.floats(f"{name}_weight", encoder.linear.weight * share)
    leaf = {
        "type": "numbers",
        "name": name,
        "size": math.prod(encoder.shape),
        "center": constant_or_array(f"{name}_center", encoder.center, parameters),
        "scale": constant_or_array(f"{name}_scale", encoder.scale, parameters),
    }
    if isinstance(encoder, ImageEncoder):
        leaf |= image_source(name, encoder, parameters)
    return leaf, encoder.linear.bias.cpu() * share


def constant_or_array(name: str, values: Tensor, parameters: Parameters) -> str:
    """Return an expression for element i."""
    if len(set(values.tolist())) == 1:
        return float_literal(float(values[0]))
    return f"{parameters.floats(name, values)}[i]"


def image_source(name: str, encoder: ImageEncoder, parameters: Parameters) -> dict[str, Any]:
    """Add the convolutions of an image encoder."""
    shape = encoder.shape
    channels, rows, columns = shape if encoder.channels_first else (shape[2], shape[0], shape[1])
    image = {"type": "image", "channels": channels, "pixels": rows * columns, "channels_first": encoder.channels_first}
    convolutions = []
    for i, layer in enumerate(layer for layer in encoder.convolutions if isinstance(layer, nn.Conv2d)):
        stride = layer.stride[0]
        weight = parameters.floats(f"{name}_weight{i}", layer.weight)
        assert layer.bias is not None
        sizes = {"channels": channels, "rows": rows, "columns": columns, "stride": stride}
        rows, columns, channels = -(-rows // stride), -(-columns // stride), layer.out_channels
        convolutions.append(
            {**sizes, "weight": weight, "bias": parameters.floats(f"{name}_bias{i}", layer.bias),
             "out_channels": channels, "size": channels * rows * columns}
        )  # fmt: skip
    return {**image, "convolutions": convolutions}


def field_names(paths: list[str]) -> list[str]:
    """Return a C name for each leaf of the observation space: `image` for the path observation.image."""
    names: list[str] = []
    for path in paths:
        name = re.sub(r"\W", "_", path.removeprefix(f"{ROOT}."), flags=re.ASCII)
        if not name[0].isalpha() or name in RESERVED | KEYWORDS:
            name = f"{ROOT}_{name}"
        while name in names:
            name += "_"
        names.append(name)
    return names
