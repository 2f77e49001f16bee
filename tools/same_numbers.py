"""Whether two checkouts compute the same numbers: four trainings in each, compared bit for bit.

    python tools/same_numbers.py ../before . --rename core.layers=core.blocks --before "--model.start_embedding false"

A change that is not about the maths must leave every metric but time and memory, and every parameter of the last
checkpoint, as it was. Dropout is on wherever a core has it, so that the order of random draws is compared too.
`--rename OLD=NEW` says which part of a parameter's or a metric's name has changed; `--before` and `--after` are options
that only one of the two checkouts is given.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

PASSING = ("seconds", "tokens_per_second", "peak_memory")  # what no two trainings have in common
DROPOUT = ["--model.embedding_dropout", "0.1", "--model.output_dropout", "0.1"]
ATTENTION = [*DROPOUT, "--core.attention_dropout", "0.1", "--core.relu_dropout", "0.1"]
SHORT = [
    "--train.batch", "8", "--train.segment", "24", "--train.warmup", "20", "--train.log_every", "5",
    "--train.validate_every", "40", "--train.valid_batch", "4", "--train.checkpoint_every", "50",
]  # fmt: skip
EPISODES = ["--task.valid_episodes", "8", "--task.test_episodes", "8", "--train.curriculum_accuracy", "20"]
TRAININGS = {
    "random-walk/feedback": [*ATTENTION, *EPISODES, "--train.accumulate", "2"],
    "lm/transformer-xl": [*ATTENTION, "--task.path", "text.txt", "--core.layer_drop", "0.1"],
    "parity/staircase": [*ATTENTION, *EPISODES, "--core.adaptive_span", "true", "--core.span_loss", "0.001"],
    "algorithmic/lstm": [*DROPOUT, *EPISODES, "--core.dropout", "0.1", "--train.decay", "cosine"],
}


def write_text(path: Path) -> None:
    """Some made-up language, the same every time."""
    dice = random.Random(0)
    words = ["".join(dice.choices("abcdefgh", k=dice.randint(1, 6))) for _ in range(200)]
    path.write_text("\n".join(" ".join(dice.choices(words, k=8)) for _ in range(600)) + "\n")


def train(checkout: Path, name: str, out: Path, steps: int, more: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    environment["STAIRWELL_CACHE"] = str(out.parent / "cache")
    command = [sys.executable, "-m", "stairwell", "train", name, *SHORT, *TRAININGS[name], *more]
    command += ["--steps", str(steps), "--quiet", "--out", str(out)]
    done = subprocess.run(command, cwd=out.parent, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{checkout}: {name} ended with status {done.returncode}\n{done.stderr}")


def metrics(run: Path, names: dict[str, str]) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [{renamed(name, names): value for name, value in line.items() if name not in PASSING} for line in lines]


def parameters(run: Path, names: dict[str, str]) -> dict[str, Tensor]:
    newest = max((run / "checkpoints").glob("step-*.safetensors"))
    return {renamed(name, names): tensor for name, tensor in load_file(newest).items() if name.startswith("model.")}


def renamed(name: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def differences(before: Path, after: Path, names: dict[str, str]) -> list[str]:
    """What is not the same, in words."""
    found = []
    ours, theirs = metrics(after, {}), metrics(before, names)
    if len(ours) != len(theirs):
        found.append(f"{len(theirs)} lines of metrics before, {len(ours)} after")
    for a, b in zip(theirs, ours):
        unlike = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
        found += [f"update {b['step']}: {name} was {a.get(name)}, is {b.get(name)}" for name in unlike]
    old, new = parameters(before, names), parameters(after, {})
    found += [f"{name} is in one checkpoint only" for name in sorted({*old} ^ {*new})]
    found += [f"{name} differs" for name in sorted({*old} & {*new}) if not old[name].equal(new[name])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT", help="before and after")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--before", default="", help="options for the first checkout only")
    parser.add_argument("--after", default="", help="options for the second checkout only")
    parser.add_argument("--only", choices=TRAININGS, help="one of the four trainings")
    asked = parser.parse_args()
    names = dict(pair.split("=", 1) for pair in asked.rename)
    wrong = 0
    for name in [asked.only] if asked.only else TRAININGS:
        with tempfile.TemporaryDirectory() as folder:
            runs = [Path(folder) / side for side in ("before", "after")]
            write_text(Path(folder) / "text.txt")
            for checkout, run, more in zip(asked.checkouts, runs, (asked.before, asked.after)):
                train(checkout.resolve(), name, run, asked.steps, shlex.split(more))
            found = differences(*runs, names)
            lines = len(metrics(runs[1], {}))
            tensors = len(parameters(runs[1], {}))
        wrong += bool(found)
        told = f"{lines} lines of metrics and {tensors} parameters are the same, bit for bit"
        print(f"{name}, {asked.steps} updates: {told if not found else 'DIFFERENT'}")
        print("".join(f"  {line}\n" for line in found[:10]), end="", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
