"""What a run keeps of its task, so that it stands alone: `task.json`, beside `config.json`, in the run folder.

The config has the task's name and options. Here is what was found out from the data when the training began: the
vocabularies, merges included, a hash of every split, a line for people, and what anyone who reads the folder without
stairwell wants to know. A task that makes its own data follows from its config and can do without this file.
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
from stairwell.tasks.base import Known, Task

FILE = "task.json"
FORMAT = 1


def write(folder: Path, name: str, tasks: Sequence[Task]) -> None:
    """Keep the tasks of a training's phases, which share their symbols."""
    content = {
        "format": FORMAT,
        "task": name,
        "phases": [_phase(task) for task in tasks],
        "vocabularies": {key: text.to_json(symbols) for key, symbols in tasks[0].vocabularies.items()},
    }
    write_text(folder / FILE, json.dumps({**content, "hash": _hash(content)}, ensure_ascii=False) + "\n")


def read(folder: Path, name: str) -> list[Known]:
    """What is known of each phase's data. A file that was lost or changed is refused: today's data might give the
    symbols other numbers."""
    path = folder / FILE
    advice = "bring it back from a copy of the run, or train anew"
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing, which holds the symbols that the model has learned; {advice}") from None
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); {advice}") from None
    if not isinstance(content, dict) or content.pop("hash", None) != _hash(content):
        raise UserError(f"{path} was changed or damaged since the training wrote it; {advice}")
    if content["format"] != FORMAT:
        raise UserError(f"{path} has the format {content['format']}; this stairwell reads {FORMAT}")
    if content["task"] != name:
        raise UserError(f"{path} is of the task '{content['task']}', but config.json is of '{name}'")
    vocabularies = {key: text.from_json(data, str(path)) for key, data in content["vocabularies"].items()}
    return [
        Known(vocabularies, phase["about"], phase["fingerprint"], phase.get("facts", {})) for phase in content["phases"]
    ]


def is_whole(folder: Path) -> bool:
    """Whether a folder's task.json is as `write` left it."""
    try:
        content = parse_json((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.pop("hash", None) == _hash(content)


def _phase(task: Task) -> dict[str, Any]:
    return {
        "about": task.describe(),
        "kind": task.kind,
        "facts": task.facts(),
        "primary_metric": task.primary_metric,
        "higher_is_better": task.higher_is_better,
        "fingerprint": task.fingerprint(),
    }


def _hash(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
