"""Text files, read in blocks, so a corpus may be larger than memory. Files ending in `.gz` are decompressed while they
are read; a byte-order mark at the start of a text is skipped."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from stairwell.errors import UserError

BLOCK = 1 << 18  # bytes per read where no text is encoded
TEXT_BLOCK = 1 << 20  # approximate bytes per encoded block
MAX_LINE = 1 << 24  # bytes after which a block ends even without a line feed or a space

_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


@dataclass(frozen=True)
class FileSlice:
    """Bytes `start` to `end` of a file: a document, or one split's share of it."""

    file: Path
    start: int
    end: int


FileSlices = tuple[FileSlice, ...]


def existing_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder; raise if there is none."""
    existing = Path(path).expanduser()
    if not existing.exists():
        raise UserError(f"there is no file or folder {existing}")
    if not existing.is_file() and not existing.is_dir():
        raise UserError(f"{existing} is neither a file nor a folder but a device or a pipe; copy it to a file first")
    return existing


def whole_file(file: Path) -> FileSlice:
    return FileSlice(file, 0, uncompressed_size(file))


def uncompressed_size(file: Path) -> int:
    """Return the size in bytes, of a gzip file after decompression."""
    if file.suffix != ".gz":
        return file.stat().st_size
    with open_file(file, compressed=True) as content:
        return sum(len(block) for block in iter(lambda: content.read(BLOCK), b""))


@contextmanager
def open_file(file: Path, compressed: bool) -> Iterator[IO[bytes]]:
    """Open a file for reading, and decompress it if it is a gzip file."""
    try:
        with gzip.open(file, "rb") if compressed else open(file, "rb") as content:
            yield cast(IO[bytes], content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file} is not a complete gzip file: {error}") from error


def is_gzip(file: Path) -> bool:
    """Return whether the file starts as gzip files do, whatever its name."""
    with open(file, "rb") as content:
        return content.read(2) == b"\x1f\x8b"


def read_bytes(file: Path, start: int, end: int) -> bytes:
    with open_file(file, file.suffix == ".gz") as content:
        content.seek(start)
        return content.read(end - start)


def read_blocks(part: FileSlice) -> Iterator[bytes]:
    """Yield the bytes of a slice, TEXT_BLOCK at a time."""
    with open_file(part.file, part.file.suffix == ".gz") as file:
        file.seek(part.start)
        remaining = part.end - part.start
        while remaining:
            block = file.read(min(TEXT_BLOCK, remaining))
            if not block:
                raise UserError(f"{part.file} became shorter while it was read")
            remaining -= len(block)
            yield block


def text_blocks(part: FileSlice) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a slice and their offset, about a megabyte at a time. A block ends after a line feed if it
    can, otherwise before a single space, so no word is split."""
    start, rest = part.start, b""
    for block in read_blocks(part):
        rest += block
        if end := _last_break(rest):
            yield start, rest[:end]
            start, rest = start + end, rest[end:]
    if rest:
        yield start, rest


def read_texts(parts: Iterable[FileSlice], advice: str) -> Iterator[str]:
    """Yield the text of slices in blocks. Raise if it is not UTF-8; `advice` is the end of that message."""
    for part in parts:
        for start, data in text_blocks(part):
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{part.file} is not UTF-8 text: byte 0x{data[error.start]:02x} at position "
                    f"{start + error.start:,}; {advice}"
                ) from error
            yield text if start else text.removeprefix("\ufeff")


def digest(parts: Iterable[FileSlice]) -> str:
    """Return a hash of the contents and the sizes of slices."""
    content = hashlib.blake2b(digest_size=20)
    for part in parts:
        content.update(f"{part.end - part.start}:".encode())
        for block in read_blocks(part):
            content.update(block)
    return content.hexdigest()


def _last_break(data: bytes) -> int:
    """Return where a block may end: after the last line feed, or before the last single space; 0 to read on."""
    line = data.rfind(b"\n") + 1
    if line or len(data) < TEXT_BLOCK:
        return line
    codes = np.frombuffer(data, np.uint8)
    space = _IS_SPACE[codes]
    single = np.flatnonzero((codes[1:-1] == ord(" ")) & ~space[:-2] & ~space[2:])
    if len(single):
        return int(single[-1]) + 1
    if len(data) < MAX_LINE:
        return 0
    # The last character may be incomplete: leave it to the next block. Binary data has no such character.
    for back in range(1, 5):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back
    return len(data)
