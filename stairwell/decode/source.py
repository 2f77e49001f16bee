"""Cross-attention of a session's streams: each source is projected once, however many streams attend to it.

Every stream has the index of its source, so a beam of W streams shares one set of keys and values. The queries of the
streams that share a source attend together, (n, W, D); sources with fewer streams are padded with an arbitrary one.
Letters: B streams, n sources, W maximum number of streams per source, J source tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from stairwell.cores.core import Source, SourceState
from stairwell.fast.linear import PackedLinear
from stairwell.layers import Layer, Slots, Sublayer


class Sources:
    def __init__(self, layers: Sequence[Layer], state: SourceState) -> None:
        self.layers = layers
        self.mask = state.source_mask  # (n, J)
        self.vectors = Source(state.source, self.mask).vectors  # (n, J, D)
        self.slots = {layer: layer.source_slots(self.vectors, self.mask) for layer in layers}
        # The scale of the scores is part of the query projection.
        self.queries = {layer: PackedLinear(layer.cross.query.weight * layer.cross.K**-0.5) for layer in layers}
        self.outs = {layer: PackedLinear(layer.cross.out.weight) for layer in layers}
        self.assign(torch.arange(state.batch, device=self.mask.device))

    def assign(self, source_index: Tensor) -> None:
        """Set the source of each stream (B,)."""
        self.source_index = source_index
        self.hidden = None if bool(self.mask.all()) else ~self.mask[:, None, None]  # (n, 1, 1, J)
        B, n = len(source_index), self.mask.shape[0]
        order = source_index.argsort(stable=True)
        sizes = torch.bincount(source_index, minlength=n)
        rank = torch.arange(B, device=order.device) - (sizes.cumsum(0) - sizes)[source_index[order]]
        self.W = int(sizes.max()) if B else 0
        # The streams of each source (n, W), and the index of each stream in that table, flattened. In a beam, streams
        # are in this order already.
        self.table = self.table_index = None
        if n * self.W != B or not torch.equal(source_index[order], source_index):
            self.table = order.new_zeros(n, self.W)
            self.table[source_index[order], rank] = order
            self.table_index = torch.empty_like(order)
            self.table_index[order] = source_index[order] * self.W + rank

    def attend(self, layer: Layer) -> Sublayer:
        """Return a layer's cross-attention of one token per stream. (B, D) -> (B, D)"""
        slots, query, out = self.slots[layer], self.queries[layer], self.outs[layer]
        keys, values = slots.keys[0].transpose(2, 3), slots.values[0]
        n, H, K = keys.shape[:3]

        def attend(normed: Tensor) -> Tensor:
            q = query(normed)
            q = (q if self.table is None else q[self.table]).view(n, self.W, H, K).transpose(1, 2)
            scores = q @ keys  # (n, H, W, J)
            if self.hidden is not None:
                # The values of padding are zero, so an empty source contributes zero.
                scores.masked_fill_(self.hidden, torch.finfo(scores.dtype).min)
            z = (scores.softmax(-1) @ values).transpose(1, 2).reshape(n * self.W, H * K)
            return out(z if self.table_index is None else z[self.table_index])

        return attend

    def select(self, index: Tensor) -> bool:
        """Continue with the given streams. Return whether the source of any stream has changed."""
        source_index = self.source_index[index]
        if torch.equal(source_index, self.source_index):
            return False
        used, source_index = torch.unique(source_index, return_inverse=True)
        if len(used) < self.mask.shape[0]:
            self.vectors, self.mask = self.vectors[used], self.mask[used]
            for layer, old in self.slots.items():
                self.slots[layer] = Slots([old.keys[0][used]], [old.values[0][used]], old.distance, self.mask[:, None])
        self.assign(source_index)
        return True

    def join(self, state: SourceState) -> None:
        """Append the sources of more streams."""
        new = Sources(self.layers, state)
        n, J = self.mask.shape[0], max(self.mask.shape[1], new.mask.shape[1])

        def joined(old: Tensor, new: Tensor, trailing: int) -> Tensor:
            """Concatenate along the sources after padding the tokens, which are followed by `trailing` dimensions."""
            zeros = [0] * (2 * trailing)
            return torch.cat([pad(part, (*zeros, 0, J - part.shape[-1 - trailing])) for part in (old, new)])

        self.vectors, self.mask = joined(self.vectors, new.vectors, 1), joined(self.mask, new.mask, 0)
        distance = torch.zeros(1, J, dtype=torch.int64, device=self.mask.device)
        for layer, old in self.slots.items():
            added = new.slots[layer]
            keys, values = joined(old.keys[0], added.keys[0], 1), joined(old.values[0], added.values[0], 1)
            self.slots[layer] = Slots([keys], [values], distance, self.mask[:, None])
        self.assign(torch.cat([self.source_index, n + new.source_index]))

    def per_stream(self) -> tuple[Tensor, Tensor]:
        """Return the source of each stream, (B, J, D), and its mask, (B, J)."""
        return self.vectors[self.source_index], self.mask[self.source_index]
