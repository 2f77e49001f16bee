"""Pairs of texts on disk: two parallel files, a table with two named columns (csv, tsv, jsonl), or a folder of either
with one file per split. Files are read line by line, so a corpus may be larger than memory.

    train.de train.en val.de val.en test.de test.en       a folder, source=de, target=en
    train.jsonl dev.jsonl                                 a folder, source and target name columns
    talks.de talks.en                                     path=talks: no splits, so some pairs are held out
    german.txt english.txt                                source=german.txt, target=english.txt: likewise; path may
                                                          name their folder

Pairs are held out by a hash of the source, so no source is in two splits.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from stairwell.data import text_files
from stairwell.data.cache import Array
from stairwell.errors import MIN_SIMILARITY, UserError
from stairwell.files import parse_json

TABLES = (".jsonl", ".csv", ".tsv")
SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "dev"), "test": ("test",)}
# Pairs held out for valid, and for test, if no file is named so.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.05, 2000


@dataclass(frozen=True)
class PairFiles:
    """The files of one split. A table has both columns in one file."""

    source: Path
    target: Path
    columns: tuple[str, str] | None = None
    hash_range: tuple[float, float] = (0.0, 1.0)  # pairs whose source has a hash in this range

    @property
    def files(self) -> list[Path]:
        return [self.source] if self.source == self.target else [self.source, self.target]

    def digest(self) -> str:
        content = text_files.digest([text_files.whole_file(file) for file in self.files])
        return hashlib.blake2b(f"{content} {self.columns} {self.hash_range}".encode(), digest_size=20).hexdigest()

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every pair; a line without a counterpart gets an empty one."""
        first, last = self.hash_range
        for source, target in self._all_pairs():
            if self.hash_range == (0.0, 1.0) or first <= hash_fraction(source) < last:
                yield source, target

    def _all_pairs(self) -> Iterator[tuple[str, str]]:
        if self.columns is not None:
            return table_pairs(self.source, *self.columns)
        return zip_longest(lines(self.source), lines(self.target), fillvalue="")

    def unpaired(self) -> str:
        """Return a warning if the files have different numbers of lines, otherwise an empty string."""
        if self.columns is not None:
            return ""
        source, target = (count_lines(file) for file in (self.source, self.target))
        if source == target:
            return ""
        sizes = f"{self.source.name} has {source:,} lines and {self.target.name} {target:,}"
        return f"{sizes}, so {abs(source - target):,} have no counterpart (are the files parallel?)"


def hash_fraction(source: str) -> float:
    """Return a hash of a source, as a number in [0, 1)."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=6).digest(), "big") / 2**48


def lines(file: Path) -> Iterator[str]:
    """Yield the lines without their ends. Only a line feed ends a line; other Unicode line separators are text."""
    with text_files.open_file(file, file.suffix == ".gz") as content:
        for number, line in enumerate(content, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{file} is not UTF-8 text: line {number:,}, {error.reason}; convert it first"
                ) from None


def count_lines(file: Path) -> int:
    line_feeds, last = 0, b"\n"
    for block in text_files.read_blocks(text_files.whole_file(file)):
        line_feeds, last = line_feeds + block.count(b"\n"), block[-1:]
    return line_feeds + (last != b"\n")


def table_pairs(file: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield two columns of every row. A list of sentences in the source is joined; of a list in the target, which holds
    alternative references, the first is used."""
    for source_cell, target_cell in table_columns(file, source, target):
        reference = target_cell[0] if isinstance(target_cell, list) and target_cell else target_cell
        yield cell_text(source_cell), str(reference or "")


def table_texts(file: Path, column: str) -> Iterator[str]:
    """Yield one column of every row, read as the source of a pair."""
    for (cell,) in table_columns(file, column):
        yield cell_text(cell)


def cell_text(cell: Any) -> str:
    return " ".join(map(str, cell)) if isinstance(cell, list) else str(cell or "")


