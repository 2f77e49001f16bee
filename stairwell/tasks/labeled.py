"""Labeled streams: the user's own state-tracking data in two parallel text files.

    walk.tokens     reset forward left forward
    walk.labels     -     1       1    9

Tokens are separated by white space, and each line has one label per token. Every line is an episode that starts from
the initial state; empty lines are skipped. The label `-`, or another one of your choice, is not scored. A folder has
`train.tokens`, `train.labels`, `valid.tokens` and so on. The lines of a single pair of files are split: the last 5% are
test, the 5% before them valid. All tokens and labels must occur in train.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from stairwell import text
from stairwell.data import text_files
from stairwell.data.cache import Array, cached, key_of
from stairwell.data.packed import LabeledTokens
from stairwell.errors import UserError, suggestion
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.batch_sources import check_segments, to_batch
from stairwell.tasks.file_task import FileConfig, FileTask
from stairwell.tasks.scores import SequenceScore


@dataclass(frozen=True, kw_only=True)
class LabeledConfig(FileConfig):
    path: str = ""
    "Folder with train.tokens, train.labels, valid.tokens, ..., or one file of tokens."
    labels: str = ""
    "Labels of a single file of tokens; by default the file of the same name that ends in .labels."
    unscored: str = "-"
    "Label that is not scored."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unscored.split() != [self.unscored]:
            raise UserError(f"unscored must be one label without white space, not {self.unscored!r}")


@dataclass(frozen=True)
class LabeledVocabulary(text.Vocabulary):
    """The tokens and labels of the training split."""

    type_name: ClassVar[str] = "labeled"
    tokens: tuple[str, ...]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        text.check_distinct(self.tokens)
        text.check_distinct(self.labels)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def token_ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def encode(self, text: str | bytes) -> np.ndarray:
        return self.look_up((text if isinstance(text, str) else text.decode("utf-8")).split())

    def look_up(self, tokens: list[str], where: str = "") -> np.ndarray:
        """Return the ids of tokens; raise an error that begins with `where` if the model cannot read one of them."""
        for token in tokens:
            if token not in self.token_ids:
                raise text.UnknownTokenError(
                    f"{where}{token!r} was not in the training data, so the model cannot read it"
                    f"{suggestion(token, self.tokens)}"
                )
        return np.array([self.token_ids[token] for token in tokens], np.int64)

    def decode(self, ids: text.Ids) -> str:
        return " ".join(self.tokens[i] for i in self.check_ids(ids))

    def to_json(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens), "labels": list(self.labels)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["tokens"]), tuple(data["labels"]))


@dataclass(frozen=True)
class LabeledFiles:
    """Episodes `first` to `last` of two parallel files."""

    tokens: Path
    labels: Path
    first: int = 0
    last: int | None = None


class Labeled(FileTask[LabeledFiles, LabeledTokens]):
    config: LabeledConfig
    config_type = LabeledConfig
    primary_metric = "accuracy"
    higher_is_better = True
    vocabulary_name: ClassVar[str] = "tokens"
    path_options: ClassVar[tuple[str, ...]] = ("path", "labels")

    def adapt_vocabulary(self, vocabulary: text.Vocabulary) -> LabeledVocabulary:
        if not isinstance(vocabulary, LabeledVocabulary):
            raise UserError(
                f"labeled streams need a vocabulary of tokens and labels, not one of type '{vocabulary.type_name}'"
            )
        return vocabulary

    @property
    def outputs(self) -> int:
        return len(self.vocabulary.labels)

    def score(self) -> SequenceScore:
        return SequenceScore()

    def with_data(self, path: str, labels: str = "") -> Self:
        config = LabeledConfig(path=path, labels=labels, unscored=self.config.unscored)
        return type(self)(config, self.vocabulary, evaluation_only=True)

    def locate_splits(self) -> dict[str, LabeledFiles]:
        if not self._evaluation_only:
            return _find_splits(self.config)
        if Path(self.config.path).expanduser().is_dir():
            return {split: files for split, files in _find_splits(self.config).items() if split != "train"}
        return dict.fromkeys(("valid", "test"), _single_pair(self.config))

    def digest(self, location: LabeledFiles) -> str:
        contents = text_files.digest([text_files.whole_file(file) for file in (location.tokens, location.labels)])
        return f"{contents}:{location.first}:{location.last}"

    def build_vocabulary(self) -> LabeledVocabulary:
        all_tokens: set[str] = set()
        all_labels: set[str] = set()
        for _, tokens, labels in _episodes(self.locations["train"]):
            all_tokens.update(tokens)
            all_labels.update(labels)
        files, unscored = self.locations["train"], self.config.unscored
        if all_labels == {unscored}:  # the model would have no output
            raise UserError(f"{files.labels} has no label but {unscored!r}, so nothing is scored")
        return LabeledVocabulary(tuple(sorted(all_tokens)), tuple(sorted(all_labels - {unscored})))

    def encode_split(self, split: str) -> LabeledTokens:
        vocabulary, unscored, files = self.vocabulary, self.config.unscored, self.locations[split]
        ingredients = (vocabulary.dumps(), unscored, self.digests[split])
        # As in `LabeledTokens`: 0 where nothing is scored, i + 1 for label i.
        label_ids = {label: i + 1 for i, label in enumerate(vocabulary.labels)} | {unscored: 0}

        def encode_tokens() -> Iterator[tuple[Array, bool]]:
            for number, tokens, _ in _episodes(files):
                yield self._look_up(vocabulary.token_ids, tokens, f"line {number} of {files.tokens}: the token"), True

        def encode_labels() -> Iterator[tuple[Array, bool]]:
            for number, _, labels in _episodes(files):
                yield self._look_up(label_ids, labels, f"line {number} of {files.labels}: the label"), True

        ids, starts = cached(key_of("tokens", *ingredients), vocabulary.size, encode_tokens)
        targets, _ = cached(key_of("labels", *ingredients), len(vocabulary.labels) + 1, encode_labels)
        if not len(ids):
            raise UserError(f"{files.tokens} is empty")
        if not targets.any():
            raise UserError(f"{files.labels} has no label but {unscored!r}, so nothing is scored")
        return LabeledTokens(ids, targets, starts)

    def _look_up(self, ids: dict[str, int], names: list[str], subject: str) -> np.ndarray:
        try:
            return np.array([ids[name] for name in names], np.int64)
        except KeyError as error:
            name = error.args[0]
            if self._evaluation_only:
                reason = f"was not in the training data{suggestion(name, ids)}"
            elif self.locations["train"].last is not None:  # one pair of files, split by lines
                reason = (
                    "is not in the training split: the last 10% of the lines are validation and test, and it occurs "
                    "only there; shuffle the lines, or give a folder with train.tokens, valid.tokens and test.tokens"
                )
            else:
                reason = "is not in the training split; add it there, or remove it here"
            raise text.UnknownTokenError(f"{subject} {name!r} {reason}") from error

    def read_tokens(self, path: str | os.PathLike[str]) -> Iterator[np.ndarray]:
        """Yield the token ids of each line of a file of tokens, which needs no labels. Empty lines are empty."""
        if not Path(path).is_file():
            raise UserError(f"there is no file of tokens {os.fspath(path)}")
        for number, line in enumerate(_lines(Path(path)), 1):
            yield self.vocabulary.look_up(line.split(), f"line {number} of {os.fspath(path)}: ")

    def stream_lengths(self, split: str) -> Array:
        """Return the number of tokens of every episode of a split."""
        data = self.split_data(split)
        return np.diff(data.start_positions, append=len(data))

    def stream_batches(self, split: str, episodes: range, tokens: int, segment: int) -> Iterator[TokenBatch]:
        """Yield the first `tokens` tokens of some episodes in parallel, each in its own stream, `segment` at a time.
        Shorter episodes are padded with token 0, which is not scored."""
        check_segments(len(episodes), segment)
        data = self.split_data(split)
        starts = data.start_positions[episodes.start : episodes.stop, None]
        lengths = np.minimum(self.stream_lengths(split)[episodes.start : episodes.stop, None], tokens)
        for first in range(0, int(lengths.max()), segment):
            offsets = np.arange(first, min(first + segment, int(lengths.max())))
            present = offsets < lengths  # (B, T)
            positions = np.where(present, starts + offsets, 0)
            ids, targets = data.tokens(positions), data.targets(positions)
            yield to_batch(np.where(present, ids, 0), np.where(present, targets, IGNORE_INDEX), None)

    def describe_data(self) -> str:
        sizes = ", ".join(f"{split} {data.episodes:,}" for split, data in self.splits.items())
        vocabulary = f"vocabulary size {self.inputs:,}, {self.outputs:,} labels"
        return f"labeled sequences from {Path(self.config.path).name}: {sizes} sequences, {vocabulary}"


def _find_splits(config: LabeledConfig) -> dict[str, LabeledFiles]:
    folder = Path(config.path).expanduser()
    if not config.path or not folder.is_dir():
        return _split_episodes(_single_pair(config))
    if config.labels:
        raise UserError(f"labels requires a single file of tokens, but {folder} is a folder")
    splits = [split for split in ("train", "valid", "test") if (folder / f"{split}.tokens").exists()]
    for split in ("train", "valid"):
        if split not in splits:
            raise UserError(f"there is no {split}.tokens in {folder}; train and valid are required, test is optional")
    return {split: _check_files(folder / f"{split}.tokens", folder / f"{split}.labels") for split in splits}


def _single_pair(config: LabeledConfig) -> LabeledFiles:
    if not config.path:
        raise UserError(
            "no path is given; it must name a folder with train.tokens and train.labels, or a file of tokens"
        )
    tokens = Path(config.path).expanduser()
    return _check_files(tokens, Path(config.labels).expanduser() if config.labels else tokens.with_suffix(".labels"))


def _check_files(tokens: Path, labels: Path) -> LabeledFiles:
    if not tokens.is_file():
        raise UserError(f"there is no file of tokens {tokens}")
    if not labels.is_file():
        raise UserError(
            f"there is no file of labels {labels} for the tokens in {tokens}; two files are needed, with one line per "
            "sequence: tokens in one, and one label per token in the other"
        )
    if tokens.samefile(labels):
        raise UserError(f"{tokens} is given as tokens and as labels; name two different files")
    return LabeledFiles(tokens, labels)


def _split_episodes(files: LabeledFiles) -> dict[str, LabeledFiles]:
    """Split the episodes of a single pair of files."""
    count = sum(1 for _ in _episodes(files))
    if count < 3:
        raise UserError(f"{files.tokens} has {count} episodes; a split needs at least 3")
    held_out = max(count // 20, 1)
    edges = (0, count - 2 * held_out, count - held_out, count)
    splits = zip(("train", "valid", "test"), pairwise(edges))
    return {split: LabeledFiles(files.tokens, files.labels, first, last) for split, (first, last) in splits}


def _episodes(files: LabeledFiles) -> Iterator[tuple[int, list[str], list[str]]]:
    """Return the line number, tokens and labels of each episode."""

    def all_episodes() -> Iterator[tuple[int, list[str], list[str]]]:
        lines = zip_longest(_lines(files.tokens), _lines(files.labels), fillvalue="")
        for number, (token_line, label_line) in enumerate(lines, 1):
            tokens, labels = token_line.split(), label_line.split()
            if len(tokens) != len(labels):
                raise UserError(
                    f"line {number} has {len(tokens)} tokens in {files.tokens}, but {len(labels)} labels in "
                    f"{files.labels}; there must be one label per token"
                )
            if tokens:
                yield number, tokens, labels

    return islice(all_episodes(), files.first, files.last)


def _lines(file: Path) -> Iterator[str]:
    line: list[str] = []  # the line so far; a very long one is read in several blocks
    for block in text_files.read_texts([text_files.whole_file(file)], "tokens and labels are text"):
        first, *others = block.split("\n")
        line.append(first)
        for other in others:
            yield "".join(line)
            line = [other]
    if any(line):
        yield "".join(line)
