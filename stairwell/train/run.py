"""A run folder: config, metrics, model, and what is needed to resume.

config.json              the config; `stairwell train --config` reads it too
metrics.jsonl            one JSON object per line: training metrics and validations
model.safetensors        the parameters of the best validation
task.json                what a model needs to know about the data: vocabularies, and a hash of every split
checkpoints/             the two newest checkpoints, each one file with a hash
snapshots/               parameters of validations, if they are to be averaged
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stairwell.errors import UserError
from stairwell.files import check_access, parse_json, read_small_file, write_atomically, write_text
from stairwell.outputs import RUN_FILES
from stairwell.tensor_files import hash_tensors

FORMAT = 2
MAX_CHECKPOINTS = 2
LOCK = ".lock"
STEP_FILE = re.compile(r"step-(\d+)\.safetensors")


class Run:
    """A run folder. The constructor reads nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise UserError("the path of the run folder is empty; name a folder")
        self.path = Path(path)
        self.config_hash = ""  # saved in checkpoints, to notice a changed config

    @property
    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    def write_config(self, config: dict[str, Any]) -> None:
        write_text(self.path / "config.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        if not self.exists:
            raise UserError(f"{self.path} is not a run folder: it has no config.json")
        return read_config(self.path / "config.json")

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

    def metrics(self) -> list[dict[str, Any]]:
        """Return all lines of metrics. Damaged lines, such as a last one that was cut off in a crash, are skipped, so
        that a damaged log does not prevent resuming."""
        records = []
        path = self.path / "metrics.jsonl"
        for line in path.read_bytes().split(b"\n") if path.exists() else []:
            try:
                record = parse_json(line)
            except ValueError:
                continue
            if is_record(record):
                records.append(record)
        return records

    def truncate_metrics(self, step: int) -> None:
        """Remove metrics beyond `step`, which will be measured again."""
        lines = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
        write_text(self.path / "metrics.jsonl", "".join(lines))

    def remove_average(self, step: int) -> None:
        """Remove the scores of the averaged model of `step`, which will be measured again."""
        records = self.metrics()
        remaining = [record for record in records if record["step"] != step or "averaged" not in record]
        if len(remaining) < len(records):
            write_text(self.path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in remaining))

    def add_metrics(self, record: dict[str, Any]) -> None:
        self.check_not_deleted()
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise OSError(f"{path} could not be written ({error.strerror})") from None

    def check_not_deleted(self) -> None:
        """Stop if the folder was deleted during the run. Writing would create it again without its config."""
        if not (self.path / "metrics.jsonl").exists():
            raise OSError(f"{self.path} was deleted during the run, so the run has stopped")

    def task_hash(self) -> str:
        """Return a hash of task.json; empty if there is none."""
        path = self.path / "task.json"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.exists() else ""

    def save_model(self, parameters: dict[str, Tensor], note: dict[str, Any]) -> None:
        save_tensors(self.path / "model.safetensors", parameters, {**note, "task_hash": self.task_hash()})

    @property
    def has_results(self) -> bool:
        """Whether there are metrics or a model. A run writes its first checkpoint before either."""
        return bool(self.metrics()) or (self.path / "model.safetensors").exists()

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the parameters of the best validation and their note."""
        path = self.path / "model.safetensors"
        if not path.exists():
            if any("valid" in record for record in self.metrics()):
                raise UserError(f"{path} is missing; restore it from a copy of the run, or train again")
            raise UserError(f"{self.path} has no model yet: the first validation saves one; {self.resume_hint}")
        tensors, note = load_tensors(path, "valid")
        if self.task_hash() not in ("", note.get("task_hash", self.task_hash())):
            raise UserError(
                f"{path} and task.json are not of the same run: the model was trained with another task.json; restore "
                "the one that belongs to the model"
            )
        return tensors, note

    @property
    def resume_hint(self) -> str:
        """How an interrupted run gets a model: resume it, or end it at its newest checkpoint."""
        step, command = self.newest_step, f"stairwell train --resume --out {self.path}"
        return f"resume with: {command}" + (f", or end at the current step: {command} --steps {step}" if step else "")

    def save_checkpoint(self, step: int, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
        """Write a checkpoint, then delete the old ones."""
        path = self.path / "checkpoints" / f"step-{step:09d}.safetensors"
        save_tensors(path, tensors, {**note, "config_hash": self.config_hash})
        for old in self.checkpoints()[:-MAX_CHECKPOINTS]:
            old.unlink(missing_ok=True)

    def save_snapshot(self, step: int, parameters: dict[str, Tensor], note: dict[str, Any], count: int) -> None:
        """Write the parameters of a validation. Of all snapshots keep the `count` highest by `phase`, then `rank`."""
        save_tensors(self.path / "snapshots" / f"step-{step:09d}.safetensors", parameters, note)
        notes = {path: load_tensors(path)[1] for path in self.snapshots()}
        # Scores of different phases cannot be compared, so the phase comes first.
        ranked = sorted(notes, key=lambda path: (notes[path]["phase"], notes[path]["rank"]))
        for old in ranked[:-count]:
            old.unlink(missing_ok=True)

    def snapshots(self) -> list[Path]:
        """Return the snapshots, oldest first."""
        return step_files(self.path / "snapshots")

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        return step_files(self.path / "checkpoints")

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        checkpoints = self.checkpoints()
        return int(checkpoints[-1].stem.removeprefix("step-")) if checkpoints else 0

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
        """Return the newest readable checkpoint, and warnings: unreadable ones, or another config."""
        errors: list[str] = []
        for path in reversed(self.checkpoints()):
            try:
                tensors, note = load_tensors(path, "progress")
            except ValueError as error:
                errors.append(str(error))
                continue
            warnings = [f"{error}; using the checkpoint before it" for error in errors]
            if self.config_hash and self.config_hash != (note.get("config_hash") or self.config_hash):
                warnings.append(f"{self.path / 'config.json'} has changed since {path.name} was written; it is used")
            return tensors, note, warnings
        if errors:
            raise UserError(f"no checkpoint in {self.path} can be read: {'; '.join(errors)}")
        raise UserError(f"{self.path} has no checkpoint to resume from; train without --resume in another --out")


def step_files(folder: Path) -> list[Path]:
    """Return the files that are named after a step, by step. Other files, such as a user's copies, are ignored."""
    paths = [path for path in folder.glob("step-*.safetensors") if STEP_FILE.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.stem.removeprefix("step-")))


