"""The records in bench/results: one file per benchmark, one line per number, each with its provenance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"

Record = dict[str, Any]


def add(name: str, records: list[Record], about: Record) -> None:
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{name}.jsonl", "a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({**record, **about}) + "\n")


def newest_by_case(name: str) -> list[Record]:
    """Return the records of the newest measurement of each case."""
    path = RESULTS / f"{name}.jsonl"
    if not path.exists():
        return []
    records: list[Record] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    last = {record["case"]: record["time"] for record in records}
    return [record for record in records if record["time"] == last[record["case"]]]
