"""Pairs of texts on disk: two parallel files, a table with two named columns (csv, tsv, jsonl), or a folder of either
with a file a split. They are read line by line, so that a corpus may be larger than the memory.

    train.de train.en val.de val.en test.de test.en       a folder, source=de, target=en
    train.jsonl dev.jsonl                                 a folder, source and target name columns
    talks.de talks.en                                     path=talks: no splits, so a share of the pairs is kept apart
    german.txt english.txt                                source=german.txt, target=english.txt: likewise; path may
                                                          name their folder

Shares are drawn by a hash of the source, so that the same source never stands in two of them.
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
from stairwell.errors import NEAR, UserError
from stairwell.files import parse_json

TABLES = (".jsonl", ".csv", ".tsv")
NAMES = {"train": ("train",), "valid": ("valid", "val", "dev"), "test": ("test",)}
SHARE, MOST = 0.05, 2000  # of the pairs that are kept apart for valid and for test where no file says: at most


@dataclass(frozen=True)
class PairFiles:
    """Where the pairs of a split lie. A table has both columns in one file."""

    source: Path
    target: Path
    columns: tuple[str, str] | None = None
    share: tuple[float, float] = (0.0, 1.0)  # of the pairs, by the hash of their source

    @property
    def files(self) -> list[Path]:
        return [self.source] if self.source == self.target else [self.source, self.target]

    def digest(self) -> str:
        content = text_files.digest([text_files.whole(file) for file in self.files])
        return hashlib.blake2b(f"{content} {self.columns} {self.share}".encode(), digest_size=20).hexdigest()

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every pair; a line without a partner has an empty one."""
        first, last = self.share
        for source, target in self._all():
            if self.share == (0.0, 1.0) or first <= place_of(source) < last:
                yield source, target

    def _all(self) -> Iterator[tuple[str, str]]:
        if self.columns is not None:
            return table_pairs(self.source, *self.columns)
        return zip_longest(lines(self.source), lines(self.target), fillvalue="")

    def unpaired(self) -> str:
        """How many lines either file has, in words, if one has more than the other: the last ones have no partner."""
        if self.columns is not None:
            return ""
        source, target = (count_lines(file) for file in (self.source, self.target))
        if source == target:
            return ""
        sizes = f"{self.source.name} has {source:,} lines and {self.target.name} {target:,}"
        return f"{sizes}, so {abs(source - target):,} have no partner (are the files parallel?)"


