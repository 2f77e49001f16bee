"""Labeled streams: the user's own state-tracking data, two text files side by side.

    walk.tokens     reset forward left forward
    walk.labels     -     1       1    9

Symbols are separated by white space; line for line there is one label for each token. Every line is an episode that
begins anew; empty lines are passed over. One label, `-` unless another is chosen, means that nothing is scored there.
A folder has `train.tokens`, `train.labels`, `valid.tokens` and so on; the lines of a single pair are split: the last 5%
are test, the 5% before them valid. All symbols and labels must occur in train.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from stairwell import configs, text
from stairwell.data import text_files
from stairwell.data.cache import Array, cached, key_of
from stairwell.data.packed import LabeledTokens
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.batch_sources import check_segments, to_batch
from stairwell.tasks.file_task import FileTask
from stairwell.tasks.scores import SequenceScore


@dataclass(frozen=True, kw_only=True)
class Config(configs.Config):
    path: str = ""
    "a folder with train.tokens, train.labels, valid.tokens, ..., or one file of tokens"
    labels: str = ""
    "the labels of a single file of tokens; without it the file of the same name that ends in .labels"
    unscored: str = "-"
    "the label that means: not scored"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unscored.split() != [self.unscored]:
            raise UserError(f"unscored must be one symbol without white space, not {self.unscored!r}")


@dataclass(frozen=True)
class LabeledVocabulary(text.Vocabulary):
    """The input symbols and the labels of the training split."""

    kind: ClassVar[str] = "labeled"
    symbols: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.symbols)

    @cached_property
    def symbol_ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def encode(self, text: str | bytes) -> np.ndarray:
        symbols = (text if isinstance(text, str) else text.decode("utf-8")).split()
        return _look_up(self.symbol_ids, symbols, "the symbol")

    def decode(self, ids: text.Ids) -> str:
        return " ".join(self.symbols[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"symbols": list(self.symbols), "labels": list(self.labels)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["symbols"]), tuple(data["labels"]))


@dataclass(frozen=True)
class Pair:
    """Episodes `first` to `last` of two files."""

    tokens: Path
    labels: Path
    first: int = 0
    last: int | None = None


class Labeled(FileTask[Pair, LabeledTokens]):
    primary_metric = "accuracy"
    higher_is_better = True
    symbols: ClassVar[str] = "symbols"
    paths: ClassVar[tuple[str, ...]] = ("path", "labels")
    config: Config

    def fit(self, vocabulary: text.Vocabulary) -> LabeledVocabulary:
        if not isinstance(vocabulary, LabeledVocabulary):
            raise UserError(f"labeled streams need a vocabulary of symbols and labels, not one of {vocabulary.kind}")
        return vocabulary

    @property
    def outputs(self) -> int:
        return len(self.vocabulary.labels)

    def score(self) -> SequenceScore:
        return SequenceScore()

    def with_data(self, path: str, labels: str = "") -> Self:
        config = Config(path=path, labels=labels, unscored=self.config.unscored)
        return type(self)(config, self.vocabulary, foreign=True)

    def find(self) -> dict[str, Pair]:
        if not self._foreign:
            return _find(self.config)
        if Path(self.config.path).expanduser().is_dir():
            return {split: pair for split, pair in _find(self.config).items() if split != "train"}
        return dict.fromkeys(("valid", "test"), _single(self.config))

    def digest(self, place: Pair) -> str:
        contents = text_files.digest([text_files.whole(place.tokens), text_files.whole(place.labels)])
        return f"{contents}:{place.first}:{place.last}"

    def build(self) -> LabeledVocabulary:
        symbols: set[str] = set()
        labels: set[str] = set()
        for _, tokens, names in _episodes(self.places["train"]):
            symbols.update(tokens)
            labels.update(names)
        return LabeledVocabulary(tuple(sorted(symbols)), tuple(sorted(labels - {self.config.unscored})))

    def encode(self, split: str) -> LabeledTokens:
        vocabulary, unscored, pair = self.vocabulary, self.config.unscored, self.places[split]
        made_from = (vocabulary.dumps(), unscored, self.digests[split])
        # As `LabeledTokens` wants them: 0 where nothing is scored, i + 1 for label i.
        label_ids = {label: i + 1 for i, label in enumerate(vocabulary.labels)} | {unscored: 0}

        def tokens() -> Iterator[tuple[Array, bool]]:
            for number, symbols, _ in _episodes(pair):
                yield _look_up(vocabulary.symbol_ids, symbols, f"line {number} of {pair.tokens}: the symbol"), True

        def labels() -> Iterator[tuple[Array, bool]]:
            for number, _, names in _episodes(pair):
                yield _look_up(label_ids, names, f"line {number} of {pair.labels}: the label"), True

        ids, begins = cached(key_of("tokens", *made_from), vocabulary.size, tokens)
        targets, _ = cached(key_of("labels", *made_from), len(vocabulary.labels) + 1, labels)
        if not len(ids):
            raise UserError(f"{pair.tokens} is empty")
        if not targets.any():
            raise UserError(f"{pair.labels} has no label but {unscored!r}, so that nothing is scored")
        return LabeledTokens(ids, targets, begins)

    def stream_lengths(self, split: str) -> Array:
        """Return the number of tokens of every episode of a split."""
        data = self._split(split)
        return np.diff(data.begins, append=len(data))

    def stream_batches(self, split: str, episodes: range, tokens: int, segment: int) -> Iterator[Batch]:
        """Yield some episodes side by side from their first tokens on, each in a row of its own, up to `tokens` tokens
        and `segment` at a time; behind its end an episode is filled up with token 0, not scored."""
        check_segments(len(episodes), segment)
        data = self._split(split)
        begins = data.begins[episodes.start : episodes.stop, None]
        lengths = np.minimum(self.stream_lengths(split)[episodes.start : episodes.stop, None], tokens)
        for first in range(0, int(lengths.max()), segment):
            offsets = np.arange(first, min(first + segment, int(lengths.max())))
            present = offsets < lengths  # (B, T)
            places = np.where(present, begins + offsets, 0)
            ids, targets = data.tokens(places), data.targets(places)
            yield to_batch(np.where(present, ids, 0), np.where(present, targets, IGNORE), None)

    def tell(self) -> str:
        sizes = ", ".join(f"{split} {data.episodes:,}" for split, data in self.splits.items())
        symbols = f"{self.inputs:,} symbols, {self.outputs:,} labels"
        return f"labeled streams from {Path(self.config.path).name}: {sizes} episodes, {symbols}, finite"


def _find(config: Config) -> dict[str, Pair]:
    folder = Path(config.path).expanduser()
    if not config.path or not folder.is_dir():
        return _share(_single(config))
    if config.labels:
        raise UserError(f"labels goes with a single file of tokens, and {folder} is a folder")
    found = [split for split in ("train", "valid", "test") if (folder / f"{split}.tokens").exists()]
    for split in ("train", "valid"):
        if split not in found:
            raise UserError(f"there is no {split}.tokens in {folder}; train and valid are needed, test is optional")
    return {split: _pair(folder / f"{split}.tokens", folder / f"{split}.labels") for split in found}


def _single(config: Config) -> Pair:
    if not config.path:
        raise UserError(
            "no path is given; it must name a folder with train.tokens and train.labels, or a file of tokens"
        )
    tokens = Path(config.path).expanduser()
    return _pair(tokens, Path(config.labels).expanduser() if config.labels else tokens.with_suffix(".labels"))


def _pair(tokens: Path, labels: Path) -> Pair:
    if not tokens.is_file():
        raise UserError(f"there is no file of tokens {tokens}")
    if not labels.is_file():
        raise UserError(f"there is no file of labels {labels} for the tokens in {tokens}")
    if tokens.samefile(labels):
        raise UserError(f"{tokens} is given as tokens and as labels; they are two files")
    return Pair(tokens, labels)


def _share(pair: Pair) -> dict[str, Pair]:
    """The episodes of one pair for the three splits."""
    count = sum(1 for _ in _episodes(pair))
    if count < 3:
        raise UserError(f"{pair.tokens} has {count} episodes; it takes at least 3 to split them")
    held_out = max(count // 20, 1)
    edges = (0, count - 2 * held_out, count - held_out, count)
    splits = zip(("train", "valid", "test"), pairwise(edges))
    return {split: Pair(pair.tokens, pair.labels, first, last) for split, (first, last) in splits}


def _episodes(pair: Pair) -> Iterator[tuple[int, list[str], list[str]]]:
    """The number of a line, its tokens and its labels."""

    def aligned() -> Iterator[tuple[int, list[str], list[str]]]:
        lines = zip_longest(_lines(pair.tokens), _lines(pair.labels), fillvalue="")
        for number, (tokens, labels) in enumerate(((line.split(), other.split()) for line, other in lines), 1):
            if len(tokens) != len(labels):
                raise UserError(
                    f"line {number} of {pair.tokens} has {len(tokens)} tokens, but that of {pair.labels} has "
                    f"{len(labels)} labels; there must be one label for each token"
                )
            if tokens:
                yield number, tokens, labels

    return islice(aligned(), pair.first, pair.last)


def _lines(file: Path) -> Iterator[str]:
    line: list[str] = []  # what has been read of a line; a very long one comes in many pieces
    for piece in text_files.texts([text_files.whole(file)], "symbols and labels are text"):
        first, *others = piece.split("\n")
        line.append(first)
        for other in others:
            yield "".join(line)
            line = [other]
    if any(line):
        yield "".join(line)


def _look_up(ids: dict[str, int], symbols: list[str], what: str) -> np.ndarray:
    try:
        return np.array([ids[symbol] for symbol in symbols], np.int64)
    except KeyError as error:
        raise text.UnknownSymbolError(
            f"{what} {error.args[0]!r} does not occur in the training split; add it there, or leave it out here"
        ) from error
