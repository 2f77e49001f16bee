"""What a session's rows attend to besides their past: sources, each projected once however many rows read it.

A row remembers which sentence is its own, so a beam of W rows reads one set of keys and values. Queries of rows that
read the same sentence are put side by side, (n, W, D), and attend together; where there are fewer, one is repeated.
Letters: B rows, n sentences, W the most rows of a sentence, J source tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from stairwell.cores.core import Source, SourceState
from stairwell.fast.products import PackedLinear
from stairwell.layers import Layer, Slots, Sublayer


class Sources:
    def __init__(self, layers: Sequence[Layer], state: SourceState) -> None:
        self.layers = layers
        self.mask = state.source_mask  # (n, J)
        self.vectors = Source(state.source, self.mask).vectors  # (n, J, D)
        self.slots = {layer: layer.source_slots(self.vectors, self.mask) for layer in layers}
        # Scores come out scaled.
        self.queries = {layer: PackedLinear(layer.cross.query.weight * layer.cross.K**-0.5) for layer in layers}
        self.outs = {layer: PackedLinear(layer.cross.out.weight) for layer in layers}
        self.place_rows(torch.arange(state.batch, device=self.mask.device))

    def place_rows(self, sentence: Tensor) -> None:
        """sentence (B,): which one each row reads."""
        self.sentence = sentence
        # Sentences all of whose tokens are there need no mask.
        self.hidden = None if bool(self.mask.all()) else ~self.mask[:, None, None]  # (n, 1, 1, J)
        B, n = len(sentence), self.mask.shape[0]
        order = sentence.argsort(stable=True)
        sizes = torch.bincount(sentence, minlength=n)
        among = torch.arange(B, device=order.device) - (sizes.cumsum(0) - sizes)[sentence[order]]
        self.W = int(sizes.max()) if B else 0
        # Rows of each sentence, any row where there are fewer; and the place of each row among them. In a beam rows lie
        # as they should already.
        self.table = self.place = None
        if n * self.W != B or not torch.equal(sentence[order], sentence):
            self.table = order.new_zeros(n, self.W)
            self.table[sentence[order], among] = order
            self.place = torch.empty_like(order)
            self.place[order] = sentence[order] * self.W + among

    def attend(self, layer: Layer) -> Sublayer:
        """A layer's attention of one token a row to the row's own sentence. (B, D) -> (B, D)"""
        slots, query, out = self.slots[layer], self.queries[layer], self.outs[layer]
        keys, values = slots.keys[0].transpose(2, 3), slots.values[0]
        n, H, K = keys.shape[:3]

        def attend(normed: Tensor) -> Tensor:
            q = query(normed)
            q = (q if self.table is None else q[self.table]).view(n, self.W, H, K).transpose(1, 2)
            scores = q @ keys  # (n, H, W, J)
            if self.hidden is not None:
                # What is not there has values of zero: a sentence without any token gives nothing.
                scores.masked_fill_(self.hidden, torch.finfo(scores.dtype).min)
            z = (scores.softmax(-1) @ values).transpose(1, 2).reshape(n * self.W, H * K)
            return out(z if self.place is None else z[self.place])

        return attend

    def select(self, rows: Tensor) -> bool:
        """Go on with the given rows. Whether they read other sentences now than they did."""
        sentence = self.sentence[rows]
        if torch.equal(sentence, self.sentence):
            return False
        self.keep_read(sentence)
        return True

    def keep_read(self, sentence: Tensor) -> None:
        """The sentence (B,) of each row; those that nobody reads any more leave."""
        used, sentence = sentence.unique(return_inverse=True)
        if len(used) < self.mask.shape[0]:
            self.vectors, self.mask = self.vectors[used], self.mask[used]
            for layer, old in self.slots.items():
                self.slots[layer] = Slots([old.keys[0][used]], [old.values[0][used]], old.distance, self.mask[:, None])
        self.place_rows(sentence)

    def join(self, state: SourceState) -> None:
        """The sentences of more rows come in behind those that are here."""
        new = Sources(self.layers, state)
        n, J = self.mask.shape[0], max(self.mask.shape[1], new.mask.shape[1])

        def joined(old: Tensor, more: Tensor, after: int) -> Tensor:
            """Along the sentences, filled up at the end of the sources; `after` dimensions lie behind theirs."""
            behind = [0] * (2 * after)
            return torch.cat([pad(part, (*behind, 0, J - part.shape[-1 - after])) for part in (old, more)])

        self.vectors, self.mask = joined(self.vectors, new.vectors, 1), joined(self.mask, new.mask, 0)
        distance = torch.zeros(1, J, dtype=torch.int64, device=self.mask.device)
        for layer, old in self.slots.items():
            more = new.slots[layer]
            keys, values = joined(old.keys[0], more.keys[0], 1), joined(old.values[0], more.values[0], 1)
            self.slots[layer] = Slots([keys], [values], distance, self.mask[:, None])
        self.place_rows(torch.cat([self.sentence, n + new.sentence]))

    def by_row(self) -> tuple[Tensor, Tensor]:
        """The source of each row, (B, J, D), and which of it is there, (B, J)."""
        return self.vectors[self.sentence], self.mask[self.sentence]
