"""`task.json` in a run folder: what a run saves about its task, so that the folder is self-contained.

config.json has the task's name and options. task.json has what was read from the data when the run started: the
vocabularies, a hash of every split, and a description. A task that generates its data follows from its config and does
not need this file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stairwell import text
from stairwell.errors import UserError
from stairwell.files import parse_json, write_text
from stairwell.tasks.base import SavedTask, Task
from stairwell.tasks.file_task import FileTask, vocabularies

FILE = "task.json"
FORMAT = 2


def write(folder: Path, name: str, tasks: Sequence[Task]) -> None:
    """Save the tasks of a run's phases (training and fine-tuning), which share their vocabularies."""
    content = {
        "format": FORMAT,
        "task": name,
        "phases": [_phase_json(task) for task in tasks],
        "vocabularies": {key: text.to_json(vocabulary) for key, vocabulary in vocabularies(tasks[0]).items()},
    }
    write_text(folder / FILE, json.dumps({**content, "hash": _hash(content)}, ensure_ascii=False) + "\n")


def read(folder: Path, name: str) -> list[SavedTask]:
    """Return the saved task of each phase. Raise if the file is missing or was changed: the current data might give
    tokens other ids."""
    path = folder / FILE
    advice = "restore it from a copy of the run, or train again"
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing, which has the vocabulary of the model; {advice}") from None
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); {advice}") from None
    if not isinstance(content, dict) or content.pop("hash", None) != _hash(content):
        raise UserError(f"{path} was changed or damaged after the run wrote it; {advice}")
    if content["format"] != FORMAT:
        raise UserError(f"{path} has the format {content['format']}; this version of stairwell reads {FORMAT}")
    if content["task"] != name:
        raise UserError(f"{path} is of the task '{content['task']}', but config.json is of '{name}'")
    saved_vocabularies = {key: text.from_json(data, str(path)) for key, data in content["vocabularies"].items()}
    return [
        SavedTask(saved_vocabularies, phase["description"], phase["fingerprint"], phase.get("facts", {}))
        for phase in content["phases"]
    ]


def is_intact(folder: Path) -> bool:
    """Return whether a folder's task.json is unchanged since it was written."""
    try:
        content = parse_json((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.pop("hash", None) == _hash(content)


def _phase_json(task: Task) -> dict[str, Any]:
    return {
        "description": task.describe(),
        "family": task.family,
        "facts": task.facts(),
        "primary_metric": task.primary_metric,
        "higher_is_better": task.higher_is_better,
        "fingerprint": task.digests if isinstance(task, FileTask) else {},
    }


def _hash(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
