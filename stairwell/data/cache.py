"""Encoded text on disk: memory-mapped ids, made once, so that a corpus never has to fit into memory.

The files lie in the platform's cache folder, or where the environment variable STAIRWELL_CACHE says. An entry is named
by a hash of everything it was made from: `KEY.ids.npy`, `KEY.begins.npy` (where documents begin) and, written last,
`KEY.json` with their checksums. A damaged or unfinished entry is made anew; the folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from stairwell.errors import UserError
from stairwell.files import parse_json, write_atomically, write_text

Array = NDArray[Any]
VERSION = 2  # of the cache: raise it when the same text would be encoded otherwise


def key_of(*ingredients: object) -> str:
    return hashlib.blake2b(json.dumps([VERSION, *ingredients]).encode(), digest_size=16).hexdigest()


def cache_folder() -> Path:
    if chosen := os.environ.get("STAIRWELL_CACHE"):
        return Path(chosen).expanduser()
    return user_cache_path("stairwell", appauthor=False)


def writable_cache() -> Path:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the cache {folder} ({error}); STAIRWELL_CACHE may name another") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"the cache {folder} cannot be written; STAIRWELL_CACHE may name another")
    return folder


def cached(key: str, symbols: int, encode: Callable[[], Iterable[tuple[Array, bool]]]) -> tuple[Array, Array]:
    """The ids (n,) and document begins (documents,) of the entry `key`. If it is missing or damaged, `encode` makes it:
    ids below `symbols`, stretch by stretch, and whether a document begins there."""
    folder = writable_cache()
    entry = _open(folder, key)
    if entry is None:
        try:
            _write(folder, key, symbols, encode)
        except OSError as error:
            if error.filename and Path(error.filename).parent != folder:  # it is about the text
                raise
            why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise OSError(f"{why}; STAIRWELL_CACHE may name another folder for encoded text") from None
        entry = _open(folder, key)
    if entry is None:
        raise UserError(f"the cache {folder} does not keep what is written to it; STAIRWELL_CACHE may name another")
    return entry


def _write(folder: Path, key: str, symbols: int, encode: Callable[[], Iterable[tuple[Array, bool]]]) -> None:
    begins = array("q")
    checksums = {}

    def write_ids(path: Path) -> None:
        # The smallest type that holds the ids keeps the files small.
        dtype = np.uint8 if symbols <= 1 << 8 else np.uint16 if symbols <= 1 << 16 else np.uint32
        length, starting = 0, False
        with open(path, "wb") as file:
            _write_header(file, dtype, 0)
            for ids, start in encode():
                starting |= start  # an empty document begins nothing
                if len(ids):
                    if starting:
                        begins.append(length)
                    file.write(ids.astype(dtype).data)
                    length, starting = length + len(ids), False
            file.seek(0)
            _write_header(file, dtype, length)
        checksums["ids"] = _checksum(np.load(path, mmap_mode="r"))

    write_atomically(folder / f"{key}.ids.npy", write_ids)
    positions = np.array(begins, np.int64)
    checksums["begins"] = _checksum(positions)
    write_atomically(folder / f"{key}.begins.npy", lambda path: _save(path, positions))
    write_text(folder / f"{key}.json", json.dumps(checksums))


def _write_header(file: Any, dtype: Any, length: int) -> None:
    # numpy leaves room in the header for any length, so that the final one can take the place of the first.
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, description)


def _save(path: Path, values: Array) -> None:
    with open(path, "wb") as file:
        np.save(file, values)


def _open(folder: Path, key: str) -> tuple[Array, Array] | None:
    try:
        checksums = parse_json((folder / f"{key}.json").read_bytes())
        ids = np.load(folder / f"{key}.ids.npy", mmap_mode="r", allow_pickle=False)
        begins = np.load(folder / f"{key}.begins.npy", allow_pickle=False)
        if _checksum(ids) != checksums["ids"] or _checksum(begins) != checksums["begins"]:
            return None
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None
    return ids, begins


def _checksum(values: Array) -> int:
    checksum = 0
    for begin in range(0, len(values), 1 << 20):
        checksum = zlib.crc32(values[begin : begin + (1 << 20)].tobytes(), checksum)
    return checksum
