"""Splits of text data: which bytes of which files are train, valid and test.

- Files with their split in their names (`ptb.char.train.txt`, `wiki.valid.tokens`, `test.txt`) keep it.
- A file of exactly 100,000,000 bytes (enwik8, text8) is split after 90 and 95 million bytes, as is customary.
- Any other file is split after 90% and 95% of its bytes, each time at the next line feed (or space, or character if
  there is no line feed).
- A folder of 20 files or more is split into whole files, in the order of a hash of their names: 5% valid, 5% test.
  With fewer files, each of them is split like a single one.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from pathlib import Path

from stairwell.data.text_files import (
    FileSlice,
    FileSlices,
    existing_path,
    read_bytes,
    text_blocks,
    uncompressed_size,
    whole_file,
)
from stairwell.errors import UserError
from stairwell.outputs import is_run

STDLIB = "stdlib"
ENWIK8_SIZE = 100_000_000
MIN_FILES = 20  # with fewer files, each one is split

_SPLIT_WORDS = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
_SPLIT_IN_NAME = re.compile(rf"(?:^|(?<=[._-]))({'|'.join(_SPLIT_WORDS)})(?=[._-]|$)", re.IGNORECASE)


Splits = dict[str, FileSlices]


def find_splits(path: str, prefix: str = "", files: str = "*", whole_characters: bool = True) -> Splits:
    """Return the slices of every split. `prefix` selects one of several corpora of a folder, `files` is a glob pattern
    for the files of a folder. Without `whole_characters`, the split of enwik8 may fall inside a character."""
    if path == STDLIB:
        return _split_files(_standard_library(), Path(sysconfig.get_paths()["stdlib"]))
    location = _existing_path(path)
    if location.is_file():
        return _split_file(location, whole_characters)
    if named := _named_splits(location, prefix):
        return {split: (whole_file(named[split]),) for split in ("train", "valid", "test") if split in named}
    if prefix:
        raise UserError(f"{location} has no train and valid files that start with {prefix!r}")
    return _split_files(_matching_files(location, files), location)


def find_evaluation_splits(path: str, prefix: str = "", files: str = "*") -> Splits:
    """Return the valid and test files of a folder that has them; otherwise all data is both valid and test."""
    if path == STDLIB:
        everything = _standard_library()
    else:
        location = _existing_path(path)
        if location.is_dir() and (named := _named_splits(location, prefix)):
            return {split: (whole_file(file),) for split, file in named.items() if split != "train"}
        everything = [location] if location.is_file() else _matching_files(location, files)
    parts = tuple(whole_file(file) for file in everything)
    return {"valid": parts, "test": parts}


def _existing_path(path: str) -> Path:
    if not path:
        raise UserError(f"no path is given; it must name a text file, a folder, or {STDLIB!r}")
    return existing_path(path)


def _split_file(file: Path, whole_characters: bool) -> Splits:
    size = uncompressed_size(file)
    if size == 0:
        raise UserError(f"{file} is empty")
    first, second = size * 90 // 100, size * 95 // 100
    if size != ENWIK8_SIZE:
        first, second = _next_break(file, first, second), _next_break(file, second, size)
    elif whole_characters:
        first, second = _next_character(file, first, second), _next_character(file, second, size)
    return {
        "train": (FileSlice(file, 0, first),),
        "valid": (FileSlice(file, first, second),),
        "test": (FileSlice(file, second, size),),
    }


def _next_break(file: Path, offset: int, limit: int) -> int:
    """Return the first line start from `offset` on and before `limit`; if there is none, the first space or
    character."""
    if offset == 0 or offset >= limit:
        return offset
    space = None
    # A line feed just before `offset` makes `offset` a line start; one just before `limit` would leave nothing.
    for start, data in text_blocks(FileSlice(file, offset - 1, limit - 1)):
        line_feed = data.find(b"\n")
        if line_feed >= 0:
            return start + line_feed + 1
        if space is None and (position := data.find(b" ", max(offset - start, 0))) >= 0:
            space = start + position
    return space if space is not None else _next_character(file, offset, limit)


def _next_character(file: Path, offset: int, limit: int) -> int:
    following = read_bytes(file, offset, min(offset + 4, limit))
    # In UTF-8 the bytes 10xxxxxx continue a character.
    inside = 0
    while inside < len(following) and following[inside] & 0xC0 == 0x80:
        inside += 1
    return offset + inside if inside < len(following) else offset


def _named_splits(folder: Path, prefix: str) -> dict[str, Path]:
    """Return the files of the one corpus whose file names contain their split; empty if there is none."""
    corpora: dict[tuple[str, str], dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        matches = list(_SPLIT_IN_NAME.finditer(file.name))
        if not matches or not file.is_file() or file.name.startswith("."):
            continue
        match = matches[-1]
        split = _SPLIT_WORDS[match[0].lower()]
        corpus = corpora.setdefault((file.name[: match.start()], file.name[match.end() :]), {})
        if split in corpus:
            raise UserError(f"{folder} has two {split} files, {corpus[split].name} and {file.name}; remove one")
        corpus[split] = file
    corpora = {ends: corpus for ends, corpus in corpora.items() if "train" in corpus and len(corpus) > 1}
    prefixes = [before.rstrip("._-") for before, _ in corpora]
    # A corpus is named by what precedes the split, or by its whole pattern if that is empty or ambiguous.
    by_name = {
        name if name and prefixes.count(name) == 1 else f"{before}*{after}": corpus
        for name, ((before, after), corpus) in zip(prefixes, corpora.items())
    }
    choices = ", ".join(repr(name) for name in by_name)
    chosen = [corpus for name, corpus in by_name.items() if prefix in ("", name)]
    if by_name and not chosen:
        raise UserError(f"{folder} has no corpus {prefix!r}; prefix must be one of {choices}")
    if len(chosen) > 1:
        raise UserError(f"{folder} has several corpora; prefix must be one of {choices}")
    if not chosen:
        return {}
    (corpus,) = chosen
    if "valid" not in corpus:
        raise UserError(f"{folder} has {corpus['train'].name} and {corpus['test'].name} but no valid file")
    return corpus


def _matching_files(folder: Path, pattern: str) -> list[Path]:
    """Return every file below a folder that matches and is neither hidden nor empty. Of several links to a file, the
    first that is not symbolic is returned. Run folders are left out: a run may be inside the folder of its corpus."""
    files: dict[tuple[int, int], Path] = {}
    runs = {config.parent for config in folder.rglob("*/config.json") if is_run(config.parent)}
    for file in sorted(folder.rglob("*"), key=lambda file: (file.is_symlink(), file)):
        name = file.relative_to(folder)
        if not runs.isdisjoint(file.parents):
            continue
        if name.match(pattern) and file.is_file() and not any(part.startswith(".") for part in name.parts):
            status = file.stat()
            if status.st_size > 0:
                files.setdefault((status.st_dev, status.st_ino), file)
    if not files:
        raise UserError(f"{folder} has no file that matches {pattern!r} and is not empty")
    return sorted(files.values())


def _standard_library() -> list[Path]:
    """Return the modules of the running Python's standard library, without tests and installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    excluded = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
    modules = []
    for file in sorted(root.rglob("*.py")):
        if excluded.isdisjoint(file.relative_to(root).parts) and file.stat().st_size > 0:
            try:
                file.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
            modules.append(file)
    if not modules:
        raise UserError(f"the sources of the standard library are not installed in {root}")
    return modules


def _split_files(files: list[Path], folder: Path) -> Splits:
    """Split a list of whole files by a hash of their names, so that neighbors fall into different splits. If there are
    few, split each of them."""
    if len(files) < MIN_FILES:
        by_file = [_split_file(file, whole_characters=True) for file in files]
        return {split: tuple(part for own in by_file for part in own[split]) for split in ("train", "valid", "test")}

    def name_hash(file: Path) -> bytes:
        return hashlib.blake2b(file.relative_to(folder).as_posix().encode()).digest()

    held_out = len(files) // 20
    shuffled = sorted(files, key=name_hash)
    splits = {
        "train": shuffled[2 * held_out :],
        "valid": shuffled[:held_out],
        "test": shuffled[held_out : 2 * held_out],
    }
    return {split: tuple(whole_file(file) for file in sorted(chosen)) for split, chosen in splits.items()}
