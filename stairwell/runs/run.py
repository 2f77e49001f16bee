"""A run folder: what training writes (`train/training_folder.py`), and what makes it self-contained.

config.json              the config; `stairwell train --config` reads it too
task.json                what a model needs to know about the data: vocabularies, and a hash of every split
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from stairwell.errors import UserError
from stairwell.files import check_access, parse_json, read_small_file, write_text
from stairwell.outputs import RUN_FILES
from stairwell.tensor_files import load_tensors
from stairwell.train.training_folder import TrainingFolder

FORMAT = 2
LOCK = ".lock"
MAX_FOLDERS = 3  # named in an error


class Run(TrainingFolder):
    """A run folder. The constructor reads nothing."""

    @property
    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    def write_config(self, config: dict[str, Any]) -> None:
        write_text(self.path / "config.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        if not self.exists:
            raise UserError(f"{self.path} is not a run folder: it has no config.json{self.runs_inside()}")
        return read_config(self.path / "config.json")

    def runs_inside(self) -> str:
        """Return the end of an error about a folder that is no run, but contains runs, such as that of an experiment or
        of several seeds."""
        folders = sorted(path.parent for depth in ("*", "*/*") for path in self.path.glob(f"{depth}/config.json"))
        if not folders:
            return ""
        more = f" and {len(folders) - MAX_FOLDERS} more" if len(folders) > MAX_FOLDERS else ""
        text = f", but it contains runs: {', '.join(map(str, folders[:MAX_FOLDERS]))}{more}"
        page = self.path / "report.html"
        return f"{text}; their report is {page}" if page.exists() else text

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder. The operating system releases the lock when the process ends for any reason. A run that is
        rejected before it starts leaves nothing behind."""
        created = self.make_folder()
        lock = FileLock(self.path / LOCK, blocking=False)
        try:
            self.check_lock()
            lock.acquire()
        except Timeout:
            raise UserError(f"another run is writing to {self.path}; wait for it or choose another --out") from None
        except PermissionError as error:
            raise UserError(f"{lock.lock_file} cannot be locked: {error.strerror}; choose another --out") from None
        try:
            self.remove_temporary_files()
            yield
        finally:
            if not self.exists:
                with suppress(OSError):  # the folder is not empty
                    (self.path / LOCK).unlink(missing_ok=True)
                    for folder in created:
                        folder.rmdir()
            lock.release()

    def check_lock(self) -> None:
        """Reject a lock that is not a regular file; the lock library's own message would be misleading."""
        lock = self.path / LOCK
        if lock.is_symlink() or (lock.exists() and not lock.is_file()):
            raise UserError(f"{lock} is not a regular file, so it cannot lock the run; remove it")

    def make_folder(self) -> list[Path]:
        """Make the folder and return the folders that did not exist before, the innermost first."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.EROFS:
                raise
            file = next((folder for folder in (self.path, *self.path.parents) if folder.is_file()), None)
            reason = f"{file} is a file" if file is not None else error.strerror
            raise UserError(f"the folder {self.path} cannot be made ({reason}); choose another --out") from None
        return missing

    def check_writable(self) -> None:
        """Check before a long measurement whether its result can be written here."""
        check_access(self.path, str(self.path), "change that, or copy the run")

    def remove_temporary_files(self) -> None:
        """Remove temporary files of a killed process."""
        files = (f".{name}.*.tmp" for name in RUN_FILES)
        for pattern in ("checkpoints/.step-*.tmp", "snapshots/.step-*.tmp", *files):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def task_hash(self) -> str:
        """Return a hash of task.json; empty if there is none."""
        path = self.path / "task.json"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.exists() else ""

    def save_model(self, parameters: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        super().save_model(parameters, {**metadata, "task_hash": self.task_hash()})

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the parameters of the best validation and their metadata."""
        path = self.path / "model.safetensors"
        if not path.exists():
            if any("valid" in record for record in self.metrics()):
                raise UserError(f"{path} is missing; restore it from a copy of the run, or train again")
            raise UserError(f"{self.path} has no model yet: the first validation saves one; {self.resume_hint}")
        tensors, metadata = load_tensors(path, "valid")
        if self.task_hash() not in ("", metadata.get("task_hash", self.task_hash())):
            raise UserError(
                f"{path} and task.json are not of the same run: the model was trained with another task.json; restore "
                "the one that belongs to the model"
            )
        return tensors, metadata

    @property
    def resume_hint(self) -> str:
        """How an interrupted run gets a model: resume it, or end it at its newest checkpoint."""
        step, command = self.newest_step, f"stairwell train --resume --out {self.path}"
        return f"resume with: {command}" + (f", or end at the current step: {command} --steps {step}" if step else "")


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a config file that `Run.write_config` wrote."""
    try:
        config = parse_json(read_small_file(path))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise UserError(f"{path} is not a stairwell config: it has no 'format'")
    if config["format"] > FORMAT:
        raise UserError(
            f"{path} was written by a newer stairwell (format {config['format']}, this one reads {FORMAT}); upgrade"
        )
    if config["format"] < FORMAT:
        raise UserError(f"{path}: this run was made by an older version; convert it with tools/convert_run.py")
    return config