def table_columns(file: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    for number, row in enumerate(table_rows(file), 1):
        for column in columns:
            if column not in row:
                raise UserError(
                    f"{file}, row {number:,} has no column '{column}'; it has {', '.join(map(str, row))} "
                    "(in training, --task.source and --task.target name columns)"
                )
        yield tuple(row[column] for column in columns)


def table_rows(file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix == ".jsonl":
        for number, line in enumerate(lines(file), 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except ValueError as error:
                raise UserError(f"{file}, line {number:,} is not valid JSON: {error}") from None
            if not isinstance(row, dict):
                raise UserError(f"{file}, line {number:,} must be an object with named columns")
            yield row
        return
    csv.field_size_limit(1 << 30)
    with open(file, encoding="utf-8-sig", newline="") as content:
        try:
            yield from csv.DictReader(content, delimiter="\t" if file.suffix == ".tsv" else ",")
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read as a table: {error}") from None


def find_splits(path: str, source: str, target: str, test: str = "") -> dict[str, PairFiles]:
    """Return the files of train, valid and test. `test` is the prefix of the test files' names, if not `test`. Without
    a path, source and target are files."""
    if source == target:
        raise UserError(f"source and target are both '{source}'; name two files, two suffixes or two columns")
    location = Path(path).expanduser()
    if location.is_file():
        return held_out_splits(table_files(location, source, target))
    if location.exists():
        text_files.existing_path(location)  # raises if it is a device
    if not location.is_dir():
        pair = [location.with_name(f"{location.name}.{suffix}") for suffix in (source, target)]
        if all(file.is_file() for file in pair):
            return held_out_splits(PairFiles(pair[0], pair[1]))
        raise UserError(f"there is no file or folder {location}, nor {pair[0].name} and {pair[1].name} in its folder")
    if (location / source).is_file() and (location / target).is_file():
        return held_out_splits(PairFiles(location / source, location / target))
    names = {**SPLIT_NAMES, "test": (test,) if test else SPLIT_NAMES["test"]}
    splits = {
        split: files
        for split, prefixes in names.items()
        if (files := files_in_folder(location, prefixes, source, target))
    }
    if "train" not in splits:
        raise no_pairs_error(location, source, target)
    if "valid" not in splits:
        return {**splits, **held_out_splits(splits["train"], with_test="test" not in splits)}
    return splits


def find_evaluation_splits(path: str, source: str, target: str) -> dict[str, PairFiles]:
    """Return the valid and test files of a folder that has them; otherwise all pairs are both valid and test."""
    location = Path(path).expanduser()
    if location.is_dir() and not (location / source).is_file():
        splits = {
            split: files
            for split in ("valid", "test")
            if (files := files_in_folder(location, SPLIT_NAMES[split], source, target))
        }
        if splits:
            return splits
    everything = replace(find_splits(path, source, target)["train"], hash_range=(0.0, 1.0))
    return {"valid": everything, "test": everything}


def is_file_name(name: str) -> bool:
    """Return whether a source or target names a file, not a suffix or a column."""
    return "." in name or "/" in name


def no_pairs_error(folder: Path, source: str, target: str) -> UserError:
    """Return the error for a folder without training pairs. Paths are absolute, because a relative path may have been
    meant from another folder."""
    for name in (source, target):
        file = folder / name
        if file.exists() and not file.is_file() and (is_file_name(name) or (folder / source).is_file()):
            file_type = "a folder" if file.is_dir() else "a device or a pipe"
            return UserError(
                f"{file.resolve()} is {file_type}, not a file; --task.source and --task.target name two files"
            )
        if is_file_name(name) and not file.is_file():
            near = difflib.get_close_matches(
                file.name, [other.name for other in file.parent.glob("*")], 1, MIN_SIMILARITY
            )
            return UserError(f"there is no file {file.resolve()}" + (f"; did you mean {near[0]}?" if near else ""))
    tables = sorted(file for file in folder.iterdir() if file.suffix in TABLES)
    hint = f"; or name a single table, which is then split: --task.path {tables[0]}" if tables else ""
    return UserError(
        f"{folder.resolve()} has no training pairs: it needs train.{source} and train.{target}, or train.jsonl, "
        f"train.csv or train.tsv with columns '{source}' and '{target}', or two files that --task.source and "
        f"--task.target name{hint}"
    )


def files_in_folder(folder: Path, prefixes: tuple[str, ...], source: str, target: str) -> PairFiles | None:
    """Return the one pair of files, or the one table, whose name has one of the prefixes."""
    for prefix in prefixes:
        for compression in ("", ".gz"):
            sources = candidates(folder, prefix, f".{source}{compression}")
            if sources:
                file = single(sources, folder, prefix)
                name = file.name.removesuffix(f".{source}{compression}")
                counterpart = file.with_name(f"{name}.{target}{compression}")
                if not counterpart.is_file():
                    raise UserError(f"{file} has no counterpart {counterpart.name}")
                return PairFiles(file, counterpart)
        for suffix in TABLES:
            tables = candidates(folder, prefix, suffix)
            if tables:
                return table_files(single(tables, folder, prefix), source, target)
    return None


def candidates(folder: Path, prefix: str, suffix: str) -> list[Path]:
    exact = folder / (prefix + suffix)
    if exact.is_file():
        return [exact]
    return sorted(file for file in folder.glob(f"*{suffix}") if file.name.startswith(prefix) and file.is_file())


def single(files: list[Path], folder: Path, prefix: str) -> Path:
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise UserError(f"{folder} has several files that start with '{prefix}': {names}; --task.test may select one")
    return files[0]


def table_files(file: Path, source: str, target: str) -> PairFiles:
    if file.suffix not in TABLES:
        raise UserError(
            f"{file} is neither a table ({', '.join(TABLES)}) nor a folder; name two files with "
            "--task.source FILE --task.target FILE, without --task.path"
        )
    return PairFiles(file, file, (source, target))


def held_out_splits(everything: PairFiles, with_test: bool = True) -> dict[str, PairFiles]:
    """Return a small share of the pairs as valid, another one as test if `with_test`, and the rest as train."""
    share = min(HELD_OUT_SHARE, MAX_HELD_OUT / max(1, count_lines(everything.source)))
    first = 2 * share if with_test else share
    splits = {
        "train": replace(everything, hash_range=(first, 1.0)),
        "valid": replace(everything, hash_range=(0.0, share)),
    }
    return {**splits, "test": replace(everything, hash_range=(share, first))} if with_test else splits


@dataclass(frozen=True)
class EncodedPairs:
    """Memory-mapped pairs: source 0, target 0, source 1, ..., each text with its end token."""

    ids: Array  # (n,)
    edges: Array  # (2 pairs + 1,): the start of each text, and the end of the last
    complete: Array  # indices of the pairs that are neither empty nor too long
    skipped: dict[str, int]  # number of the other pairs, by reason

    @staticmethod
    def build(ids: Array, starts: Array, max_source_length: int, max_target_length: int) -> EncodedPairs:
        edges = np.append(starts, len(ids))
        lengths = np.diff(edges).reshape(-1, 2) - 1  # without the end token
        empty = (lengths == 0).any(1)
        long = ~empty & ((lengths[:, 0] > max_source_length) | (lengths[:, 1] > max_target_length))
        skipped = {"empty": int(empty.sum()), "too long": int(long.sum())}
        return EncodedPairs(ids, edges, np.flatnonzero(~(empty | long)), skipped)

    def __len__(self) -> int:
        return len(self.complete)

    def lengths(self) -> Array:
        """Return the lengths of all sources and targets, including the end token: (pairs, 2)."""
        return np.diff(self.edges).reshape(-1, 2)[self.complete]

    def pair(self, index: int) -> tuple[Array, Array]:
        """Return a source and its target, each with its end token."""
        text = 2 * int(self.complete[index])
        first, middle, last = self.edges[text : text + 3]
        return self.ids[first:middle].astype(np.int64), self.ids[middle:last].astype(np.int64)
