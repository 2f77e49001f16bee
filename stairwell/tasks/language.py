"""Language modelling: the next token of any text, as bytes, characters, words or byte pairs.

A split is one long sequence of tokens; the target of a token is the next one. Where documents are marked, each begins
anew, and the first token of a document is never a target. `corpus.py` says how files fall into train, valid and test;
the vocabulary is built from train alone. The episodic variant (Ju et al., arXiv 2106.04279, table 8) cuts documents
into episodes of one length.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from stairwell import text
from stairwell.tasks import corpus
from stairwell.tasks.base import IGNORE, Batch, Split
from stairwell.tasks.cache import Array, cached, key_of, writable_cache
from stairwell.tasks.encoded import Encoded, Episodic, Packed, split_batches, training_stream
from stairwell.tasks.streams import FiniteStream

Unit = Literal["bytes", "characters", "words", "bpe"]
Documents = Literal["files", "lines", "none"]
ADVICE = "unit=bytes takes any file"
Parts = tuple[corpus.Part, ...]


@dataclass(frozen=True, kw_only=True)
class Config:
    path: str = corpus.STDLIB
    "a text file, a folder, or `stdlib`: the sources of the running Python's standard library"
    unit: Unit = "bytes"
    "what a token is: bytes, characters, words or bpe (byte pairs)"
    separated: bool = False
    "the characters are separated by spaces, as in character-level Penn Treebank; a line end is a symbol of its own"
    end_of_line: bool = True
    "words: a line end is a symbol of its own"
    vocabulary: int = 0
    "words: keep that many symbols, the most frequent ones, 0 for all; bpe: learn that many, 0 for 8,000"
    documents: Documents = "files"
    "what begins anew in the packed stream: every file of a folder, every line, or nothing (none)"
    episode: int = 0
    "cut documents into episodes of that many tokens, padded and each with a fresh start; 0 for one packed stream"
    prefix: str = ""
    "which corpus of a folder that holds several: what stands before `train` in its file name"
    files: str = "*"
    "which files of a folder to read, such as *.txt"

    def __post_init__(self) -> None:
        for name, choices in (("unit", get_args(Unit)), ("documents", get_args(Documents))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if self.separated and self.unit != "characters":
            raise ValueError(f"separated goes with unit=characters, not with unit={self.unit}")
        if self.vocabulary < 0:
            raise ValueError(f"vocabulary must be 0 or more, not {self.vocabulary}")
        if self.vocabulary and self.unit not in ("words", "bpe"):
            raise ValueError(f"vocabulary goes with unit=words or unit=bpe, not with unit={self.unit}")
        if self.episode < 0 or self.episode == 1:
            raise ValueError(f"episode must be 0 or at least 2 tokens, not {self.episode}")


class Language:
    """The task. `vocabulary`, if given, takes the place of one built from the training split: to go on with a trained
    model, whatever has become of its data."""

    higher_is_better = False

    def __init__(self, config: Config, vocabulary: text.Vocabulary | None = None) -> None:
        splits = corpus.find(config.path, config.prefix, config.files, whole_characters=config.unit != "bytes")
        if vocabulary is None:
            vocabulary = _build_vocabulary(config, splits["train"])
        wanted = "separated" if config.separated else config.unit
        if vocabulary.kind != wanted:
            raise ValueError(f"the vocabulary is one of {vocabulary.kind}, but the task reads {wanted}")
        self._prepare(config, vocabulary, splits)

    def on(self, path: str, prefix: str = "") -> Self:
        """This task with its vocabulary on other text, for evaluation only: a folder with valid and test files gives
        these, anything else is read as a whole."""
        other = object.__new__(type(self))
        config = dataclasses.replace(self.config, path=path, prefix=prefix)
        other._prepare(config, self.vocabulary, corpus.find_all(path, prefix, config.files))
        return other

    def _prepare(self, config: Config, vocabulary: text.Vocabulary, splits: corpus.Splits) -> None:
        if isinstance(vocabulary, text.Words):
            vocabulary = dataclasses.replace(vocabulary, end_of_line=config.end_of_line)
        self.config = config
        self.vocabulary = vocabulary
        self.inputs = self.outputs = vocabulary.size
        self.headline = _headline(config.unit)
        # All splits are encoded before any training, so that a text that cannot be read is found out now.
        self.splits = {split: _encode(config, vocabulary, split, parts) for split, parts in splits.items()}

    def stream(self, rows: range, batch: int, seed: int) -> FiniteStream:
        """Row r of the batch begins r/batch of the way into the training split; nothing depends on the seed."""
        return training_stream(self._split("train"), rows, batch)

    def batches(self, split: Split, rows: int, segment: int) -> Iterator[Batch]:
        """Every token of the split once, and every target once: all but the very first token and those that start. Rows
        are cut at document starts where there are enough of them (see `split_batches`)."""
        return split_batches(self._split(split), rows, segment)

    def score(self) -> LanguageScore:
        return LanguageScore(self.config.unit, self.vocabulary)

    def describe(self) -> str:
        config = self.config
        name = config.path if config.path == corpus.STDLIB else Path(config.path).name
        length = config.episode or 1
        sizes = ", ".join(f"{split} {len(data) // length:,}" for split, data in self.splits.items())
        unit = f"episodes of {length} tokens" if config.episode else "tokens"
        return f"language modelling on {name} by {config.unit}: {sizes} {unit}, {self.inputs:,} symbols, finite"

    def _split(self, split: str) -> Encoded:
        if split not in self.splits:
            raise ValueError(f"{self.config.path} has no {split} split; it has {' and '.join(self.splits)}")
        return self.splits[split]


class LanguageScore:
    """`loss` (nats per token) and `scored`; for bytes and characters `bits_per_character`, for words and byte pairs
    `perplexity`, for byte pairs also `bits_per_byte` of the text that the scored tokens stand for."""

    def __init__(self, unit: Unit, vocabulary: text.Vocabulary) -> None:
        self.unit = unit
        self.loss = 0.0
        self.scored = 0
        self.bytes = 0
        self._lengths = torch.from_numpy(vocabulary.lengths) if isinstance(vocabulary, text.BPE) else None

    def add(self, batch: Batch, nll: Tensor, predictions: Tensor) -> None:
        targets = batch.targets.cpu()
        scored = targets != IGNORE
        self.loss += float(nll.cpu()[scored].sum(dtype=torch.float64))
        self.scored += int(scored.sum())
        if self._lengths is not None:
            self.bytes += int(self._lengths[targets[scored]].sum())

    def result(self) -> dict[str, float]:
        loss = self.loss / self.scored if self.scored else math.nan
        result = {"loss": loss, "scored": self.scored}
        if _headline(self.unit) == "bits_per_character":
            result["bits_per_character"] = loss / math.log(2)
        else:
            # A model that has gone astray may have a loss that no float can raise e to.
            result["perplexity"] = math.inf if loss > 700 else math.exp(loss)
        if self._lengths is not None:
            result["bits_per_byte"] = self.loss / math.log(2) / self.bytes if self.bytes else math.nan
        return result


def _headline(unit: Unit) -> str:
    return "bits_per_character" if unit in ("bytes", "characters") else "perplexity"


def _build_vocabulary(config: Config, parts: Parts) -> text.Vocabulary:
    """From the training text, or from the cache if it was built before."""
    if config.unit == "bytes":
        return text.Bytes()
    name = key_of("vocabulary", config.unit, config.separated, config.vocabulary, corpus.digest(parts))
    path = writable_cache() / f"{name}.vocabulary.json"
    try:
        return text.load(path)
    except (OSError, ValueError):
        pass  # not there yet, or damaged
    vocabulary = _new_vocabulary(config, corpus.texts(parts, ADVICE))
    vocabulary.save(path)
    return vocabulary


def _new_vocabulary(config: Config, texts: Iterator[str]) -> text.Vocabulary:
    if config.unit == "bpe":
        return text.BPE.build(texts, config.vocabulary or text.BPE_SIZE)
    if config.unit == "words":
        return text.Words.build(texts, config.end_of_line, config.vocabulary)
    return text.Separated.build(texts) if config.separated else text.Characters.build(texts)


def _encode(config: Config, vocabulary: text.Vocabulary, split: str, parts: Parts) -> Encoded:
    by_line = config.documents == "lines"
    key = key_of("ids", vocabulary.dumps(), by_line, corpus.digest(parts))
    ids, begins = cached(key, vocabulary.size, lambda: _ids(vocabulary, split, parts, by_line))
    # A single document needs no mark, and can be read in rows.
    data = Packed(ids, begins if len(begins) > 1 and config.documents != "none" else None)
    if len(data) < 2:
        raise ValueError(
            f"the {split} split of {config.path} is too small: {len(data)} tokens, and it needs at least 2"
        )
    encoded = Episodic(data, config.episode) if config.episode else data
    if len(encoded) == 0:
        raise ValueError(f"no document of the {split} split of {config.path} has more than one token")
    return encoded


def _ids(vocabulary: text.Vocabulary, split: str, parts: Parts, by_line: bool) -> Iterator[tuple[Array, bool]]:
    """The ids of every part, stretch by stretch, and whether a document begins there."""
    for part in parts:
        start = True
        for piece in _contents(vocabulary, part):
            for stretch in _lines(piece) if by_line else [piece]:
                try:
                    yield vocabulary.encode(stretch), start
                except text.UnknownSymbolError as error:
                    raise ValueError(
                        f"{part.file} ({split} split): {error}; train on text that has it, "
                        "or use unit=bytes or unit=bpe, which read any text"
                    ) from error
                # A piece of a very long line may end before the line does.
                start = by_line and stretch[-1:] in ("\n", b"\n")


def _contents(vocabulary: text.Vocabulary, part: corpus.Part) -> Iterator[str] | Iterator[bytes]:
    """Pieces of text; bytes as they are, for these need not be text."""
    if isinstance(vocabulary, text.Bytes):
        return (data for _, data in corpus.pieces(part))
    return corpus.texts([part], ADVICE)


def _lines(piece: str | bytes) -> list[str] | list[bytes]:
    """Lines with their ends. Unlike `splitlines`, only a line feed ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", piece) if isinstance(piece, str) else re.findall(rb"[^\n]*\n|[^\n]+", piece)
