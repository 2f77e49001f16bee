"""What tasks of pairs share: a source is read, a target is written. Translation and summarization are such.

A text becomes byte pairs and one end symbol, the number after the vocabulary's last. The target's end also stands in
front of it: it is what a decoder reads first. Letters: B pairs of a batch, J source tokens, T target tokens.
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
from stairwell.data.cache import Array, cached, key_of, writable_cache
from stairwell.data.parallel import PairFiles, Pairs
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.tasks.base import IGNORE, Kind, Known, Split
from stairwell.tasks.batch_sources import check_position, check_rows
from stairwell.tasks.file_task import FileTask
from stairwell.tasks.scores import TokenScore

AT_ONCE = 1000  # texts that are encoded together


@dataclass(frozen=True)
class PairBatch:
    source: Tensor  # (B, J) int64, 0 where it is not there
    source_mask: Tensor  # (B, J) bool, true where the source is there
    tokens: Tensor  # (B, T) int64: what the decoder reads
    targets: Tensor  # (B, T) int64: what it should say, IGNORE where nothing is scored
    part: int = 0  # which part of an update's pairs this is, where they are taken through in several

    @property
    def terms(self) -> int:
        return int((self.targets != IGNORE).sum())

    @property
    def size(self) -> int:
        """Target tokens, the end included; padding is not counted."""
        return self.terms

    def parts(self, count: int) -> list[PairBatch]:
        """At most `count` parts: a batch of few long pairs may have fewer pairs than that."""
        sources = zip(self.source.chunk(count), self.source_mask.chunk(count))
        targets = zip(self.tokens.chunk(count), self.targets.chunk(count))
        return [PairBatch(*source, *target, part) for part, (source, target) in enumerate(zip(sources, targets))]

    def to(self, device: torch.device | str) -> PairBatch:
        source, mask, tokens, targets = self.source, self.source_mask, self.tokens, self.targets
        return PairBatch(source.to(device), mask.to(device), tokens.to(device), targets.to(device), self.part)


def make_batch(pairs: Sequence[tuple[Array, Array]], end: int, scored: bool = True) -> PairBatch:
    """Pairs of source and target with their ends, padded; `end` is the target's."""
    B, J, T = len(pairs), max(len(source) for source, _ in pairs), max(len(target) for _, target in pairs)
    source, mask = np.zeros((B, J), np.int64), np.zeros((B, J), bool)
    tokens, targets = np.full((B, T), end, np.int64), np.full((B, T), IGNORE, np.int64)
    for b, (read, said) in enumerate(pairs):
        source[b, : len(read)], mask[b, : len(read)] = read, True
        tokens[b, 1 : len(said)] = said[:-1]
        if scored:
            targets[b, : len(said)] = said
    made = torch.from_numpy
    return PairBatch(made(source), made(mask), made(tokens), made(targets))


def buckets(lengths: Array, order: Array, tokens: int, most: int) -> list[Array]:
    """The pairs of `order` in batches of like lengths: at most `most` pairs, and `tokens` tokens of source and of
    target, padding included; a longer pair is a batch of its own. lengths (pairs, 2)"""
    order = order[np.lexsort((lengths[order, 0], lengths[order, 1]))]
    batches, begin, widest = [], 0, 0
    for place, width in enumerate(lengths[order].max(1).tolist()):
        widest = max(widest, width)
        if place > begin and (place - begin == most or widest * (place - begin + 1) > tokens):
            batches.append(order[begin:place])
            begin, widest = place, width
    return [*batches, order[begin:]] if begin < len(order) else batches


