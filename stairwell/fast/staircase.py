"""The fast engine of the Staircases: all chunks of a step in parallel, as in the paper.

    H_{s-E+1}^E, ..., H_{s-1}^2, H_s^1 = TC(H_{s-E+1}^{E-1}, ..., H_{s-1}^1, H_s^0)                 step s

In step s, chunk c is at pass n = s-c+1. It attends to chunk c-d at pass n+d, which is part of the same step, and to the
cached chunks before. So a step is a causal run of up to E*C tokens that goes through the layers once, after slots that
are already known:

    [ cached chunks s-N+1 .. s-E ] [ chunks before the call, from the state, at their passes ] [ this call's tokens ]

n chunks take n + E - 1 steps instead of n*E passes. Keys and values are projected once per chunk, pass and layer. All
streams must have the same phase within their chunks; otherwise the reference forward runs. For short steps PyTorch's
overhead per operation exceeds the work, and native code runs instead (`staircase_native`).
Letters: B batch, T tokens, C chunk, N chunks in the context, M passes before caching, E = max(M, 1) computed passes,
L layers, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.cores.core import Source, warn_once
from stairwell.cores.sliding_window import GrowingSequence, Window, concat_time, tokens_since_start
from stairwell.cores.staircase import HostCounts, Staircase, StaircaseState
from stairwell.fast import native
from stairwell.fast.banded import Band, BandedLayer
from stairwell.fast.engine import FastEngine
from stairwell.fast.staircase_native import NativeStaircase
from stairwell.fast.staircase_steps import StaircaseSteps
from stairwell.layers import Masks

MAX_NATIVE_TOKENS = 32  # tokens per step up to which native code is used


class StaircaseEngine(FastEngine):
    """Run a Staircase step by step if all streams have the same phase."""

    def __call__(
        self,
        core: Staircase,
        x: Tensor,
        state: StaircaseState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, Any]:
        since_start = tokens_since_start(state.count, start, x.shape[1])
        counts = HostCounts.of(since_start, start, core.config.chunk)
        if not counts.in_phase:
            warn_once(
                "streams of this batch are at different positions within their chunks, which the fast engine does not "
                "support: the reference engine runs for such calls"
            )
            return core.reference(x, state, start, source, masks)
        # Native code needs at least one layer that LayerDrop does not skip.
        all_dropped = masks is not None and all(masks.dropped)
        steps = NativeStaircase if self.in_native(core, x) and not all_dropped else TorchStaircase
        return steps(core, x, state, start, since_start, source, masks, counts).run()

    def follows_autocast(self, core: Staircase, like: Tensor) -> bool:
        return not self.in_native(core, like)

    def in_native(self, core: Staircase, like: Tensor) -> bool:
        """Return whether native code is available, supports the config, and is faster."""
        config = core.config
        short = config.chunk * config.computed <= MAX_NATIVE_TOKENS
        return short and not config.cross and not config.residual_dropout and native.supports(like)


class TorchStaircase(StaircaseSteps):
    """One call of a Staircase in PyTorch."""

    def __init__(self, *call: Any) -> None:
        super().__init__(*call)
        core, (B, T, _) = self.core, self.x.shape
        sources = core.source_slots(self.source)
        self.layers = {l: BandedLayer(core.layers[l], sources[l], B * T) for l in self.active_layers}
        self.spans = {l: core.attention_span(core.layers[l], self.max_count + T) for l in self.active_layers}
        self.position_embeddings = self.positions()
        self.ramps = {l: core.layers[l].ramp(self.position_embeddings.shape[0]) for l in self.active_layers}
        # The cache: raw, and as keys and values of each layer.
        self.cached_chunks: list[Tensor] = []
        self.cache_kv: dict[int, GrowingSequence] = {}
        if self.cache_range is not None:
            memory = self.state_cache()
            self.cache_kv = {l: GrowingSequence(layer.keys_values(memory)[:, None]) for l, layer in self.layers.items()}
        self.inputs: list[list[list[Tensor]]] = [[[] for _ in range(self.L)] for _ in range(self.E)]  # by pass, layer

    def run(self) -> tuple[Tensor, Any]:
        n, E, M = len(self.chunks), self.E, self.core.config.M
        outputs: list[Tensor] = []
        h = self.x[:, :0]
        for s in range(self.S):
            if s < n:
                first, last = self.chunks[s]
                h = torch.cat([h, self.x[:, first:last]], 1) if h.shape[1] else self.x[:, first:last]
            h = self.step(s, h)
            leaving = s - E + 1
            if leaving >= 0:
                first, last = self.chunks[leaving]
                output, h = h[:, : last - first], h[:, last - first :]
                outputs.append(output)
                self.append_to_cache(leaving, output if M > 0 else self.x[:, first:last])
        T = self.x.shape[1]
        new_inputs = [
            torch.stack([last_tokens(segments, min(old.shape[1], T)) for segments in by_layer], 2)
            for old, by_layer in zip(self.state.passes, self.inputs, strict=True)
        ]
        return concat_time(outputs), self.next_state(new_inputs, self.cached_chunks)

    def step(self, s: int, h: Tensor) -> Tensor:
        """Apply all layers to the chunks of step s, oldest first. h (B, t, D) -> (B, t, D)"""
        chunks = self.chunks_of(s)
        start, end = self.chunks[chunks[0]][0], self.chunks[chunks[-1]][1]
        sizes = [self.chunks[c][1] - self.chunks[c][0] for c in chunks]
        state_inputs = self.state_inputs(s)
        memory = concat_time(state_inputs) if state_inputs else None
        for l in range(self.L):
            for c, chunk in zip(chunks, h.split(sizes, 1), strict=True):
                self.inputs[s - c][l].append(chunk)
            if l not in self.layers:
                continue
            context = self.context(s, l, memory)
            filled = self.all_filled(start, sum(part.shape[1] for part in context))
            masks = self.dropout_masks(s, l)
            since_start = None if filled else self.since_start[:, start:end]
            band = Band(self.core.config.heads, Window(0, self.spans[l]), since_start, masks.attention)
            h = self.layers[l](h, context, self.position_embeddings, self.ramps[l], band, masks)
        return h

    def context(self, s: int, l: int, memory: Tensor | None) -> list[Tensor]:
        """Return the keys and values that layer l attends to before the tokens of step s, oldest first, limited to
        the layer's span. memory (B, o, L, D): layer inputs from the state."""
        span = self.spans[l]
        if memory is None:
            return self.visible_cache(s, l, span)
        near = memory[:, max(memory.shape[1] - span, 0) :, l]
        return [*self.visible_cache(s, l, span - near.shape[1]), self.layers[l].keys_values(near)]

    def visible_cache(self, s: int, l: int, max_slots: int) -> list[Tensor]:
        """Return keys and values of the newest cached tokens that are visible to step s, oldest first."""
        first, last = self.cached(s)
        if first == last:
            return []
        end = max(last, 0)  # the cache ends with the newest visible chunk, or at the start of the call
        return [
            view[:, 0] for view in self.cache_kv[l].slice_back(end - last, min(end - first, end - last + max_slots))
        ]

    def append_to_cache(self, c: int, final: Tensor) -> None:
        """Append the final state (B, t, D) of chunk c to the cache."""
        if not self.core.config.caches:
            return
        self.cached_chunks.append(final)
        if c + 1 < len(self.chunks):  # no chunk of the call attends to the last one
            for l, sequence in self.cache_kv.items():
                sequence.append(self.layers[l].keys_values(final)[:, None])


def last_tokens(segments: list[Tensor], n: int) -> Tensor:
    """Return the last n tokens of consecutive segments (B, t, D)."""
    selected: list[Tensor] = []
    for segment in reversed(segments):
        if n > 0:
            selected.append(segment[:, max(segment.shape[1] - n, 0) :])
            n -= segment.shape[1]
    return concat_time(selected[::-1]) if selected else segments[0][:, :0]
