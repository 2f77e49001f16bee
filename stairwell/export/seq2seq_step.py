"""Export a translator or summarizer as two graphs, for `torch.export` and ONNX: the encoder, and one decoding step.

    source_keys.0, source_values.0, ... = encoder(source, source_mask)          once per source
    logits, countN, memoryN = decoder(token, source_mask, source_keys.0, source_values.0, ..., count, memory)

source (B, J) int64, source_mask (B, J) bool, true where there is a source token. The keys and values (B, H, J, K) are
those of the cross-attention of each layer, or of the one after a core that has none. The states are those of a language
model (`stairwell.export.step`). The batch size B and the number of source tokens J are dynamic.
"""

from __future__ import annotations

import json
import os

import torch
from torch import Tensor

from stairwell.errors import UserError
from stairwell.export.step import CoreStep, check_onnx, names_of, write_onnx, write_program
from stairwell.export.task_json import check_pair_sizes, pair_json
from stairwell.layers import Attention, source_slots
from stairwell.models import Seq2Seq
from stairwell.outputs import write_output_folder
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import Search

SOURCE_TOKENS = 5  # of the traced example


class SourceStep(CoreStep):
    """What both graphs share: the source, and the attentions to it."""

    def __init__(self, model: Seq2Seq, task: PairTask | None = None, search: Search | None = None) -> None:
        if not isinstance(model, Seq2Seq):
            raise UserError(f"only a Seq2Seq has an encoder and a decoder to export, not a {type(model).__name__}")
        if task is not None:
            check_pair_sizes("the model", model, task)
        super().__init__(model)
        if self.description is None and model.reader is None:
            raise UserError(
                f"a graph does not support the decoder {type(model.core).__name__}, which does not describe its step"
            )
        self.task, self.search = task, search or Search()

    def attentions(self) -> list[Attention]:
        """Return the attentions that project the source: one per layer, or the one after the core."""
        if self.model.reader is not None:
            return [self.model.reader.attention]
        return [layer.cross for layer in self.model.core.layers]

    def project(self, encoded: Tensor) -> dict[str, Tensor]:
        """Return the keys and values of an encoded source (B, J, D) by name."""
        named = {}
        for i, attention in enumerate(self.attentions()):
            named[f"source_keys.{i}"], named[f"source_values.{i}"] = attention.keys_values(encoded)
        return named

    def source(self, batch: int) -> dict[str, Tensor]:
        source = torch.zeros(batch, SOURCE_TOKENS, dtype=torch.int64, device=next(self.parameters()).device)
        return {"source": source, "source_mask": torch.ones_like(source, dtype=torch.bool)}

    def dynamic(self, name: str) -> dict[int, str]:
        if name in ("source", "source_mask"):
            return {0: "batch", 1: "source"}
        return {0: "batch", 2: "source"} if name.startswith("source_") else super().dynamic(name)

    def metadata(self) -> dict[str, str]:
        task = {} if self.task is None else {"task": json.dumps(pair_json(self.task, self.search))}
        return {**super().metadata(), **task}


class EncoderStep(SourceStep):
    """Encodes sources and projects them: `forward(source, source_mask)`. It has no state."""

    def __init__(self, model: Seq2Seq, task: PairTask | None = None, search: Search | None = None) -> None:
        super().__init__(model, task, search)
        self.names, self.growing = [], set()

    def arguments(self, batch: int) -> dict[str, Tensor]:
        return self.source(batch)

    def output_names(self) -> list[str]:
        return [f"source_{part}.{i}" for i in range(len(self.attentions())) for part in ("keys", "values")]

    def forward(self, source: Tensor, source_mask: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.encode_checked(source.masked_fill(~source_mask, 0), source_mask)
        return tuple(self.project(encoded).values())


class DecoderStep(SourceStep):
    """One decoding step: `forward(token, source_mask, *keys and values, *state)`."""

    def arguments(self, batch: int) -> dict[str, Tensor]:
        given = self.source(batch)
        encoded = next(self.parameters()).new_zeros(*given["source"].shape, self.model.core.width)
        with torch.no_grad():
            return {
                "token": given["source"][:, 0].clone(),
                "source_mask": given["source_mask"],
                **self.project(encoded),
            }

    def output_names(self) -> list[str]:
        return ["logits"]

    def forward(self, token: Tensor, source_mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        split = 2 * len(self.attentions())
        projected, state = tensors[:split], self.make_state(token.shape[0], tensors[split:])
        sources = [source_slots(*pair, source_mask) for pair in zip(projected[::2], projected[1::2])]
        x = self.model.embed(token[:, None], state.count[:, None])
        y, after = self.apply_core(x, state, sources)
        if self.model.reader is not None:
            y = self.model.reader.attend(y, sources[0])
        return (self.model.head(self.model.norm(y))[:, 0], *after)


def export_seq2seq_onnx(
    model: Seq2Seq, path: str | os.PathLike[str], task: PairTask | None = None, search: Search | None = None
) -> dict[str, dict[str, list[str]]]:
    """Write the folder with encoder.onnx and decoder.onnx. The metadata has the vocabularies of the task and, as the
    defaults of decoding, the search. Return the names of inputs and outputs by graph."""
    check_onnx()
    steps = {"encoder": EncoderStep(model, task, search), "decoder": DecoderStep(model, task, search)}
    write_output_folder(
        path, lambda folder: [write_onnx(step, folder / f"{name}.onnx") for name, step in steps.items()]
    )
    return {name: names_of(step) for name, step in steps.items()}


def export_seq2seq_torch(model: Seq2Seq, path: str | os.PathLike[str]) -> dict[str, dict[str, list[str]]]:
    """Write the folder with encoder.pt2 and decoder.pt2. Return the names of inputs and outputs by graph."""
    steps = {"encoder": EncoderStep(model), "decoder": DecoderStep(model)}
    write_output_folder(
        path, lambda folder: [write_program(step, folder / f"{name}.pt2") for name, step in steps.items()]
    )
    return {name: names_of(step) for name, step in steps.items()}
