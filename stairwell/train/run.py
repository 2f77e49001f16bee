"""A run folder: what a training was told, what it measured, what it learned, and everything needed to go on.

config.json              what was asked for; can be fed back in
metrics.jsonl            one JSON object a line: training, validation
model.safetensors        the parameters to use: the best by validation
task.json                what is known of the data: symbols <-> ids, a hash of every split
checkpoints/             the two newest moments to go on from, each one file, checked by a hash
snapshots/               parameters at validations, if they are to be averaged
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stairwell.errors import UserError
from stairwell.files import parse_json, read_small, write_atomically, write_text
from stairwell.outputs import RUN_FILES
from stairwell.tensor_files import hash_tensors

FORMAT = 1
KEPT = 2  # checkpoints
LOCK = ".lock"


class Run:
    """A folder on disk. Opening it reads nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise UserError("the path of the run folder is empty; name a folder")
        self.path = Path(path)
        self.asked = ""  # a hash of what the training was told, which checkpoints remember

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
        """Keep the folder to ourselves. The lock is the operating system's: it is gone with the process, however that
        ends. A training that is refused before it has begun leaves nothing behind."""
        made = self.make_folder()
        lock = FileLock(self.path / LOCK, blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise UserError(
                f"another training is writing to {self.path}; wait for it or choose another --out"
            ) from None
        try:
            self.tidy()
            yield
        finally:
            if not self.exists:
                with suppress(OSError):  # someone has put something there
                    (self.path / LOCK).unlink(missing_ok=True)
                    for folder in made:
                        folder.rmdir()
            lock.release()

    def make_folder(self) -> list[Path]:
        """The folders that were not there before, the innermost first."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            file = next((folder for folder in (self.path, *self.path.parents) if folder.is_file()), None)
            why = f"{file} is a file" if file is not None else error.strerror
            raise UserError(f"the folder {self.path} cannot be made ({why}); choose another --out") from None
        return missing

    def check_writable(self) -> None:
        """Find out before a long measurement whether its result can be kept here."""
        if not os.access(self.path, os.W_OK):
            raise UserError(f"{self.path} cannot be written: no permission; change that, or copy the run")

    def tidy(self) -> None:
        """Remove what a killed process had begun to write."""
        files = (f".{name}.*.tmp" for name in RUN_FILES)
        for pattern in ("checkpoints/.step-*.tmp", "snapshots/.step-*.tmp", *files):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def metrics(self) -> list[dict[str, Any]]:
        """Everything measured so far. Lines that cannot be read, such as a last one that a crash cut short, are passed
        over, as are those without what every line has: a damaged log must not keep a whole checkpoint from being
        used."""
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

    def begin_metrics(self, step: int) -> None:
        """Forget what was measured beyond `step`: it will be measured again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
        write_text(self.path / "metrics.jsonl", "".join(kept))

    def add_metrics(self, record: dict[str, Any]) -> None:
        self.check_there()
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise OSError(f"{path} could not be written ({error.strerror})") from None

    def check_there(self) -> None:
        """A folder that someone deletes during a training must not come to life again without its config."""
        if not (self.path / "metrics.jsonl").exists():
            raise OSError(f"{self.path} was deleted during the training, so the training has stopped")

    def save_model(self, parameters: dict[str, Tensor], note: dict[str, Any]) -> None:
        save_tensors(self.path / "model.safetensors", parameters, note)

    @property
    def began(self) -> bool:
        """Whether anything was measured or learned. A training writes its first checkpoint before either."""
        return bool(self.metrics()) or (self.path / "model.safetensors").exists()

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self.path / "model.safetensors"
        if not path.exists():
            if any("valid" in record for record in self.metrics()):
                raise UserError(f"{path} is missing; bring it back from a copy of the run, or train anew")
            raise UserError(f"{self.path} holds no model yet: one is kept from the first validation on; {self.onwards}")
        return load_tensors(path, "valid")

    @property
    def onwards(self) -> str:
        """How a training that was stopped too early comes to a model: it goes on, or ends where it is."""
        step, command = self.newest_step, f"stairwell train --resume --out {self.path}"
        return f"go on with: {command}" + (f", or end it where it is: {command} --steps {step}" if step else "")

    def save_checkpoint(self, step: int, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
        """Add a checkpoint; only once it is safely there, forget all but the newest."""
        path = self.path / "checkpoints" / f"step-{step:09d}.safetensors"
        save_tensors(path, tensors, {**note, "asked": self.asked})
        for old in self.checkpoints()[:-KEPT]:
            old.unlink(missing_ok=True)

    def save_snapshot(self, step: int, parameters: dict[str, Tensor], note: dict[str, Any], kept: int) -> None:
        """Add the parameters of a validation; the `kept` highest by their note's `phase`, then `rank`, stay."""
        save_tensors(self.path / "snapshots" / f"step-{step:09d}.safetensors", parameters, note)
        notes = {path: load_tensors(path)[1] for path in self.snapshots()}
        # Two phases may differ in what their scores mean: ranks of different phases are never compared.
        ranked = sorted(notes, key=lambda path: (notes[path].get("phase", 0), notes[path]["rank"]))
        for old in ranked[:-kept]:
            old.unlink(missing_ok=True)

    def snapshots(self) -> list[Path]:
        """Oldest first."""
        return sorted((self.path / "snapshots").glob("step-*.safetensors"))

    def checkpoints(self) -> list[Path]:
        """Oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*.safetensors"))

    @property
    def newest_step(self) -> int:
        """The update of the newest checkpoint; 0 where there is none."""
        found = self.checkpoints()
        return int(found[-1].stem.removeprefix("step-")) if found else 0

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
        """The newest checkpoint that is whole, and a word on each one that is not, or if it was told something else."""
        damaged: list[str] = []
        for path in reversed(self.checkpoints()):
            try:
                tensors, note = load_tensors(path, "progress")
            except ValueError as error:
                damaged.append(str(error))
                continue
            words = [f"{word}; going back to the one before" for word in damaged]
            if self.asked and self.asked != (note.get("asked") or self.asked):
                words.append(f"{self.path / 'config.json'} has changed since {path.name} was written; going on with it")
            return tensors, note, words
        if damaged:
            raise UserError(f"no checkpoint in {self.path} can be read: {'; '.join(damaged)}")
        raise UserError(f"{self.path} holds no checkpoint to resume from; start without --resume in another --out")


def is_record(record: Any) -> bool:
    """Whether this is a line of metrics as a training writes it: step, tokens and seconds, a loss or scores."""
    if not isinstance(record, dict) or not isinstance(record.get("valid", {}), dict):
        return False
    numbers = [record.get(name) for name in ("step", "tokens", "seconds")]
    return type(numbers[0]) is int and all(type(number) in (int, float) for number in (*numbers, record.get("loss", 0)))


def read_config(path: Path) -> dict[str, Any]:
    """A config file as `Run.write_config` wrote it."""
    try:
        config = parse_json(read_small(path))
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
    return config


def save_tensors(path: Path, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
    """Tensors and a note in one safetensors file, with a hash over all of it, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(note)
    # One key only: safetensors writes several in no fixed order, and equal contents should be equal files.
    metadata = {"stairwell": json.dumps({"note": text, "hash": hash_tensors(tensors, text)})}
    try:
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except OSError as error:
        why = error.strerror or error
        raise OSError(f"{path} could not be written ({why}); what was saved before is whole") from None


def load_tensors(path: Path, noted: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote. `noted` is a word that its note must have: it tells models and checkpoints apart."""
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
    note = json.loads(metadata["note"])
    if noted and noted not in note:
        raise UserError(f"{path} is damaged (another file stands in its place)")
    return tensors, note
