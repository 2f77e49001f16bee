"""Output paths that are no files of their own: the root, the standard streams, a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stairwell import outputs
from stairwell.errors import UserError
from stairwell.files import write_folder
from stairwell.outputs import FOLDER, OutputType

ANY = OutputType("anything", lambda path: True)


def test_the_root_is_refused() -> None:
    with pytest.raises(UserError, match="/ is a folder"):
        outputs.check("/", ANY)
    with pytest.raises(UserError, match="/ is not empty"):
        outputs.check("/", FOLDER)


def test_the_commands_own_output_is_refused(tmp_path: Path) -> None:
    """Moving a file to where standard output goes would lose what is printed."""
    printed, kept = tmp_path / "out.txt", os.dup(1)
    with open(printed, "w") as file:
        os.dup2(file.fileno(), 1)
    try:
        for path in (printed, "/dev/stdout"):
            with pytest.raises(UserError, match="own input or output"):
                outputs.check(path, ANY)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert outputs.check(printed, ANY) == printed.resolve()


def test_a_full_disk_is_named_whatever_library_finds_it(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        raise Exception("No space left on device (os error 28)")  # as tokenizers do

    with pytest.raises(OSError, match="No space left") as failed:
        write_folder(tmp_path / "model", write)
    assert failed.value.filename == str(tmp_path / "model") and not list(tmp_path.iterdir())


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        write_folder(tmp_path / "model", write)
