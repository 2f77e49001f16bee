"""Encoded text on disk: memory-mapped token ids, encoded once, so a corpus does not have to fit into memory.

The files are in the platform's cache folder, or in the folder of the environment variable STAIRWELL_CACHE. An entry is
named by a hash of everything it was made from: `KEY.ids.npy`, `KEY.starts.npy` (where documents start) and, written
last, `KEY.json` with their checksums. A damaged or unfinished entry is replaced; the folder may be deleted at any time.
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
Encode = Callable[[], Iterable[tuple[Array, bool]]]  # token ids in slices, and whether a document starts there
VERSION = 3  # of the cache; raise it when the same text would be encoded differently


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
        raise UserError(f"cannot create the cache {folder} ({error}); set STAIRWELL_CACHE to another folder") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"the cache {folder} is not writable; set STAIRWELL_CACHE to another folder")
    return folder


def cached(key: str, vocabulary_size: int, encode: Encode) -> tuple[Array, Array]:
    """Return the token ids (n,) and document starts (documents,) of the entry `key`; call `encode` if it is missing or
    damaged."""
    folder = writable_cache()
    entry = _open(folder, key)
    if entry is None:
        try:
            _write(folder, key, vocabulary_size, encode)
        except OSError as error:
            if error.filename and Path(error.filename).parent != folder:  # the text cannot be read
                raise
            reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise OSError(f"{reason}; set STAIRWELL_CACHE to another folder for encoded text") from None
        entry = _open(folder, key)
    if entry is None:
        raise UserError(f"the cache {folder} does not keep its files; set STAIRWELL_CACHE to another folder")
    return entry


def _write(folder: Path, key: str, vocabulary_size: int, encode: Encode) -> None:
    starts = array("q")
    checksums = {}

    def write_ids(path: Path) -> None:
        # The smallest type that holds the ids keeps the files small.
        dtype = np.uint8 if vocabulary_size <= 1 << 8 else np.uint16 if vocabulary_size <= 1 << 16 else np.uint32
        length, at_start = 0, False
        with open(path, "wb") as file:
            _write_header(file, dtype, 0)
            for ids, start in encode():
                at_start |= start  # an empty document has no start
                if len(ids):
                    if at_start:
                        starts.append(length)
                    file.write(ids.astype(dtype).data)
                    length, at_start = length + len(ids), False
            file.seek(0)
            _write_header(file, dtype, length)
        checksums["ids"] = _checksum(np.load(path, mmap_mode="r"))

    write_atomically(folder / f"{key}.ids.npy", write_ids)
    positions = np.array(starts, np.int64)
    checksums["starts"] = _checksum(positions)
    write_atomically(folder / f"{key}.starts.npy", lambda path: _save(path, positions))
    write_text(folder / f"{key}.json", json.dumps(checksums))


def _write_header(file: Any, dtype: Any, length: int) -> None:
    # numpy pads the header, so the final length can replace the first one in place.
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, description)


def _save(path: Path, values: Array) -> None:
    with open(path, "wb") as file:  # np.save of a path would append .npy to its name
        np.save(file, values)


def _open(folder: Path, key: str) -> tuple[Array, Array] | None:
    try:
        checksums = parse_json((folder / f"{key}.json").read_bytes())
        ids = np.load(folder / f"{key}.ids.npy", mmap_mode="r", allow_pickle=False)
        starts = np.load(folder / f"{key}.starts.npy", allow_pickle=False)
        if _checksum(ids) != checksums["ids"] or _checksum(starts) != checksums["starts"]:
            return None
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None
    return ids, starts


def _checksum(values: Array) -> int:
    checksum = 0
    for first in range(0, len(values), 1 << 20):
        checksum = zlib.crc32(values[first : first + (1 << 20)].tobytes(), checksum)
    return checksum