def is_record(record: Any) -> bool:
    """Return whether this is a line of metrics: step, tokens and seconds, and a loss or scores."""
    if not isinstance(record, dict) or not isinstance(record.get("valid", {}), dict):
        return False
    numbers = [record.get(name) for name in ("step", "tokens", "seconds")]
    return type(numbers[0]) is int and all(type(number) in (int, float) for number in (*numbers, record.get("loss", 0)))


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


def save_tensors(path: Path, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
    """Write tensors and a note atomically to a safetensors file, with a hash of both."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(note)
    # safetensors writes several keys in no fixed order, and equal contents should be equal files: use one key.
    metadata = {"stairwell": json.dumps({"note": text, "hash": hash_tensors(tensors, text)})}
    try:
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"{path} could not be written ({reason}); earlier files are intact") from None


def load_tensors(path: Path, required_key: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `save_tensors` wrote. The note must have `required_key`, which differs for models and checkpoints."""
    if path.exists() and not os.access(path, os.R_OK):
        raise UserError(f"{path} cannot be read: no permission")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = parse_json((file.metadata() or {}).get("stairwell", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error})") from None
    if metadata.get("hash") != hash_tensors(tensors, metadata.get("note", "")):
        raise UserError(f"{path} is damaged (its contents do not match their hash)")
    note: dict[str, Any] = json.loads(metadata["note"])
    if required_key and required_key not in note:
        raise UserError(f"{path} is damaged (it is another type of file)")
    return tensors, note
