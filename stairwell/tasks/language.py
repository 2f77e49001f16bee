"""Language modeling: the next token of any text, as bytes, characters, words or byte pairs.

A split is one long sequence of tokens; the target of a token is the next one. Where documents are marked, each begins
anew, and the first token of a document is never a target. `data/splits.py` says how files fall into train, valid and
test; the vocabulary is built from train alone. The episodic variant (Ju et al., arXiv 2106.04279, table 8) cuts
documents into episodes of one length.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from stairwell import configs, text
from stairwell.data import splits, text_files
from stairwell.data.cache import Array, cached, key_of, writable_cache
from stairwell.data.packed import Encoded, Episodic, Packed
from stairwell.data.text_files import Parts
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.file_task import FileTask

Unit = Literal["bytes", "characters", "words", "bpe"]
Documents = Literal["files", "lines", "none"]
ADVICE = "unit=bytes takes any file"


@dataclass(frozen=True, kw_only=True)
class Config(configs.Config):
    path: str = splits.STDLIB
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
        super().__post_init__()
        if self.separated and self.unit != "characters":
            raise UserError(f"separated goes with unit=characters, not with unit={self.unit}")
        if self.vocabulary < 0:
            raise UserError(f"vocabulary must be 0 or more, not {self.vocabulary}")
        if self.vocabulary and self.unit not in ("words", "bpe"):
            raise UserError(f"vocabulary goes with unit=words or unit=bpe, not with unit={self.unit}")
        if self.episode < 0 or self.episode == 1:
            raise UserError(f"episode must be 0 or at least 2 tokens, not {self.episode}")


class Language(FileTask[Parts, Encoded]):
    higher_is_better = False
    symbols: ClassVar[str] = "text"
    paths: ClassVar[tuple[str, ...]] = ("path", "prefix", "files")
    config: Config

    def fit(self, vocabulary: text.Vocabulary) -> text.Vocabulary:
        wanted = "separated" if self.config.separated else self.config.unit
        if vocabulary.kind != wanted:
            raise UserError(f"the vocabulary is one of {vocabulary.kind}, but the task reads {wanted}")
        if isinstance(vocabulary, text.Words):
            return dataclasses.replace(vocabulary, end_of_line=self.config.end_of_line)
        return vocabulary

    @property
    def outputs(self) -> int:
        return self.inputs

    @property
    def primary_metric(self) -> str:
        return _headline(self.config.unit)

    def score(self) -> LanguageScore:
        return LanguageScore(self.config.unit, self.vocabulary)

    def with_data(self, path: str, prefix: str = "") -> Self:
        config = dataclasses.replace(self.config, path=path, prefix=prefix)
        return type(self)(config, self.vocabulary, foreign=True)

    def find(self) -> splits.Splits:
        config = self.config
        if self._foreign:
            return splits.find_all(config.path, config.prefix, config.files)
        return splits.find(config.path, config.prefix, config.files, whole_characters=config.unit != "bytes")

    def digest(self, place: Parts) -> str:
        return text_files.digest(place)

    def build(self) -> text.Vocabulary:
        """From the training text, or from the cache if it was built before."""
        config = self.config
        if config.unit == "bytes":
            return text.Bytes()
        name = key_of("vocabulary", config.unit, config.separated, config.vocabulary, self.digests["train"])
        path = writable_cache() / f"{name}.vocabulary.json"
        try:
            return text.load(path)
        except (OSError, ValueError):
            pass  # not there yet, or damaged
        vocabulary = _new_vocabulary(config, text_files.texts(self.places["train"], ADVICE))
        write_text(path, vocabulary.dumps())
        return vocabulary

    def encode(self, split: str) -> Encoded:
        config, vocabulary, parts = self.config, self.vocabulary, self.places[split]
        by_line = config.documents == "lines"
        key = key_of("ids", vocabulary.dumps(), by_line, self.digests[split])
        ids, begins = cached(key, vocabulary.size, lambda: _ids(vocabulary, split, parts, by_line))
        # A single document needs no mark, and can be read in rows.
        data = Packed(ids, begins if len(begins) > 1 and config.documents != "none" else None)
        if len(data) < 2:
            raise UserError(
                f"the {split} split of {config.path} is too small: {len(data)} tokens, and it needs at least 2"
            )
        encoded = Episodic(data, config.episode) if config.episode else data
        if len(encoded) == 0:
            raise UserError(f"no document of the {split} split of {config.path} has more than one token")
        return encoded

    def tell(self) -> str:
        config = self.config
        name = config.path if config.path == splits.STDLIB else Path(config.path).name
        length = config.episode or 1
        sizes = ", ".join(f"{split} {len(data) // length:,}" for split, data in self.splits.items())
        unit = f"episodes of {length} tokens" if config.episode else "tokens"
        return f"language modeling on {name} by {config.unit}: {sizes} {unit}, {self.inputs:,} symbols, finite"


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


def _new_vocabulary(config: Config, texts: Iterator[str]) -> text.Vocabulary:
    if config.unit == "bpe":
        return text.BPE.build(texts, config.vocabulary or text.BPE_SIZE)
    if config.unit == "words":
        return text.Words.build(texts, config.end_of_line, config.vocabulary)
    return text.Separated.build(texts) if config.separated else text.Characters.build(texts)


def _ids(vocabulary: text.Vocabulary, split: str, parts: Parts, by_line: bool) -> Iterator[tuple[Array, bool]]:
    """The ids of every part, stretch by stretch, and whether a document begins there."""
    for part in parts:
        start = True
        for piece in _contents(vocabulary, part):
            for stretch in _lines(piece) if by_line else [piece]:
                try:
                    yield vocabulary.encode(stretch), start
                except text.UnknownSymbolError as error:
                    raise UserError(
                        f"{part.file} ({split} split): {error}; train on text that has it, "
                        "or use unit=bytes or unit=bpe, which read any text"
                    ) from error
                # A piece of a very long line may end before the line does.
                start = by_line and stretch[-1:] in ("\n", b"\n")


def _contents(vocabulary: text.Vocabulary, part: text_files.Part) -> Iterator[str] | Iterator[bytes]:
    """Pieces of text; bytes as they are, for these need not be text."""
    if isinstance(vocabulary, text.Bytes):
        return (data for _, data in text_files.pieces(part))
    return text_files.texts([part], ADVICE)


def _lines(piece: str | bytes) -> list[str] | list[bytes]:
    """Lines with their ends. Unlike `splitlines`, only a line feed ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", piece) if isinstance(piece, str) else re.findall(rb"[^\n]*\n|[^\n]+", piece)
