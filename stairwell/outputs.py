"""Rules for output paths, checked by every command and function that writes to a user-supplied path.

- A file must be new, empty, or of the type that is about to be written, so that a command can be repeated. The type is
  recognized by the file's content, not by its name.
- A folder must be new or empty.
- Files of a run, devices and pipes are never replaced.
- A command never writes to the same path twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from safetensors import SafetensorError, safe_open

from stairwell.errors import UserError
from stairwell.files import (
    AnyPath,
    check_access,
    check_regular,
    file_mode,
    parse_json,
    write_atomically,
    write_folder,
)

HEADER_BYTES = 4096  # number of leading bytes searched for the signature of a file type
# What stairwell itself writes to a run folder.
RUN_FILES = (
    "config.json", "metrics.jsonl", "model.safetensors", "task.json", "checkpoints", "snapshots", "tensorboard",
    "search.json", "horizon.json", "memory_analysis.json", "result.json", "test_scores.json", ".lock",
)  # fmt: skip


@dataclass(frozen=True)
class OutputType:
    """A type of file that stairwell writes."""

    name: str  # with its article: "an ONNX model of stairwell"
    matches: Callable[[Path], bool]  # whether an existing file is of this type, by its content


FOLDER = None  # in place of an OutputType: the output is a folder


def check(path: AnyPath, output_type: OutputType | None, option: str = "") -> Path:
    """Return the resolved output path, or raise a UserError. `option` names the path in errors."""
    name, target = f"{option} {path}".strip(), check_location(path, option)
    if output_type is None:
        _check_folder(target, name)
    else:
        check_regular(path, name)
        if target.exists() and target.stat().st_size and not _is_of_type(output_type, target):
            raise UserError(f"{name} exists and is not {output_type.name}; choose another path, or move it away")
    return target


def check_location(path: AnyPath, option: str = "") -> Path:
    """Check the rules that do not depend on the type of the output, and return the resolved path."""
    if not os.fspath(path):
        raise UserError(f"{option or 'the output path'} is empty; name a file or a folder")
    name, target = f"{option} {path}".strip(), Path(os.path.realpath(path))
    file_mode(path, name)  # raises a UserError for a name that is too long, or a link to itself
    _check_standard_streams(path, name)
    _check_run(target, name)
    _check_parents(target, name)
    return target


def check_all(*outputs: tuple[str, AnyPath | None, OutputType | None]) -> None:
    """Check all outputs of a command, each with its option, before any work is done. Outputs whose path is
    `None` are ignored."""
    targets = [
        (option, path, check(path, output_type, option)) for option, path, output_type in outputs if path is not None
    ]
    for (option, path, target), (other_option, _, other) in combinations(targets, 2):
        if target == other:
            raise UserError(f"{option} and {other_option} both name {path}; use two different paths")
        if target in other.parents or other in target.parents:
            raise UserError(f"one of {option} and {other_option} is inside the other; use two separate paths")


def write_output(path: AnyPath, output_type: OutputType, write: Callable[[Path], object]) -> None:
    """Check the path and write the file atomically; see `write_atomically`."""
    check(path, output_type)
    write_atomically(path, write)


def write_output_folder(path: AnyPath, write: Callable[[Path], object]) -> None:
    """Check the path and write the folder atomically; see `write_folder`."""
    check(path, FOLDER)
    write_folder(path, write)


def contains_bytes(signature: bytes) -> Callable[[Path], bool]:
    """Return a function that tests whether a file has these bytes near its start."""

    def matches(path: Path) -> bool:
        with open(path, "rb") as file:
            return signature in file.read(HEADER_BYTES)

    return matches


def has_format(name: str) -> Callable[[Path], bool]:
    """Return a function that tests whether a safetensors file has this format in any version: `stairwell.state.2`."""

    def matches(path: Path) -> bool:
        try:
            with safe_open(path, framework="np") as file:
                return str((file.metadata() or {}).get("format", "")).startswith(f"{name}.")
        except SafetensorError:
            return False

    return matches


def has_keys(*keys: str) -> Callable[[Path], bool]:
    """Return a function that tests whether a file is a JSON object with these keys."""

    def matches(path: Path) -> bool:
        try:
            content = parse_json(path.read_bytes())
        except ValueError:
            return False
        return isinstance(content, dict) and content.keys() >= set(keys)

    return matches


def is_run(folder: Path) -> bool:
    """Return whether a folder has the config of a run. A config.json of another program has other keys."""
    config = folder / "config.json"
    try:
        return config.is_file() and has_keys("format", "core", "task", "train")(config)
    except OSError:
        return False


def _is_of_type(output_type: OutputType, path: Path) -> bool:
    try:
        return output_type.matches(path)
    except OSError:
        return False


def _check_run(target: Path, name: str) -> None:
    for folder in (target, *target.parents):
        parts = target.relative_to(folder).parts
        if (not parts or parts[0] in RUN_FILES) and is_run(folder):
            relation = f"belongs to the run {folder}" if parts else "is the folder of a run"
            raise UserError(f"{name} {relation}; choose another path")


def _check_standard_streams(path: AnyPath, name: str) -> None:
    """Reject the standard streams, even if they are regular files: replacing one loses what is printed to it."""
    for stream in (0, 1, 2):
        try:
            same = os.path.samestat(os.stat(path), os.fstat(stream))
        except OSError:  # the path is new, or the stream is closed
            continue
        if same:
            raise UserError(f"{name} is the command's own input or output; choose another path")


def _check_parents(target: Path, name: str) -> None:
    existing = next((folder for folder in target.parents if folder.exists()), target)  # the root has no parent
    if not existing.is_dir():
        raise UserError(f"{name} cannot be written: {existing} is not a folder; choose another path")
    for path in (existing, target):
        if path.exists():
            check_access(path, name, "choose another path")


def _check_folder(target: Path, name: str) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(f"{name} is a file, not a folder; choose a new folder")
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{name} is not empty; choose a new folder or an empty one")
