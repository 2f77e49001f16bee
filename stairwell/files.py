"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let `write(temporary path)` make a file and move it to `path` only once it is safely on the disk.

    Whoever reads `path`, also after a crash or on a full disk, finds the old file or the new one, never a part.
    """
    path = Path(path)
    try:
        _write_atomically(path, write)
    except OSError as error:
        # A full disk says neither what could not be written nor where; the temporary's name helps nobody.
        raise OSError(error.errno, error.strerror, str(path)) if error.errno else error from None


def _write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read; give them what a plain open() would have given.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "nt":  # Windows opens no folders
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself must survive a power cut
    finally:
        os.close(folder)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