class PairSource:
    """Batches of pairs of like lengths without end. An epoch's batches and their order follow from the seed and the
    epoch's number; of every batch each process takes its share of the pairs."""

    def __init__(self, data: Pairs, end: int, rows: range, batch: int, tokens: int, seed: int) -> None:
        check_rows(rows, batch)
        if not len(data):
            raise UserError("there is no whole pair to train on")
        self.data, self.end, self.rows, self.batch, self.tokens, self.seed = data, end, rows, batch, tokens, seed
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self.epoch, self.place = epoch, 0
        lengths = self.data.lengths()
        dice = np.random.default_rng([self.seed, epoch])
        made = buckets(lengths, dice.permutation(len(lengths)), self.tokens, self.batch)
        self.batches = [made[i] for i in dice.permutation(len(made))]

    def read(self, length: int) -> PairBatch:
        """The next batch; pairs have lengths of their own, so `length` means nothing here."""
        if self.place == len(self.batches):
            self._begin(self.epoch + 1)
        numbers = self.batches[self.place]
        self.place += 1
        first, last = (edge * len(numbers) // self.batch for edge in (self.rows.start, self.rows.stop))
        if first == last:  # fewer pairs than processes: read along, but nothing is scored
            return make_batch([self.data.pair(numbers[0])], self.end, scored=False)
        return make_batch([self.data.pair(number) for number in numbers[first:last]], self.end)

    def change(self, **options: Any) -> None:
        raise UserError(f"cannot change {', '.join(options) or 'anything'} of pairs; leave --train.curriculum empty")

    def position(self) -> dict[str, Any]:
        return {"rows": list(self.rows), "epoch": self.epoch, "place": self.place}

    def seek(self, position: dict[str, Any]) -> None:
        check_position(position, len(self.rows))
        self._begin(position["epoch"])
        self.place = position["place"]


@dataclass(frozen=True, eq=False)
class Symbols:
    """The byte pairs of source and target; one vocabulary for both if they are joint."""

    source: text.BPE
    target: text.BPE

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def named(self) -> dict[str, text.Vocabulary]:
        return {"joint": self.source} if self.joint else {"source": self.source, "target": self.target}

    @staticmethod
    def of(named: Mapping[str, Any]) -> Symbols:
        return Symbols(named.get("joint") or named["source"], named.get("joint") or named["target"])


class PairTask(FileTask[PairFiles, Any]):
    """Config has path, source, target, test, lowercase, vocabulary, joint, max_source_length, max_target_length, primary_metric."""

    kind: Kind = "seq2seq"
    paths: ClassVar[tuple[str, ...]] = ("path", "source", "target", "test")
    verb: ClassVar[str]  # what the model does, for people
    search: ClassVar[dict[str, Any]] = {}  # how targets are looked for, where it differs from the usual
    metric: ClassVar[str]  # of texts: the name of the score that may be the primary_metric

    @classmethod
    def kept(cls, config: Any, known: Known) -> Self:
        return cls(config, Symbols.of(known.vocabularies), known)  # type: ignore[arg-type]

    @abstractmethod
    def rate(self, said: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
        """Scores of texts by the field's own tools."""

    @abstractmethod
    def judge(self, said: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
        """All scores of texts, with how they were computed."""

    def fit(self, vocabulary: Any) -> Any:
        return vocabulary

    @property
    def vocabularies(self) -> Mapping[str, text.Vocabulary]:
        return self.vocabulary.named()

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
        return self.inputs - 1

    @property
    def end(self) -> int:
        """The target's end, which also stands in front of it."""
        return self.outputs - 1

    @property
    def primary_metric(self) -> str:
        return str(self.config.primary_metric)

    @property
    def higher_is_better(self) -> bool:
        return self.primary_metric != "loss"

    def score(self) -> TokenScore:
        return TokenScore()

    def find(self) -> dict[str, PairFiles]:
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
        if self._foreign:
            return parallel.find_all(config.path, config.source, config.target)
        return parallel.find(config.path, config.source, config.target, config.test)

    def digest(self, place: PairFiles) -> str:
        return place.digest()

    def with_data(self, path: str) -> Self:
        # A file that was named in full would be found again wherever the other data lies.
        names = {
            side: Path(name).name if Path(name := getattr(self.config, side)).is_absolute() else name
            for side in ("source", "target")
        }
        return type(self)(dataclasses.replace(self.config, path=path, **names), self.vocabulary, foreign=True)

    def normal(self, line: str) -> str:
        """A text as it is encoded: white space is one space, and one stands in front, as before any other word."""
        line = " ".join(line.split())
        return " " + (line.lower() if self.config.lowercase else line) if line else ""

    def normal_source(self, line: str) -> str:
        return self.normal(line)

    def build(self) -> Any:
        """From the training pairs, or from the cache if they were built before."""
        config = self.config
        sides = ["joint"] if config.joint else ["source", "target"]
        return Symbols.of({side: self._build(side) for side in sides})

    def _build(self, side: str) -> text.BPE:
        config = self.config
        name = key_of("pairs", side, config.lowercase, config.vocabulary, self._reading(), self.digests["train"])
        path = writable_cache() / f"{name}.vocabulary.json"
        try:
            found = text.load(path)
            assert isinstance(found, text.BPE)
            return found
        except (OSError, ValueError):
            pass  # not there yet, or damaged
        vocabulary = text.BPE.build(self._texts(side), config.vocabulary)
        write_text(path, vocabulary.dumps())
        return vocabulary

    def _reading(self) -> list[Any]:
        """Options that change what is read of a text."""
        return []

    def _texts(self, side: str) -> Iterator[str]:
        for source, target in self.places["train"].pairs():
            if side != "target":
                yield self.normal_source(source)
            if side != "source":
                yield self.normal(target)

    def encode(self, split: str) -> Pairs:
        symbols = self.vocabulary
        dumps = [vocabulary.dumps() for vocabulary in symbols.named().values()]
        key = key_of("pairs", dumps, self.config.lowercase, self._reading(), self.digests[split])
        ids, begins = cached(key, max(self.inputs, self.outputs), lambda: self._ids(split))
        return Pairs.of(ids, begins, *self.limits)

    @property
    def limits(self) -> tuple[int, int]:
        """The most tokens of a source and of a target, their ends not counted."""
        return self.config.max_source_length, self.config.max_target_length

    def _ids(self, split: str) -> Iterator[tuple[Array, bool]]:
        symbols = self.vocabulary
        for pairs in in_groups(self.places[split].pairs(), AT_ONCE):
            sources = symbols.source.encode_each([self.normal_source(source) for source, _ in pairs])
            targets = symbols.target.encode_each([self.normal(target) for _, target in pairs])
            for source, target in zip(sources, targets, strict=True):
                yield np.append(source, self.source_end), True
                yield np.append(target, self.end), True

    def read_sources(self, texts: Sequence[str]) -> tuple[list[Array], int]:
        """Texts to be translated as ids with their ends, and how many had to be cut."""
        longest = self.config.max_source_length
        found = self.vocabulary.source.encode_each([self.normal_source(line) for line in texts])
        cut = sum(len(source) > longest for source in found)
        return [np.append(source[:longest], self.source_end) for source in found], cut

    def write_target(self, ids: Sequence[int]) -> str:
        """Ids as one line of text: line ends that a model may say become spaces."""
        said = [i for i in ids if i != self.end]
        return " ".join(self.vocabulary.target.decode(said).split())

    def batch_source(self, rows: range, batch: int, seed: int, tokens: int = 4096) -> PairSource:  # type: ignore[override]
        if not len(self._split("valid")):
            raise UserError(f"there is no whole pair to validate on in {self.where}; bring more, or a validation set")
        data = self._split("train")
        longest = int(data.lengths().max(initial=0))
        if longest > tokens:
            raise UserError(
                f"--train.batch_tokens {tokens:,}: the longest training pair has {longest:,} tokens, the end included; "
                "raise it, or lower --task.max_source_length and --task.max_target_length to leave long pairs out"
            )
        return PairSource(data, self.end, rows, batch, tokens, seed)

    def batch_shapes(self, batch: int, tokens: int) -> list[tuple[int, int]]:
        """Pairs and target tokens, padding included, of every batch that `feed` gives in an epoch, but for the order of
        pairs of equal length."""
        lengths = self._split("train").lengths()
        made = buckets(lengths, np.arange(len(lengths)), tokens, batch)
        return [(len(numbers), int(lengths[numbers, 1].max())) for numbers in made]

    def batches(self, split: Split, rows: int, segment: int) -> Iterator[PairBatch]:  # type: ignore[override]
        """Every whole pair of a split once, at most `rows` of them and `rows * segment` tokens at a time."""
        data = self._split(split)
        for numbers in buckets(data.lengths(), np.arange(len(data)), rows * segment, rows):
            yield make_batch([data.pair(number) for number in numbers], self.end)

    def texts(self, split: Split) -> Iterator[tuple[str, str]]:
        """The pairs of a split as they stand in the files, broken ones included."""
        if split not in self.places:
            raise UserError(
                f"{self.where} has no {split} split; it has {' and '.join(self.places)}: choose with --split"
            )
        return self.places[split].pairs()

    def sides(self, split: Split, most: int = 0) -> tuple[list[str], list[str]]:
        """The sources and the targets of a split, or of its first `most` pairs."""
        pairs = list(islice(self.texts(split), min(most, sys.maxsize) or None))
        if not pairs:
            raise UserError(f"there is no pair in the {split} split of {self.where}")
        return [source for source, _ in pairs], [target for _, target in pairs]

    @property
    def where(self) -> str:
        return self.config.path or f"the pair of {self.config.source} and {self.config.target}"

    def tell(self) -> str:
        config = self.config
        sizes = ", ".join(f"{split} {len(data):,}" for split, data in self.splits.items())
        symbols = f"{self.inputs:,}" if self.joint else f"{self.inputs:,} and {self.outputs:,}"
        folder = f" ({name})" if (name := Path(config.path).name) else ""
        what = f"{self.verb} {config.source} to {config.target}{folder}"
        return f"{what}: {sizes} pairs, {symbols} symbols{self.losses()}"

    def losses(self) -> str:
        """What is broken, in words; nothing if nothing is, or if this is no data to train on."""
        if "train" not in self.splits:
            return ""
        parts = [f"{count:,} {why}" for why, count in self.splits["train"].broken.items() if count]
        left_out = f"; left out of train: {', '.join(parts)}" if parts else ""
        unpaired = self.places["train"].unpaired()
        return f"{left_out}; {unpaired}" if unpaired else left_out


def in_groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group
