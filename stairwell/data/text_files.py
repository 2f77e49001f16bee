"""Files of text, read in pieces, so that a corpus may be larger than the memory. Files ending in `.gz` are unpacked on
the way; a byte-order mark at the beginning of a text is no part of it."""

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

BLOCK = 1 << 18  # bytes that are read at once where it matters little
PIECE = 1 << 20  # bytes that are encoded at once, about
LONGEST_LINE = 1 << 24  # bytes after which a piece ends even without a line edge or a space

_WHITE = np.isin(np.arange(256), list(b" \t\n\r\v\f"))  # which bytes are white space


@dataclass(frozen=True)
class Part:
    """Bytes `begin` to `end` of a file: a document, or a split's share of one."""

    file: Path
    begin: int
    end: int


Parts = tuple[Part, ...]


def existing(path: str | os.PathLike[str]) -> Path:
    place = Path(path).expanduser()
    if not place.exists():
        raise UserError(f"there is no file or folder {place}")
    if not place.is_file() and not place.is_dir():
        raise UserError(f"{place} is neither a file nor a folder but a device or a pipe; copy it to a file first")
    return place


def whole(file: Path) -> Part:
    return Part(file, 0, size_of(file))


def size_of(file: Path) -> int:
    """In bytes, unpacked."""
    if file.suffix != ".gz":
        return file.stat().st_size
    with opened(file, packed=True) as unpacked:
        return sum(len(block) for block in iter(lambda: unpacked.read(BLOCK), b""))


@contextmanager
def opened(file: Path, packed: bool) -> Iterator[IO[bytes]]:
    """A file's content, unpacked if it is a gzip file."""
    try:
        with gzip.open(file, "rb") if packed else open(file, "rb") as content:
            yield cast(IO[bytes], content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file} is not a whole gzip file: {error}") from error


def looks_packed(file: Path) -> bool:
    """Whether it begins as gzip files do, whatever its name."""
    with open(file, "rb") as content:
        return content.read(2) == b"\x1f\x8b"


def read(file: Path, begin: int, end: int) -> bytes:
    with opened(file, file.suffix == ".gz") as content:
        content.seek(begin)
        return content.read(end - begin)


def blocks(part: Part) -> Iterator[bytes]:
    """The bytes of a part, PIECE of them at a time."""
    with opened(part.file, part.file.suffix == ".gz") as file:
        file.seek(part.begin)
        left = part.end - part.begin
        while left:
            block = file.read(min(PIECE, left))
            if not block:
                raise UserError(f"{part.file} became shorter while it was read")
            left -= len(block)
            yield block


def pieces(part: Part) -> Iterator[tuple[int, bytes]]:
    """The bytes of a part and where they begin, about a megabyte at a time. A piece ends after a line end if it can,
    otherwise before a single space, so that no word is cut."""
    begin, rest = part.begin, b""
    for block in blocks(part):
        rest += block
        if edge := _last_edge(rest):
            yield begin, rest[:edge]
            begin, rest = begin + edge, rest[edge:]
    if rest:
        yield begin, rest


def texts(parts: Iterable[Part], advice: str) -> Iterator[str]:
    """The text of parts, piece by piece. It must be UTF-8; `advice` says what to do if it is not."""
    for part in parts:
        for begin, data in pieces(part):
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{part.file} is not UTF-8 text: byte 0x{data[error.start]:02x} at position "
                    f"{begin + error.start:,}; {advice}"
                ) from error
            yield text if begin else text.removeprefix("\ufeff")


def digest(parts: Iterable[Part]) -> str:
    """A hash of what the parts hold and where one ends and the next begins."""
    content = hashlib.blake2b(digest_size=20)
    for part in parts:
        content.update(f"{part.end - part.begin}:".encode())
        for block in blocks(part):
            content.update(block)
    return content.hexdigest()


def _last_edge(data: bytes) -> int:
    """Where a piece may end: after the last line end, or before the last single space; 0 if it should go on."""
    line = data.rfind(b"\n") + 1
    if line or len(data) < PIECE:
        return line
    codes = np.frombuffer(data, np.uint8)
    white = _WHITE[codes]
    single = np.flatnonzero((codes[1:-1] == ord(" ")) & ~white[:-2] & ~white[2:])
    if len(single):
        return int(single[-1]) + 1
    if len(data) < LONGEST_LINE:
        return 0
    # The last character may be only half read: leave it to the next piece. Bytes that are no text have no such edge.
    for back in range(1, 5):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back
    return len(data)
