"""Writing files and folders atomically; reading JSON and small files safely."""

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

AnyPath = str | os.PathLike[str]
MAX_PREFIX = 40  # characters of a file's name in the name of its temporary file, so that it does not become too long
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # possibly half of a surrogate pair in a JSON text
OS_ERROR = re.compile(r"os error (\d+)")
MAX_SMALL_FILE = 1 << 24  # bytes


def write_atomically(path: AnyPath, write: Callable[[Path], object]) -> None:
    """Let `write(temporary path)` write a file, and move it to `path` once it is on the disk.

    A reader of `path` finds the old file or the new one, never a part, even after a crash or on a full disk. A symbolic
    link stays a link, as with `open`. A device or a pipe is rejected, because moving a file there would remove it.
    """
    target = Path(os.path.realpath(path))
    check_regular(path)
    with _temporary(path, target, tempfile.mkstemp) as name:
        temporary = Path(name)
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask())
        os.replace(temporary, target)
    _sync_folder(target.parent)


def write_text(path: AnyPath, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_folder(path: AnyPath, write: Callable[[Path], object]) -> None:
    """Let `write(temporary folder)` fill a folder, and move it to `path`, new or empty, once it is complete."""
    target = Path(os.path.realpath(path))
    with _temporary(path, target, tempfile.mkdtemp) as name:
        temporary = Path(name)
        write(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb+") as content:
                    os.fsync(content.fileno())
        if target.exists():  # an empty folder may be a process's current one, so it is filled and not replaced
            if any(target.iterdir()):  # another process was faster
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
            for child in temporary.iterdir():
                os.rename(child, target / child.name)
        else:
            temporary.chmod(0o777 & ~_umask())
            os.rename(temporary, target)
    _sync_folder(target.parent)


def check_regular(path: AnyPath, name: str = "") -> None:
    """Reject a path that exists and is not a regular file; `name` is its name in errors."""
    name = name or os.fspath(path)
    mode = file_mode(path, name)
    if mode is not None and stat.S_ISDIR(mode):
        raise UserError(f"{name} is a folder, not a file; choose another path")
    if mode is not None and not stat.S_ISREG(mode):
        raise UserError(f"{name} is not a regular file but a device or a pipe; choose another path")


def check_access(path: AnyPath, name: str, advice: str) -> None:
    """Reject a path without write permission. A read-only file system is an error of the system, not of the user."""
    if os.access(path, os.W_OK):
        return
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
    raise UserError(f"{name} cannot be written: no permission; {advice}")


def file_mode(path: AnyPath, name: str) -> int | None:
    """Return the mode of a file, or None if it does not exist. The path is not resolved: /dev/stdout has no other."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # the name is too long, or a link leads to itself
        raise UserError(f"{name} cannot be written: {error.strerror}; choose another path") from None


def read_small_file(path: AnyPath) -> bytes:
    """Return the content of a file or pipe. A large one is rejected: a device may never end."""
    with open(path, "rb") as file:
        content = file.read(MAX_SMALL_FILE + 1)
    if len(content) > MAX_SMALL_FILE:
        raise UserError(
            f"{path} is larger than {MAX_SMALL_FILE >> 20} MiB, so it is not the expected file; name another"
        )
    return content


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text. Raise ValueError for invalid JSON, and also for deep nesting, duplicate keys and
    half surrogate pairs, which cannot be written as UTF-8."""
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):x}"
            raise ValueError(f"{half} is half of a surrogate pair, which is not a character") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key '{key}' occurs twice")
        value[key] = item
    return value


@contextmanager
def _temporary(path: AnyPath, target: Path, make: Callable[..., object]) -> Iterator[str]:
    """Make a temporary file or folder next to `target` and return its name; remove it at the end unless it was moved.
    Errors name `path`: a full disk does not say what could not be written, and the temporary name does not help."""
    name = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = make(dir=target.parent, prefix=f".{target.name[:MAX_PREFIX]}.", suffix=".tmp")
        if isinstance(made, tuple):  # mkstemp also opens the file
            os.close(made[0])
            made = made[1]
        name = str(made)
        yield name
    except Exception as error:
        # Libraries in Rust raise errors of the system as their own types.
        if isinstance(error, OSError | SafetensorError) or OS_ERROR.search(str(error)):
            raise _with_path(error, path, name) from None
        raise
    finally:
        if name:
            shutil.rmtree(name, ignore_errors=True) if os.path.isdir(name) else Path(name).unlink(missing_ok=True)


def _with_path(error: Exception, path: AnyPath, temporary: str) -> Exception:
    """Return the error with the path that was to be written. An error about another file, such as an input, stays."""
    filename = getattr(error, "filename", None)
    if filename is not None and not os.fspath(filename).startswith(temporary or os.fspath(filename)):
        return error
    number = getattr(error, "errno", None)
    if number is None and (match := OS_ERROR.search(str(error))):
        number = int(match[1])
    return OSError(number, os.strerror(number), os.fspath(path)) if number else OSError(f"{path}: {error}")


def _umask() -> int:
    """Return the umask, to give files the permissions of open(). mkstemp and mkdtemp give them to the owner only."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a new name in it survives a power failure."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
