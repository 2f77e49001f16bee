"""The README's speed table, from bench/results: `python -m bench table` writes it between its two markers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.speed import ROUNDS

HERE = Path(__file__).parent
BEGIN, END = "<!-- speed: made by `python -m bench table` -->", "<!-- end of speed -->"
CASES = {
    "b16": "4 layers, width 256, memory 100, segment 64, 16 rows",
    "b64": "the same, 64 rows",
    "b64-dropout": "the same, 64 rows, dropout 0.2",
    "small": "2 layers, width 64, memory 16, segment 32, 128 rows",
}
PEERS = {
    "x-transformers": "x-transformers' Transformer-XL",
    "transformer-xl": "our Transformer-XL",
    "feedback-pytorch": "feedback-transformer-pytorch",
    "reference": "our reference engine",
    "lstm": "torch.nn.LSTM",
}


def newest(path: Path) -> list[dict[str, Any]]:
    """The records of the last measurement."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["time"] == records[-1]["time"]]


def table(records: list[dict[str, Any]]) -> str:
    lines = ["| training step | Feedback, tokens/s | " + " | ".join(f"over {name}" for name in PEERS.values()) + " |"]
    lines.append("|---" * (2 + len(PEERS)) + "|")
    for case, words in CASES.items():
        found = {record["what"]: record for record in records if record["case"] == case}
        ratios = [f"{found[peer]['feedback_over_this']:.2f}" if peer in found else "" for peer in PEERS]
        lines.append(f"| {words} | {found['feedback']['tokens_per_second']:,} | " + " | ".join(ratios) + " |")
    about = records[0]
    machine = f"{about['cpu']}, {about['threads']} threads"
    lines += ["", f"`{about['command']}` at {about['commit']}, torch {about['torch']}, {machine}, all in one process"]
    worst = max(record["spread"] for record in records)
    lines += ["taking turns, one run; more than 1 means that Feedback is faster. Slowest minus fastest of the"]
    lines += [f"{ROUNDS} rounds is up to {worst:.2f} of the median: read ratios within about a fifth of 1 as a tie."]
    return "\n".join(lines)


def write() -> None:
    readme = HERE.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = table(newest(HERE / "results" / "speed.jsonl"))
    readme.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")
