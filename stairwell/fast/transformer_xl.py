"""The fast engine of Transformer-XL and Universal: the walk of `stairwell.cores.transformer_xl`, attending by bands.

    z_t^l = Attn(x_t^{l-1}, {x_{t-S}^{l-1}, ..., x_{t-1}^{l-1}})       S scores a token, not the S + T of a full matrix

Queries, keys and values of a segment come from one product a layer, those of the memory from another; see `banded`.
Letters: B rows, T tokens, S memory slots, D width, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source
from stairwell.cores.time import after, ages
from stairwell.cores.transformer_xl import TransformerXL
from stairwell.devices import on_accelerator
from stairwell.fast.banded import Band, BandedLayer
from stairwell.fast.engine import FastEngine
from stairwell.layers import KEEP_ALL, Masks
from stairwell.state import State


class TransformerXLEngine(FastEngine):
    """The reference's walk, with scores only where the memory's window lies."""

    def follows_autocast(self, core: TransformerXL, like: Tensor) -> bool:
        return True

    def __call__(
        self,
        core: TransformerXL,
        x: Tensor,
        state: Any,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        age = ages(state.count, start, T)
        # Which slots are empty, for some tokens or for all, is asked only where the answer costs nothing.
        newest, oldest = (0, core.window.last) if on_accelerator(x) else (int(age.min()), max(1, int(age.max())))
        sources = core.source_slots(source)
        layers = {layer: BandedLayer(layer, given, B * T) for layer, given in zip(core.layers, sources, strict=True)}
        vectors = core.position.table(core.window.distances, masks.vectors if masks is not None else None)
        inputs: list[Tensor] = []
        for l, layer in enumerate(core.layer_sequence()):
            inputs.append(x)
            kept = masks.at(l, 0, T) if masks is not None else KEEP_ALL
            if kept.dropped:
                continue
            window = core.window.trimmed(core.reach(layer, oldest))
            band = Band(core.config.heads, window, None if window.always_filled(newest) else age, kept.attention)
            memory = state.memory[:, state.memory.shape[1] - window.last :, l]
            fast = layers[layer]
            x = fast(x, [fast.keys_values(memory)], vectors, layer.ramp(vectors.shape[0]), band, kept)
        staying = max(T - state.memory.shape[1], 0)  # tokens before this one leave the memory within the call
        return x, after(state, torch.stack([layer_input[:, staying:] for layer_input in inputs], 2), age, start)
