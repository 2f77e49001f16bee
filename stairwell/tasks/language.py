"""Language modeling: the next token of any text, as bytes, characters, words or byte pairs.

A split is one long sequence of tokens; the target of a token is the next token. The state is reset at each document,
and the first token of a document is not a target. `data/splits.py` defines train, valid and test; the vocabulary is
built from train only. The episodic variant (Ju et al., arXiv 2106.04279, table 8) splits documents into episodes of one
length.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from stairwell import text
from stairwell.data import splits, text_files
from stairwell.data.cache import Array, cached, key_of
from stairwell.data.packed import Encoded, Episodic, Packed
from stairwell.data.text_files import FileSlice, FileSlices
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.file_task import FileConfig, FileTask, cached_vocabulary

Unit = Literal["bytes", "characters", "words", "bpe"]
Documents = Literal["files", "lines", "none"]
ADVICE = "unit=bytes reads any file"


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(FileConfig):
    path: str = splits.STDLIB
    "Text file, folder, or `stdlib`: the sources of the running Python's standard library."
    unit: Unit = "bytes"
    "Unit of a token: bytes, characters, words or bpe (byte pairs)."
    separated: bool = False
    "Whether characters are separated by spaces, as in character-level Penn Treebank; a line end is a token."
    end_of_line: bool = True
    "Whether a line end is a token (words only)."
    vocabulary: int = 0
    "Vocabulary size. words: the most frequent ones, 0 for all; bpe: 0 for 8,000."
    documents: Documents = "files"
    "Where the state is reset: at every file of a folder, at every line, or nowhere (none)."
    episode: int = 0
    "Length of episodes that documents are split into, padded and each from the initial state; 0: one packed stream."
    prefix: str = ""
    "Corpus to use in a folder of several: what precedes `train` in its file name."
    files: str = "*"
    "Glob pattern of the files of a folder, such as *.txt."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.separated and self.unit != "characters":
            raise UserError(f"separated requires unit=characters, not unit={self.unit}")
        if self.vocabulary < 0:
            raise UserError(f"vocabulary must be 0 or more, not {self.vocabulary}")
        if self.vocabulary and self.unit not in ("words", "bpe"):
            raise UserError(f"vocabulary requires unit=words or unit=bpe, not unit={self.unit}")
        if self.episode < 0 or self.episode == 1:
            raise UserError(f"episode must be 0 or at least 2 tokens, not {self.episode}")


class Language(FileTask[FileSlices, Encoded]):
    config: LanguageConfig
    config_type = LanguageConfig
    higher_is_better = False
    vocabulary_name: ClassVar[str] = "text"
    path_options: ClassVar[tuple[str, ...]] = ("path", "prefix", "files")

    def adapt_vocabulary(self, vocabulary: text.Vocabulary) -> text.Vocabulary:
        expected = "separated" if self.config.separated else self.config.unit
        if vocabulary.type_name != expected:
            raise UserError(f"the vocabulary has the type '{vocabulary.type_name}', but the task needs '{expected}'")
        return vocabulary.with_end_of_line(self.config.end_of_line)

    @property
    def outputs(self) -> int:
        return self.inputs

    @property
    def primary_metric(self) -> str:
        return _primary_metric(self.config.unit)

    def score(self) -> LanguageScore:
        return LanguageScore(self.config.unit, self.vocabulary)

    def with_data(self, path: str, prefix: str = "") -> Self:
        config = dataclasses.replace(self.config, path=path, prefix=prefix)
        return type(self)(config, self.vocabulary, evaluation_only=True)

    def locate_splits(self) -> splits.Splits:
        config = self.config
        if self._evaluation_only:
            return splits.find_evaluation_splits(config.path, config.prefix, config.files)
        return splits.find_splits(config.path, config.prefix, config.files, whole_characters=config.unit != "bytes")

    def digest(self, location: FileSlices) -> str:
        return text_files.digest(location)

    def build_vocabulary(self) -> text.Vocabulary:
        config = self.config
        if config.unit == "bytes":
            return text.Bytes()
        key = key_of("vocabulary", config.unit, config.separated, config.vocabulary, self.digests["train"])
        texts = text_files.read_texts(self.locations["train"], ADVICE)
        return cached_vocabulary(key, text.Vocabulary, lambda: _new_vocabulary(config, texts))  # type: ignore[type-abstract]

    def encode_split(self, split: str) -> Encoded:
        config, vocabulary, parts = self.config, self.vocabulary, self.locations[split]
        by_line = config.documents == "lines"
        key = key_of("ids", vocabulary.dumps(), by_line, self.digests[split])
        ids, starts = cached(key, vocabulary.size, lambda: _encode(vocabulary, split, parts, by_line))
        # A single document needs no reset and can be split into streams anywhere.
        data = Packed(ids, starts if len(starts) > 1 and config.documents != "none" else None)
        if len(data) < 2:
            raise UserError(
                f"the {split} split of {config.path} is too small: {len(data)} tokens, and it needs at least 2"
            )
        encoded = Episodic(data, config.episode) if config.episode else data
        if len(encoded) == 0:
            raise UserError(f"no document of the {split} split of {config.path} has more than one token")
        return encoded

    def describe_data(self) -> str:
        config = self.config
        name = config.path if config.path == splits.STDLIB else Path(os.path.abspath(config.path)).name
        length = config.episode or 1
        sizes = ", ".join(f"{split} {len(data) // length:,}" for split, data in self.splits.items())
        unit = f"episodes of {length} tokens" if config.episode else "tokens"
        size = f"vocabulary size {self.inputs:,}"
        return f"language modeling on {name} by {config.unit}: {sizes} {unit}, {size}"


class LanguageScore:
    """Accumulates `loss` (nats per token) and `scored`; for bytes and characters `bits_per_character`, for words and
    byte pairs `perplexity`, for byte pairs also `bits_per_byte` of the text of the scored tokens."""

    def __init__(self, unit: Unit, vocabulary: text.Vocabulary) -> None:
        self.unit = unit
        self.loss = 0.0
        self.scored = 0
        self.bytes = 0
        lengths = vocabulary.byte_lengths
        self._byte_lengths = None if lengths is None else torch.from_numpy(lengths)

    def add(self, batch: TokenBatch, nll: Tensor, predictions: Tensor) -> None:
        targets = batch.targets.cpu()
        scored = targets != IGNORE_INDEX
        self.loss += float(nll.cpu()[scored].sum(dtype=torch.float64))
        self.scored += int(scored.sum())
        if self._byte_lengths is not None:
            self.bytes += int(self._byte_lengths[targets[scored]].sum())

    def result(self) -> dict[str, float]:
        loss = self.loss / self.scored if self.scored else math.nan
        result = {"loss": loss, "scored": self.scored}
        if _primary_metric(self.unit) == "bits_per_character":
            result["bits_per_character"] = loss / math.log(2)
        else:
            # The loss of a diverged model would overflow.
            result["perplexity"] = math.inf if loss > 700 else math.exp(loss)
        if self._byte_lengths is not None:
            result["bits_per_byte"] = self.loss / math.log(2) / self.bytes if self.bytes else math.nan
        return result


def _primary_metric(unit: Unit) -> str:
    return "bits_per_character" if unit in ("bytes", "characters") else "perplexity"


def _new_vocabulary(config: LanguageConfig, texts: Iterator[str]) -> text.Vocabulary:
    if config.unit == "bpe":
        return text.BPE.build(texts, config.vocabulary or text.BPE_SIZE)
    if config.unit == "words":
        return text.Words.build(texts, config.end_of_line, config.vocabulary)
    return text.Separated.build(texts) if config.separated else text.Characters.build(texts)


def _encode(vocabulary: text.Vocabulary, split: str, parts: FileSlices, by_line: bool) -> Iterator[tuple[Array, bool]]:
    """Yield the token ids of all files in blocks or lines, and whether a document starts there."""
    for part in parts:
        start = True
        for block in _read(vocabulary, part):
            for document in _lines(block) if by_line else [block]:
                try:
                    yield vocabulary.encode(document), start
                except text.UnknownTokenError as error:
                    raise UserError(
                        f"{part.file} ({split} split): {error}; add it to the training text, "
                        "or use unit=bytes or unit=bpe, which encode any text"
                    ) from error
                # A block of a very long line may end before the line does.
                start = by_line and document[-1:] in ("\n", b"\n")


def _read(vocabulary: text.Vocabulary, part: FileSlice) -> Iterator[str] | Iterator[bytes]:
    """Return blocks of text, or of bytes if the vocabulary does not require text."""
    if vocabulary.reads_bytes:
        return (data for _, data in text_files.text_blocks(part))
    return text_files.read_texts([part], ADVICE)


def _lines(block: str | bytes) -> list[str] | list[bytes]:
    """Return lines with their ends. Unlike `splitlines`, only a line feed ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", block) if isinstance(block, str) else re.findall(rb"[^\n]*\n|[^\n]+", block)
