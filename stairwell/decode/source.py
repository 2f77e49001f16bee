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
from stairwell.layers import Layer, Slots, Sublayer


class Sources:
    def __init__(self, layers: Sequence[Layer], state: SourceState) -> None:
        self.layers = layers
        self.mask = state.source_mask  # (n, J)
        self.vectors = Source(state.source, self.mask).vectors  # (n, J, D)
        self.slots = {layer: layer.source_slots(self.vectors, self.mask) for layer in layers}
        self.place_rows(torch.arange(state.batch, device=self.mask.device))

    def place_rows(self, sentence: Tensor) -> None:
        """sentence (B,): which one each row reads."""
        self.sentence = sentence
        B, n = len(sentence), self.mask.shape[0]
        order = sentence.argsort(stable=True)
        sizes = torch.bincount(sentence, minlength=n)
        among = torch.arange(B, device=order.device) - (sizes.cumsum(0) - sizes)[sentence[order]]
        W = int(sizes.max()) if B else 0
        self.table = order.new_zeros(n, W)  # rows of each sentence; any row where there are fewer
        self.table[sentence[order], among] = order
        self.place = torch.empty_like(order)  # (B,) of each row in the table
        self.place[order] = sentence[order] * W + among

    def attend(self, layer: Layer) -> Sublayer:
        """A layer's attention of one token a row to the row's own sentence. (B, D) -> (B, D)"""

        def attend(normed: Tensor) -> Tensor:
            z, _ = layer.cross(normed[self.table], self.slots[layer], None)  # (n, W, D)
            return z.flatten(0, 1)[self.place]

        return attend

    def select(self, rows: Tensor) -> None:
        self.place_rows(self.sentence[rows])

    def join(self, state: SourceState) -> None:
        """The sentences of more rows; those that nobody reads any more are left out."""
        new = Sources(self.layers, state)
        used, sentence = self.sentence.unique(return_inverse=True)
        J = max(self.mask.shape[1], new.mask.shape[1])

        def joined(old: Tensor, more: Tensor, after: int) -> Tensor:
            """Along the sentences, filled up at the end of the sources; `after` dimensions lie behind theirs."""
            behind = [0] * (2 * after)
            parts = (old[used], more)
            return torch.cat([pad(part, (*behind, 0, J - part.shape[-1 - after])) for part in parts])

        self.vectors, self.mask = joined(self.vectors, new.vectors, 1), joined(self.mask, new.mask, 0)
        distance = torch.zeros(1, J, dtype=torch.int64, device=self.mask.device)
        for layer, old in self.slots.items():
            more = new.slots[layer]
            keys, values = joined(old.keys[0], more.keys[0], 1), joined(old.values[0], more.values[0], 1)
            self.slots[layer] = Slots([keys], [values], distance, self.mask[:, None])
        self.place_rows(torch.cat([sentence, len(used) + new.sentence]))

    def by_row(self) -> tuple[Tensor, Tensor]:
        """The source of each row, (B, J, D), and which of it is there, (B, J)."""
        return self.vectors[self.sentence], self.mask[self.sentence]
