"""Base class of tasks of pairs: a source is encoded, a target is generated. Translation and summarization are such
tasks.

A text is encoded as byte pairs and one end token, whose id is the vocabulary size. The target's end token also precedes
the target, as the decoder's first input. Letters: B pairs per batch, J source tokens, T target tokens.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from stairwell import text
from stairwell.data import parallel
from stairwell.data.cache import Array, cached, key_of
from stairwell.data.parallel import EncodedPairs, PairFiles
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE_INDEX, FamilyName, SavedTask, Split
from stairwell.tasks.batch_sources import check_position, check_streams
from stairwell.tasks.file_task import FileConfig, FileTask, cached_vocabulary
from stairwell.tasks.scores import TokenScore

ENCODE_BATCH = 1000  # texts encoded together


@dataclass(frozen=True)
class PairBatch:
    source: Tensor  # (B, J) int64, 0 where padded
    source_mask: Tensor  # (B, J) bool, False where padded
    tokens: Tensor  # (B, T) int64: the decoder's input
    targets: Tensor  # (B, T) int64, IGNORE_INDEX where nothing is scored
    part: int = 0  # index of this part, if a batch is split for gradient accumulation

    @property
    def terms(self) -> int:
        return int((self.targets != IGNORE_INDEX).sum())

    @property
    def size(self) -> int:
        """Return the number of target tokens, including end tokens but not padding."""
        return self.terms

    def parts(self, count: int) -> list[PairBatch]:
        """Split the pairs into at most `count` parts; a batch of few long pairs may have fewer pairs than that."""
        sources = zip(self.source.chunk(count), self.source_mask.chunk(count))
        targets = zip(self.tokens.chunk(count), self.targets.chunk(count))
        return [PairBatch(*source, *target, part) for part, (source, target) in enumerate(zip(sources, targets))]

    def to(self, device: torch.device | str) -> PairBatch:
        source, mask, tokens, targets = self.source, self.source_mask, self.tokens, self.targets
        return PairBatch(source.to(device), mask.to(device), tokens.to(device), targets.to(device), self.part)


def make_batch(pairs: Sequence[tuple[Array, Array]], end: int, scored: bool = True) -> PairBatch:
    """Return a padded batch of sources and targets with their end tokens; `end` is the target's."""
    B, J, T = len(pairs), max(len(source) for source, _ in pairs), max(len(target) for _, target in pairs)
    sources, mask = np.zeros((B, J), np.int64), np.zeros((B, J), bool)
    tokens, targets = np.full((B, T), end, np.int64), np.full((B, T), IGNORE_INDEX, np.int64)
    for b, (source, target) in enumerate(pairs):
        sources[b, : len(source)], mask[b, : len(source)] = source, True
        tokens[b, 1 : len(target)] = target[:-1]
        if scored:
            targets[b, : len(target)] = target
    tensor = torch.from_numpy
    return PairBatch(tensor(sources), tensor(mask), tensor(tokens), tensor(targets))


def buckets(lengths: Array, order: Array, max_tokens: int, max_pairs: int) -> list[Array]:
    """Return the pairs of `order` in batches of similar lengths, of at most `max_pairs` pairs and `max_tokens` tokens
    of source and of target, including padding. A longer pair is a batch of its own. lengths (pairs, 2)"""
    order = order[np.lexsort((lengths[order, 0], lengths[order, 1]))]
    batches, start, longest = [], 0, 0
    for i, length in enumerate(lengths[order].max(1).tolist()):
        longest = max(longest, length)
        if i > start and (i - start == max_pairs or longest * (i - start + 1) > max_tokens):
            batches.append(order[start:i])
            start, longest = i, length
    return [*batches, order[start:]] if start < len(order) else batches


