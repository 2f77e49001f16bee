"""The one rule for output paths that a user names, checked by every command and function that writes to one.

- A file must be new, empty, or of the kind that is about to be written, so that the same command can be run again. The
  kind is recognized by the file's content, not by its name.
- A folder must be new or empty.
- Files of a run are never replaced, nor is anything that is not a regular file (a device, a pipe).
- One command never writes to the same path twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from safetensors import SafetensorError, safe_open

from stairwell.errors import UserError
from stairwell.files import check_regular, mode_of, parse_json, write_atomically, write_folder

HEAD = 4096  # bytes of a file that hold its mark
# What stairwell itself writes into a run folder, by any of its commands.
RUN_FILES = (
    "config.json", "metrics.jsonl", "model.safetensors", "task.json", "checkpoints", "snapshots", "tensorboard",
    "search.json", "horizon.json", "inside.json", "result.json", ".lock",
)  # fmt: skip

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Kind:
    """A kind of file that stairwell writes."""

    name: str  # with its article: "an ONNX model of stairwell"
    matches: Callable[[Path], bool]  # whether an existing file is one, by its content


FOLDER = None  # in place of a kind: the output is a folder


def check(path: AnyPath, kind: Kind | None, option: str = "") -> Path:
    """Return the path that is to be written, links resolved, or raise a UserError. `option` names it in errors."""
    name, place = f"{option} {path}".strip(), check_place(path, option)
    if kind is None:
        _check_folder(place, name)
    else:
        check_regular(path, name)
        if place.exists() and place.stat().st_size and not _is(kind, place):
            raise UserError(f"{name} exists and is not {kind.name}; choose another path, or move it away")
    return place


def check_place(path: AnyPath, option: str = "") -> Path:
    """The part of the rule that does not depend on what is to be written."""
    if not os.fspath(path):
        raise UserError(f"{option or 'the output path'} is empty; name a file or a folder")
    name, place = f"{option} {path}".strip(), Path(os.path.realpath(path))
    mode_of(path, name)
    _check_streams(path, name)
    _check_run(place, name)
    _check_parents(place, name)
    return place


def check_all(*outputs: tuple[str, AnyPath | None, Kind | None]) -> None:
    """Check every output of a command, each with its option, before any work is done; None was not asked for."""
    places = [(option, path, check(path, kind, option)) for option, path, kind in outputs if path is not None]
    for (option, path, place), (other, _, elsewhere) in combinations(places, 2):
        if place == elsewhere:
            raise UserError(f"{option} and {other} both name {path}; give each a path of its own")
        if place in elsewhere.parents or elsewhere in place.parents:
            raise UserError(f"of {option} and {other} one lies inside the other; give each a path of its own")


def write_output(path: AnyPath, kind: Kind, write: Callable[[Path], object]) -> None:
    """Check the path and write the file, whole or not at all; see `write_atomically`."""
    check(path, kind)
    write_atomically(path, write)


def write_output_folder(path: AnyPath, write: Callable[[Path], object]) -> None:
    """Check the path and write the folder, whole or not at all; see `write_folder`."""
    check(path, FOLDER)
    write_folder(path, write)


def marked(mark: bytes) -> Callable[[Path], bool]:
    """Whether a file has these bytes near its beginning."""

    def matches(path: Path) -> bool:
        with open(path, "rb") as file:
            return mark in file.read(HEAD)

    return matches


def has_format(name: str) -> Callable[[Path], bool]:
    """Whether a safetensors file says that it is of this format, of any version: `stairwell.state.2`."""

    def matches(path: Path) -> bool:
        try:
            with safe_open(path, framework="np") as file:
                return str((file.metadata() or {}).get("format", "")).startswith(f"{name}.")
        except SafetensorError:
            return False

    return matches


def has_keys(*keys: str) -> Callable[[Path], bool]:
    """Whether a file is a JSON object with these keys."""

    def matches(path: Path) -> bool:
        try:
            content = parse_json(path.read_bytes())
        except ValueError:
            return False
        return isinstance(content, dict) and content.keys() >= set(keys)

    return matches


def is_run(folder: Path) -> bool:
    """Whether a folder has a run's config. Other programs have a config.json too, but none with a format and a core."""
    config = folder / "config.json"
    try:
        return config.is_file() and has_keys("format", "core", "task", "train")(config)
    except OSError:
        return False


def _is(kind: Kind, place: Path) -> bool:
    try:
        return kind.matches(place)
    except OSError:
        return False


def _check_run(place: Path, name: str) -> None:
    for folder in (place, *place.parents):
        inside = place.relative_to(folder).parts
        if (not inside or inside[0] in RUN_FILES) and is_run(folder):
            what = f"belongs to the run {folder}" if inside else "is the folder of a run"
            raise UserError(f"{name} {what}; choose another path")


def _check_streams(path: AnyPath, name: str) -> None:
    """Refuse the standard streams, also where they are regular files: a file that takes the place of one loses what
    is printed to it."""
    for stream in (0, 1, 2):
        try:
            same = os.path.samestat(os.stat(path), os.fstat(stream))
        except OSError:  # the path is new, or the stream closed
            continue
        if same:
            raise UserError(f"{name} is the command's own input or output; choose another path")


def _check_parents(place: Path, name: str) -> None:
    there = next((folder for folder in place.parents if folder.exists()), place)  # the root has no parent
    if not there.is_dir():
        raise UserError(f"{name} cannot be written: {there} is not a folder; choose another path")
    if not all(os.access(path, os.W_OK) for path in (there, place) if path.exists()):
        raise UserError(f"{name} cannot be written: no permission; choose another path")


def _check_folder(place: Path, name: str) -> None:
    if place.exists() and not place.is_dir():
        raise UserError(f"{name} is a file, not a folder; choose a new folder")
    if place.exists() and any(place.iterdir()):
        raise UserError(f"{name} is not empty; choose a new folder or an empty one")
