"""Output paths that are rejected: the root and the standard streams. Errors of a full disk name the path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stairwell import outputs
from stairwell.errors import UserError
from stairwell.files import write_folder
from stairwell.outputs import FOLDER, OutputType

ANY = OutputType("anything", lambda path: True)


def test_the_root_is_rejected() -> None:
    with pytest.raises(UserError, match="/ is a folder"):
        outputs.check("/", ANY)
    with pytest.raises(UserError, match="/ is not empty"):
        outputs.check("/", FOLDER)


def test_the_standard_output_of_the_command_is_rejected(tmp_path: Path) -> None:
    """Replacing the file of standard output would lose what is printed."""
    printed, stdout = tmp_path / "out.txt", os.dup(1)
    with open(printed, "w") as file:
        os.dup2(file.fileno(), 1)
    try:
        for path in (printed, "/dev/stdout"):
            with pytest.raises(UserError, match="own input or output"):
                outputs.check(path, ANY)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert outputs.check(printed, ANY) == printed.resolve()


def test_a_full_disk_is_an_oserror_with_the_path(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        raise Exception("No space left on device (os error 28)")  # as tokenizers do

    with pytest.raises(OSError, match="No space left") as failed:
        write_folder(tmp_path / "model", write)
    assert failed.value.filename == str(tmp_path / "model") and not list(tmp_path.iterdir())


def test_other_errors_are_unchanged(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        write_folder(tmp_path / "model", write)