class PairSource:
    """Endless batches of pairs of similar lengths. An epoch's batches and their order follow from the seed and the
    epoch number; each process takes its share of every batch."""

    def __init__(self, data: EncodedPairs, end: int, streams: range, batch: int, tokens: int, seed: int) -> None:
        check_streams(streams, batch)
        if not len(data):
            raise UserError("there are no complete pairs to train on")
        self.data, self.end, self.streams, self.batch = data, end, streams, batch
        self.tokens, self.seed = tokens, seed
        self._start_epoch(0)

    def _start_epoch(self, epoch: int) -> None:
        self.epoch, self.batches_read = epoch, 0
        lengths = self.data.lengths()
        rng = np.random.default_rng([self.seed, epoch])
        batches = buckets(lengths, rng.permutation(len(lengths)), self.tokens, self.batch)
        self.batches = [batches[i] for i in rng.permutation(len(batches))]

    def read(self, length: int) -> PairBatch:
        """Return the next batch. `length` is ignored, since pairs have their own lengths."""
        if self.batches_read == len(self.batches):
            self._start_epoch(self.epoch + 1)
        pairs = self.batches[self.batches_read]
        self.batches_read += 1
        first, last = (edge * len(pairs) // self.batch for edge in (self.streams.start, self.streams.stop))
        if first == last:  # fewer pairs than processes: every process needs a batch, but this one is not scored
            return make_batch([self.data.pair(pairs[0])], self.end, scored=False)
        return make_batch([self.data.pair(pair) for pair in pairs[first:last]], self.end)

    def change(self, **options: Any) -> None:
        raise UserError(f"cannot change {', '.join(options) or 'anything'} of pairs; leave --train.curriculum empty")

    def position(self) -> dict[str, Any]:
        return {"streams": list(self.streams), "epoch": self.epoch, "batches_read": self.batches_read}

    def seek(self, position: dict[str, Any]) -> None:
        check_position(position, len(self.streams))
        self._start_epoch(position["epoch"])
        self.batches_read = position["batches_read"]


@dataclass(frozen=True, eq=False)
class PairVocabulary:
    """The vocabularies of source and target; the same one for both if it is joint."""

    source: text.BPE
    target: text.BPE

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def by_name(self) -> dict[str, text.Vocabulary]:
        return {"joint": self.source} if self.joint else {"source": self.source, "target": self.target}

    @staticmethod
    def from_names(vocabularies: Mapping[str, Any]) -> PairVocabulary:
        joint = vocabularies.get("joint")
        return PairVocabulary(joint or vocabularies["source"], joint or vocabularies["target"])


@dataclass(frozen=True, kw_only=True)
class PairConfig(FileConfig):
    """What translation and summarization share."""

    source: str = "source"
    "Source: the suffix of its files, the name of a file, or a column of a table."
    target: str = "target"
    "Target: the suffix of its files, the name of a file, or a column of a table."
    test: str = ""
    "Prefix of the names of the test files, if there are several."
    lowercase: bool = False
    "Whether to lowercase source and target."
    vocabulary: int = 8000
    "Vocabulary size (byte pairs)."
    joint: bool = True
    "Whether source and target share one vocabulary."
    max_source_length: int = 256
    "Maximum number of source tokens; longer sources are left out in training and truncated in use."
    max_target_length: int = 128
    "Maximum number of target tokens; longer targets are left out in training."
    primary_metric: str = "loss"
    "Metric that the best model is chosen by."
    decode_examples: int = 200
    "Number of validation sources to decode greedily at every validation; 0: none."

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocabulary", "max_source_length", "max_target_length"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.vocabulary < 256:
            raise UserError(f"vocabulary must be at least 256, the number of bytes, not {self.vocabulary}")
        if self.decode_examples < 0:
            raise UserError(f"decode_examples must be 0 or more, not {self.decode_examples}")
        if self.primary_metric != "loss" and not self.decode_examples:
            raise UserError(f"the primary metric {self.primary_metric} requires --task.decode_examples, such as 200")


class PairTask(FileTask[PairFiles, Any]):
    config: PairConfig
    family: FamilyName = "pairs"
    path_options: ClassVar[tuple[str, ...]] = ("path", "source", "target", "test")
    verb: ClassVar[str]  # what the model does, in messages
    search_defaults: ClassVar[dict[str, Any]] = {}  # decoding options that differ from the usual ones
    metric: ClassVar[str]  # the text metric that may be the primary metric

    @classmethod
    def from_saved(cls, config: Any, saved: SavedTask) -> Self:
        return cls(config, PairVocabulary.from_names(saved.vocabularies), saved)  # type: ignore[arg-type]

    @abstractmethod
    def text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the metrics of texts that are computed at every validation."""

    @abstractmethod
    def detailed_text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        """Return all metrics of texts, and the signatures of their computation."""

    def adapt_vocabulary(self, vocabulary: Any) -> Any:
        return vocabulary

    @property
    def vocabularies(self) -> Mapping[str, text.Vocabulary]:
        return self.vocabulary.by_name()

    @property
    def joint(self) -> bool:
        return bool(self.vocabulary.joint)

    @property
    def inputs(self) -> int:
        return int(self.vocabulary.source.size) + 1

    @property
    def outputs(self) -> int:
        return int(self.vocabulary.target.size) + 1

    @property
    def source_end(self) -> int:
        """The end token of a source."""
        return self.inputs - 1

    @property
    def end(self) -> int:
        """The end token of a target, which also precedes it."""
        return self.outputs - 1

    @property
    def primary_metric(self) -> str:
        return self.config.primary_metric

    @property
    def higher_is_better(self) -> bool:
        return self.primary_metric != "loss"

    def score(self) -> TokenScore:
        return TokenScore()

    def locate_splits(self) -> dict[str, PairFiles]:
        config = self.config
        if not config.path and parallel.is_file_name(config.target) and not parallel.is_file_name(config.source):
            raise UserError(
                f"--task.source {config.source!r} is not the name of a file, but --task.target {config.target} is; "
                "name two files, or give --task.path"
            )
        if not config.path and not parallel.is_file_name(config.source):
            raise UserError(
                f"name the pairs to {self.verb}: two files, --task.source FILE --task.target FILE, or a folder, "
                "--task.path FOLDER --task.source de --task.target en"
            )
        if self._evaluation_only:
            return parallel.find_evaluation_splits(config.path, config.source, config.target)
        return parallel.find_splits(config.path, config.source, config.target, config.test)

    def digest(self, location: PairFiles) -> str:
        return location.digest()

    def with_data(self, path: str) -> Self:
        # An absolute file name would override the folder of the other data.
        source, target = (
            Path(name).name if Path(name).is_absolute() else name for name in (self.config.source, self.config.target)
        )
        config = dataclasses.replace(self.config, path=path, source=source, target=target)
        return type(self)(config, self.vocabulary, evaluation_only=True)

    def normalize(self, line: str) -> str:
        """Return the text to encode, with single spaces and a leading one, so that the first word is encoded like any
        other."""
        line = " ".join(line.split())
        return " " + (line.lower() if self.config.lowercase else line) if line else ""

    def normalize_source(self, line: str) -> str:
        return self.normalize(line)

    def build_vocabulary(self) -> Any:
        sides = ["joint"] if self.config.joint else ["source", "target"]
        return PairVocabulary.from_names({side: self._build_bpe(side) for side in sides})

    def _build_bpe(self, side: str) -> text.BPE:
        config = self.config
        options = (config.lowercase, config.vocabulary, self._source_options())
        key = key_of("pairs", side, *options, self.digests["train"])
        return cached_vocabulary(key, text.BPE, lambda: text.BPE.build(self._texts(side), config.vocabulary))

    def _source_options(self) -> list[Any]:
        """Return the options that change how a source is normalized."""
        return []

    def _texts(self, side: str) -> Iterator[str]:
        for source, target in self.locations["train"].pairs():
            if side != "target":
                yield self.normalize_source(source)
            if side != "source":
                yield self.normalize(target)

    def encode_split(self, split: str) -> EncodedPairs:
        config = self.config
        dumps = [vocabulary.dumps() for vocabulary in self.vocabularies.values()]
        key = key_of("pairs", dumps, config.lowercase, self._source_options(), self.digests[split])
        ids, starts = cached(key, max(self.inputs, self.outputs), lambda: self._encode(split))
        return EncodedPairs.build(ids, starts, config.max_source_length, config.max_target_length)

    def _encode(self, split: str) -> Iterator[tuple[Array, bool]]:
        vocabulary = self.vocabulary
        for pairs in in_groups(self.locations[split].pairs(), ENCODE_BATCH):
            sources = vocabulary.source.encode_each([self.normalize_source(source) for source, _ in pairs])
            targets = vocabulary.target.encode_each([self.normalize(target) for _, target in pairs])
            for source, target in zip(sources, targets, strict=True):
                yield np.append(source, self.source_end), True
                yield np.append(target, self.end), True

    def encode_sources(self, texts: Sequence[str]) -> tuple[list[Array], int]:
        """Return the token ids of sources with their end tokens, and the number of sources that were truncated."""
        max_length = self.config.max_source_length
        sources = self.vocabulary.source.encode_each([self.normalize_source(line) for line in texts])
        truncated = sum(len(source) > max_length for source in sources)
        return [np.append(source[:max_length], self.source_end) for source in sources], truncated

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return token ids as one line of text: generated line feeds become spaces."""
        return " ".join(self.vocabulary.target.decode([i for i in ids if i != self.end]).split())

    def batch_source(self, streams: range, batch: int, seed: int, tokens: int = 4096) -> PairSource:  # type: ignore[override]
        if not len(self.split_data("valid")):
            raise UserError(f"{self.data_name} has no complete pairs for validation; add pairs, or a validation set")
        data = self.split_data("train")
        longest = int(data.lengths().max(initial=0))
        if longest > tokens:
            raise UserError(
                f"--train.batch_tokens {tokens:,}: the longest training pair has {longest:,} tokens including its end; "
                "raise it, or lower --task.max_source_length and --task.max_target_length to leave long pairs out"
            )
        return PairSource(data, self.end, streams, batch, tokens, seed)

    def batch_shapes(self, batch: int, tokens: int) -> list[tuple[int, int]]:
        """Return the pairs and target tokens, including padding, of every batch of an epoch, up to the order of pairs
        of equal length."""
        lengths = self.split_data("train").lengths()
        batches = buckets(lengths, np.arange(len(lengths)), tokens, batch)
        return [(len(pairs), int(lengths[pairs, 1].max())) for pairs in batches]

    def batches(self, split: Split, batch: int, segment: int) -> Iterator[PairBatch]:  # type: ignore[override]
        """Yield every complete pair of a split once, at most `batch` pairs and `batch * segment` tokens at a time."""
        data = self.split_data(split)
        for pairs in buckets(data.lengths(), np.arange(len(data)), batch * segment, batch):
            yield make_batch([data.pair(pair) for pair in pairs], self.end)

    def texts(self, split: Split) -> Iterator[tuple[str, str]]:
        """Return all pairs of a split as they are in the files, including empty and too long ones."""
        if split not in self.locations:
            raise self.missing_split(split)
        return self.locations[split].pairs()

    def sources_and_targets(self, split: Split, limit: int = 0) -> tuple[list[str], list[str]]:
        """Return the sources and the targets of a split, or of its first `limit` pairs."""
        pairs = list(islice(self.texts(split), min(limit, sys.maxsize) or None))
        if not pairs:
            raise UserError(f"the {split} split of {self.data_name} has no pairs")
        return [source for source, _ in pairs], [target for _, target in pairs]

    @property
    def data_name(self) -> str:
        return self.config.path or f"the pair of {self.config.source} and {self.config.target}"

    def describe_data(self) -> str:
        config = self.config
        sizes = ", ".join(f"{split} {len(data):,}" for split, data in self.splits.items())
        vocabulary = f"{self.inputs:,}" if self.joint else f"{self.inputs:,} and {self.outputs:,}"
        folder = f" ({name})" if (name := Path(config.path).name) else ""
        task = f"{self.verb} {config.source} to {config.target}{folder}"
        return f"{task}: {sizes} pairs, vocabulary size {vocabulary}{self.describe_skipped()}"

    def describe_skipped(self) -> str:
        """Return how many training pairs are skipped or unpaired; empty if none are."""
        if "train" not in self.splits:
            return ""
        reasons = [f"{count:,} {reason}" for reason, count in self.splits["train"].skipped.items() if count]
        skipped = f"; left out of train: {', '.join(reasons)}" if reasons else ""
        unpaired = self.locations["train"].unpaired()
        return f"{skipped}; {unpaired}" if unpaired else skipped


def in_groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group
