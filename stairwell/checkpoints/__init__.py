"""Trained models that are part of the package. Each is a run folder with a model card, made by `tools/checkpoints.py`.

    model, task = stairwell.load("s5-feedback")      or any command: stairwell eval s5-feedback

card.json    what the model is, how it was trained and measured; the model card, README.md, is written from it
sample.json  a small sample of the data and the scores of the stored parameters on it, which the tests reproduce
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
CARD, SAMPLE = "card.json", "sample.json"


def names() -> list[str]:
    """Return the names of the models."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CARD}"))


def folder_of(name: str) -> Path | None:
    """Return the folder of a model; None if there is no model of that name."""
    return FOLDER / name if name in names() else None


def read_card(name: str) -> dict[str, Any]:
    """Return the content of a model's card.json."""
    card: dict[str, Any] = json.loads((FOLDER / name / CARD).read_text(encoding="utf-8"))
    return card


def size_of(name: str) -> int:
    """Return the size of a model's parameter file in bytes."""
    return (FOLDER / name / "model.safetensors").stat().st_size
