"""Files and folders are written whole or not at all; JSON and small files are read without surprises."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from stairwell.errors import UserError

NAMED = 40  # characters of a name that its temporary file repeats: the longer name must be allowed too
HALF_PAIRS = re.compile(r"\\u[dD][89a-fA-F]")  # where a JSON text may hold half of a surrogate pair
OS_ERROR = re.compile(r"os error (\d+)")
SMALL = 1 << 24  # bytes of a file that is read as a whole


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let `write(temporary path)` make a file and move it to `path` only once it is safely on the disk.

    Whoever reads `path`, also after a crash or on a full disk, finds the old file or the new one, never a part. A
    symbolic link stays a link, as with `open`; a device or a pipe is refused: moving a file there would remove it.
    """
    place = Path(os.path.realpath(path))
    check_regular(path)
    with _temporary(path, place, tempfile.mkstemp) as name:
        temporary = Path(name)
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o666 & ~_umask())
        os.replace(temporary, place)
    _sync(place.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_folder(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let `write(temporary folder)` fill a folder that takes its place at `path`, which is new or empty, only once it
    is whole."""
    place = Path(os.path.realpath(path))
    with _temporary(path, place, tempfile.mkdtemp) as name:
        temporary = Path(name)
        write(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb+") as content:
                    os.fsync(content.fileno())
        if place.exists():  # an empty folder may be someone's current one: it stays, and is filled
            if any(place.iterdir()):  # someone else was faster
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
            for child in temporary.iterdir():
                os.rename(child, place / child.name)
        else:
            temporary.chmod(0o777 & ~_umask())
            os.rename(temporary, place)
    _sync(place.parent)


def check_regular(path: str | os.PathLike[str], name: str = "") -> None:
    """Refuse what is neither a regular file nor missing; `name` is how errors call it."""
    name = name or os.fspath(path)
    mode = mode_of(path, name)
    if mode is not None and stat.S_ISDIR(mode):
        raise UserError(f"{name} is a folder, not a file; choose another path")
    if mode is not None and not stat.S_ISREG(mode):
        raise UserError(f"{name} is not a regular file but a device or a pipe; choose another path")


def mode_of(path: str | os.PathLike[str], name: str) -> int | None:
    """What a path leads to, or None if it is missing. As it is given: that of a standard stream has no other."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # too long a name, a link to itself
        raise UserError(f"{name} cannot be written: {error.strerror}; choose another path") from None


def read_small(path: str | os.PathLike[str]) -> bytes:
    """The content of a file, or of a pipe, that must be small: a device may have no end."""
    with open(path, "rb") as file:
        content = file.read(SMALL + 1)
    if len(content) > SMALL:
        raise UserError(f"{path} is larger than {SMALL >> 20} MiB, so it is another file than was meant; name another")
    return content


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text. What is nested too deeply, or holds half of a surrogate pair, which cannot be written
    as UTF-8, is a ValueError like everything else that is not JSON."""
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if HALF_PAIRS.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):x}"
            raise ValueError(f"{half} is half of a surrogate pair, which is not a character") from None
    return value


@contextmanager
def _temporary(path: str | os.PathLike[str], place: Path, make: Callable[..., object]) -> Iterator[str]:
    """The name of a new file or folder beside `place`, which is removed at the end unless it was moved. Errors name
    `path`: a full disk does not say what could not be written, and the temporary's name helps nobody."""
    name = ""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = make(dir=place.parent, prefix=f".{place.name[:NAMED]}.", suffix=".tmp")
        if isinstance(made, tuple):  # mkstemp opens the file, mkdtemp only makes the folder
            os.close(made[0])
            made = made[1]
        name = str(made)
        yield name
    except Exception as error:
        # Libraries in Rust raise errors of the system in types of their own.
        if isinstance(error, OSError | SafetensorError) or OS_ERROR.search(str(error)):
            raise _named(error, path, name) from None
        raise
    finally:
        if name:
            shutil.rmtree(name, ignore_errors=True) if os.path.isdir(name) else Path(name).unlink(missing_ok=True)


def _named(error: Exception, path: str | os.PathLike[str], temporary: str) -> Exception:
    """The error with the path that was to be written. One about another file, such as one that was read, stays."""
    about = getattr(error, "filename", None)
    if about is not None and not os.fspath(about).startswith(temporary or os.fspath(about)):
        return error
    number = getattr(error, "errno", None)
    if number is None and (written := OS_ERROR.search(str(error))):
        number = int(written[1])
    return OSError(number, os.strerror(number), os.fspath(path)) if number else OSError(f"{path}: {error}")


def _umask() -> int:
    """mkstemp and mkdtemp make what only its owner can read; a plain open() would have given more."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _sync(folder: Path) -> None:
    """The new name itself must survive a power cut."""
    if os.name == "nt":  # Windows opens no folders
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
