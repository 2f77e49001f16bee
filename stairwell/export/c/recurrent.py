"""Cores without a step description as C: LSTM and DeltaNet. Their state has a fixed size."""

from __future__ import annotations

from typing import Any

from stairwell.cores.delta import DeltaNet
from stairwell.cores.lstm import LSTM
from stairwell.export.c.parameters import Parameters, float_literal
from stairwell.export.c.source import Constant, CoreSource, StateField

COUNT = StateField("count", "int", 0, "0 before the first token of the stream, then 1")


def lstm_source(core: LSTM, parameters: Parameters) -> CoreSource:
    L, D = core.config.layers, core.width
    parts = {"weight_ih": "input", "bias_ih": "input_bias", "weight_hh": "hidden", "bias_hh": "hidden_bias"}
    layers = [
        [parameters.floats(f"layer{l}_{name}", getattr(core.lstm, f"{part}_l{l}")) for part, name in parts.items()]
        for l in range(L)
    ]
    return CoreSource(
        template="lstm",
        constants=[Constant("LAYERS", L, "layers")],
        fields=[
            COUNT,
            StateField("hidden", "float", L * D, "hidden states of the layers", carried=True),
            StateField("cell", "float", L * D, "cell states of the layers", carried=True),
        ],
        functions={"expf", "tanhf"},
        context={"layers": layers},
        uses_layers=False,
    )


def deltanet_source(core: DeltaNet, parameters: Parameters) -> CoreSource:
    config = core.config
    L, H, K = config.layers, config.heads, config.K
    layers = []
    for l, layer in enumerate(core.layers):
        inner, _, outer = layer.feed_forward
        tensors: dict[str, Any] = {
            "mix_norm_weight": layer.mix_norm.weight,
            "mix_norm_bias": layer.mix_norm.bias,
            "query": layer.query.weight,
            "key": layer.key.weight,
            "value": layer.value.weight,
            "strength": layer.strength.weight,
            "head_norm_weight": layer.head_norm.weight,
            "out": layer.out.weight,
            "feed_forward_norm_weight": layer.feed_forward_norm.weight,
            "feed_forward_norm_bias": layer.feed_forward_norm.bias,
            "inner": inner.weight,
            "inner_bias": inner.bias,
            "outer": outer.weight,
            "outer_bias": outer.bias,
        }
        if config.gated:
            tensors |= {"keep": layer.keep.weight, "keep_bias": layer.keep.bias}
        layers.append({field: parameters.floats(f"layer{l}_{field}", values) for field, values in tensors.items()})
    return CoreSource(
        template="deltanet",
        constants=[
            Constant("LAYERS", L, "layers"),
            Constant("HEADS", H, "heads"),
            Constant("HEAD_WIDTH", K, "width of a head"),
            Constant("KEYS", H * K, "width of all heads"),
            Constant("INNER", config.F, "inner width of the feed-forward sublayer"),
            Constant("PRODUCTS", config.products, "corrections of a matrix per token"),
        ],
        fields=[COUNT, StateField("matrices", "float", L * H * K * K, "one matrix per layer and head", carried=True)],
        functions={"expf", "sqrtf"},
        context={
            "layers": layers,
            "gated": config.gated,
            "max_strength": float_literal(2.0 if config.negative_eigenvalues else 1.0),
        },
    )
