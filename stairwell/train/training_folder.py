"""What training writes to a run folder and reads back to resume.

metrics.jsonl            one JSON object per line: training metrics and validations
model.safetensors        the parameters of the best validation
checkpoints/             the two newest checkpoints, each one file with a hash
snapshots/               parameters of validations, if they are to be averaged
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from stairwell.errors import UserError
from stairwell.files import parse_json, write_text
from stairwell.tensor_files import load_tensors, save_tensors

MAX_CHECKPOINTS = 2
STEP_FILE = re.compile(r"step-(\d+)\.safetensors")


class TrainingFolder:
    """The metrics, the best model and the checkpoints of a run. The constructor reads nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise UserError("the path of the run folder is empty; name a folder")
        self.path = Path(path)
        self.config_hash = ""  # saved in checkpoints, to notice a changed config

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

    def save_model(self, parameters: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        save_tensors(self.path / "model.safetensors", parameters, metadata)

    @property
    def has_results(self) -> bool:
        """Whether there are metrics or a model. A run writes its first checkpoint before either."""
        return bool(self.metrics()) or (self.path / "model.safetensors").exists()

    def save_checkpoint(self, step: int, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        """Write a checkpoint, then delete the old ones."""
        path = self.path / "checkpoints" / f"step-{step:09d}.safetensors"
        save_tensors(path, tensors, {**metadata, "config_hash": self.config_hash})
        for old in self.checkpoints()[:-MAX_CHECKPOINTS]:
            old.unlink(missing_ok=True)

    def save_snapshot(self, step: int, parameters: dict[str, Tensor], metadata: dict[str, Any], count: int) -> None:
        """Write the parameters of a validation. Of all snapshots keep the `count` highest by `phase`, then `rank`."""
        save_tensors(self.path / "snapshots" / f"step-{step:09d}.safetensors", parameters, metadata)
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
                tensors, metadata = load_tensors(path, "progress")
            except ValueError as error:
                errors.append(str(error))
                continue
            warnings = [f"{error}; using the checkpoint before it" for error in errors]
            if self.config_hash and self.config_hash != (metadata.get("config_hash") or self.config_hash):
                warnings.append(f"{self.path / 'config.json'} has changed since {path.name} was written; it is used")
            return tensors, metadata, warnings
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
