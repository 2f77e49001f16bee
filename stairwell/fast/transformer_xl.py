"""The fast engine of Transformer-XL and Universal, with banded attention.

    z_t^l = Attn(x_t^{l-1}, {x_{t-S}^{l-1}, ..., x_{t-1}^{l-1}})     S scores per token, not the S + T of a full matrix

Queries, keys and values of a segment come from one product per layer, those of the memory from another; see `banded`.
Letters: B batch, T tokens, S memory slots, D width, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.cores.transformer_xl import TransformerXL
from stairwell.devices import on_accelerator
from stairwell.fast.banded import Band, BandedLayer
from stairwell.fast.engine import FastEngine
from stairwell.layers import NO_MASKS, Masks
from stairwell.state import State


class TransformerXLEngine(FastEngine):
    """Run Transformer-XL or Universal with scores only inside the attention window."""

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
        since_start = tokens_since_start(state.count, start, T)
        # Leave out empty slots and masks. On an accelerator, reading the counts would wait for the device.
        min_count, max_count = (0, core.window.last)
        if not on_accelerator(x):
            min_count, max_count = int(since_start.min()), max(1, int(since_start.max()))
        sources = core.source_slots(source)
        layers = {layer: BandedLayer(layer, slots, B * T) for layer, slots in zip(core.layers, sources, strict=True)}
        positions = core.position.table(core.window.distances, masks.position_index if masks is not None else None)
        inputs: list[Tensor] = []
        for l, layer in enumerate(core.layer_sequence()):
            inputs.append(x)
            layer_masks = masks.for_layer(l, 0, T) if masks is not None else NO_MASKS
            if layer_masks.dropped:
                continue
            window = core.window.trimmed(core.attention_span(layer, max_count))
            filled = window.always_filled(min_count)
            band = Band(core.config.heads, window, None if filled else since_start, layer_masks.attention)
            memory = state.memory[:, state.memory.shape[1] - window.last :, l]
            banded = layers[layer]
            x = banded(x, [banded.keys_values(memory)], positions, layer.ramp(positions.shape[0]), band, layer_masks)
        first = max(T - state.memory.shape[1], 0)  # earlier tokens leave the memory within the call
        new = torch.stack([layer_input[:, first:] for layer_input in inputs], 2)
        return x, state.advance(new, since_start, start)