def place_of(source: str) -> float:
    """Where in [0, 1) a source falls."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=6).digest(), "big") / 2**48


def lines(file: Path) -> Iterator[str]:
    """Lines without their ends. Only a line feed ends a line: other characters that some take for one are text."""
    with text_files.opened(file, file.suffix == ".gz") as content:
        for number, line in enumerate(content, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{file} is not UTF-8 text: line {number:,}, {error.reason}; convert it first"
                ) from None


def count_lines(file: Path) -> int:
    ends, last = 0, b"\n"
    for block in text_files.blocks(text_files.whole(file)):
        ends, last = ends + block.count(b"\n"), block[-1:]
    return ends + (last != b"\n")


def table_pairs(file: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """The two columns of every row. Of a list of sentences in the source all are taken, of one in the target the first:
    there it means several answers to the same question."""
    for asked, answers in table_columns(file, source, target):
        answer = answers[0] if isinstance(answers, list) and answers else answers
        yield whole_text(asked), str(answer or "")


def table_texts(file: Path, column: str) -> Iterator[str]:
    """One column of every row, as the source of a pair is read."""
    for (text,) in table_columns(file, column):
        yield whole_text(text)


def whole_text(cell: Any) -> str:
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
                raise UserError(f"{file}, line {number:,} is not JSON that can be read: {error}") from None
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


def find(path: str, source: str, target: str, test: str = "") -> dict[str, PairFiles]:
    """Where train, valid and test lie. `test`: how the names of the test files begin, if not with `test`. Without a
    path, source and target are files."""
    if source == target:
        raise UserError(f"source and target are both '{source}'; name two files, two endings or two columns")
    place = Path(path).expanduser()
    if place.is_file():
        return shares(table(place, source, target))
    if place.exists():
        text_files.existing(place)  # not a device
    if not place.is_dir():
        stems = [place.with_name(f"{place.name}.{suffix}") for suffix in (source, target)]
        if all(stem.is_file() for stem in stems):
            return shares(PairFiles(stems[0], stems[1]))
        raise UserError(f"there is no file or folder {place}, nor {stems[0].name} and {stems[1].name} beside it")
    if (place / source).is_file() and (place / target).is_file():
        return shares(PairFiles(place / source, place / target))
    names = {**NAMES, "test": (test,) if test else NAMES["test"]}
    found = {split: at for split, begins in names.items() if (at := in_folder(place, begins, source, target))}
    if "train" not in found:
        raise no_pairs(place, source, target)
    if "valid" not in found:
        return {**found, **shares(found["train"], with_test="test" not in found)}
    return found


def is_file_name(name: str) -> bool:
    """Whether a source or a target is meant as a file, not as the ending of several or as a column."""
    return "." in name or "/" in name


def no_pairs(folder: Path, source: str, target: str) -> UserError:
    """What is missing in a folder. It is named in full: a path may have been meant from elsewhere."""
    for name in (source, target):
        file = folder / name
        if file.exists() and not file.is_file() and (is_file_name(name) or (folder / source).is_file()):
            what = "a folder" if file.is_dir() else "a device or a pipe"
            return UserError(f"{file.resolve()} is {what}, not a file; --task.source and --task.target name two files")
        if is_file_name(name) and not file.is_file():
            near = difflib.get_close_matches(file.name, [other.name for other in file.parent.glob("*")], 1, NEAR)
            return UserError(f"there is no file {file.resolve()}" + (f"; did you mean {near[0]}?" if near else ""))
    return UserError(
        f"{folder.resolve()} has no training pairs: it needs train.{source} and train.{target}, or train.jsonl, "
        f"train.csv or train.tsv with columns '{source}' and '{target}', or two files that --task.source and "
        f"--task.target name{lonely(folder)}"
    )


def lonely(folder: Path) -> str:
    """A hint at tables whose names say nothing of splits."""
    tables = sorted(file for file in folder.iterdir() if file.suffix in TABLES)
    return f"; or name one table alone, which is then split: --task.path {tables[0]}" if tables else ""


def find_all(path: str, source: str, target: str) -> dict[str, PairFiles]:
    """Other data than that of the training: valid and test where they are named so, otherwise everything as both."""
    place = Path(path).expanduser()
    if place.is_dir() and not (place / source).is_file():
        found = {split: at for split in ("valid", "test") if (at := in_folder(place, NAMES[split], source, target))}
        if found:
            return found
    whole = replace(find(path, source, target)["train"], share=(0.0, 1.0))
    return {"valid": whole, "test": whole}


def in_folder(folder: Path, begins: tuple[str, ...], source: str, target: str) -> PairFiles | None:
    """The one pair of files, or the one table, whose name begins so."""
    for begin in begins:
        for suffix in ("", ".gz"):
            stems = candidates(folder, begin, f".{source}{suffix}")
            if stems:
                one = only(stems, folder, begin)
                partner = one.with_name(one.name.removesuffix(f".{source}{suffix}") + f".{target}{suffix}")
                if not partner.is_file():
                    raise UserError(f"{one} has no partner {partner.name}")
                return PairFiles(one, partner)
        for suffix in TABLES:
            tables = candidates(folder, begin, suffix)
            if tables:
                return table(only(tables, folder, begin), source, target)
    return None


def candidates(folder: Path, begin: str, suffix: str) -> list[Path]:
    exact = folder / (begin + suffix)
    if exact.is_file():
        return [exact]
    return sorted(file for file in folder.glob(f"*{suffix}") if file.name.startswith(begin) and file.is_file())


def only(found: list[Path], folder: Path, begin: str) -> Path:
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise UserError(f"{folder} has several files that begin with '{begin}': {names}; task.test may name one")
    return found[0]


def table(file: Path, source: str, target: str) -> PairFiles:
    if file.suffix not in TABLES:
        raise UserError(
            f"{file} is no table ({', '.join(TABLES)}) and no folder; two files are named by "
            "--task.source FILE --task.target FILE, without --task.path"
        )
    return PairFiles(file, file, (source, target))


def shares(whole: PairFiles, with_test: bool = True) -> dict[str, PairFiles]:
    """A small share of the pairs for valid, one for test if there is no other, and the rest for training."""
    part = min(SHARE, MOST / max(1, count_lines(whole.source)))
    first = 2 * part if with_test else part
    found = {"train": replace(whole, share=(first, 1.0)), "valid": replace(whole, share=(0.0, part))}
    return {**found, "test": replace(whole, share=(part, first))} if with_test else found


@dataclass(frozen=True)
class Pairs:
    """Encoded pairs, memory-mapped: source 0, target 0, source 1, ... one after the other, each with its end."""

    ids: Array  # (n,)
    edges: Array  # (2 pairs + 1,): where each text begins, and the end of all
    kept: Array  # numbers of the pairs that are whole
    broken: dict[str, int]  # how many are not, and why

    @staticmethod
    def of(ids: Array, begins: Array, max_source_length: int, max_target_length: int) -> Pairs:
        edges = np.append(begins, len(ids))
        lengths = np.diff(edges).reshape(-1, 2) - 1  # without the end
        empty = (lengths == 0).any(1)
        long = ~empty & ((lengths[:, 0] > max_source_length) | (lengths[:, 1] > max_target_length))
        broken = {"empty": int(empty.sum()), "too long": int(long.sum())}
        return Pairs(ids, edges, np.flatnonzero(~(empty | long)), broken)

    def __len__(self) -> int:
        return len(self.kept)

    def lengths(self) -> Array:
        """Of source and target of every pair, their ends included: (pairs, 2)"""
        return np.diff(self.edges).reshape(-1, 2)[self.kept]

    def pair(self, number: int) -> tuple[Array, Array]:
        """Source and target, each with its end."""
        at = 2 * int(self.kept[number])
        first, middle, last = self.edges[at : at + 3]
        return self.ids[first:middle].astype(np.int64), self.ids[middle:last].astype(np.int64)
