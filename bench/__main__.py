"""python -m bench CASE: measure, print, and add to bench/results/ with commit, versions and machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import data, decode, speed, staircase, table
from stairwell.provenance import provenance

CASES = {
    "cores": speed.measure_cores,
    "data": data.measure,
    "decode": decode.measure,
    "speed": speed.measure,
    "staircase": staircase.measure,
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in (*CASES, "table"):
        sys.exit(f"usage: python -m bench {'|'.join(CASES)}|table")
    case = sys.argv[1]
    if case == "table":
        table.write()
        return
    about = provenance(f"python -m bench {case}")
    records = CASES[case]()
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{case}.jsonl", "a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({**record, **about}) + "\n")
            print("  ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in record.values()))


if __name__ == "__main__":
    main()
