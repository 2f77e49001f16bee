"""Check that two checkouts compute the same numbers: four runs in each, compared bit by bit.

    python -m tools.same_numbers ../before . --names tools/before_names.json --before-python ../venv/bin/python

A change that is not about the mathematics leaves every metric except for time and memory, and every parameter of the
last checkpoint, as it was. Dropout is on in every core that has it, so that the order of random numbers is compared
too.

`--names` is a JSON file for checkouts with other names: `options` maps an option of this checkout to that of the first
one (null: it has none), `parameters` and `metrics` map parts of names of the first checkout to those of this one.
`--before` and `--after` are options of only one of the checkouts.
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

VARYING = ("seconds", "tokens_per_second", "peak_memory")  # metrics that differ between equal runs
DROPOUT = ["--model.embedding_dropout", "0.1", "--model.output_dropout", "0.1"]
ATTENTION = [*DROPOUT, "--core.attention_dropout", "0.1", "--core.relu_dropout", "0.1"]
SHORT = [
    "--train.batch", "8", "--train.segment", "24", "--train.warmup", "20", "--train.log_every", "5",
    "--train.validate_every", "40", "--train.valid_batch", "4", "--train.checkpoint_every", "50",
]  # fmt: skip
EPISODES = ["--task.valid_episodes", "8", "--task.test_episodes", "8", "--train.curriculum_accuracy", "20"]
RUNS = {
    "random-walk/feedback": [*ATTENTION, *EPISODES, "--train.accumulate", "2"],
    "lm/transformer-xl": [*ATTENTION, "--task.path", "text.txt", "--core.layer_drop", "0.1"],
    "parity/staircase": [*ATTENTION, *EPISODES, "--core.adaptive_span", "true", "--core.span_loss", "0.001"],
    "algorithmic/lstm": [*DROPOUT, *EPISODES, "--core.dropout", "0.1", "--train.decay", "cosine"],
}
NO_NAMES: dict[str, dict[str, Any]] = {"options": {}, "parameters": {}, "metrics": {}}


def write_corpus(path: Path) -> None:
    """Write a small random corpus, the same every time."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(200)]
    path.write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(600)) + "\n")


def train(python: str, checkout: Path, name: str, out: Path, options: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    environment["STAIRWELL_CACHE"] = str(out.parent / "cache" / out.name)
    command = [python, "-m", "stairwell", "train", name, *options, "--quiet", "--out", str(out)]
    completed = subprocess.run(command, cwd=out.parent, env=environment, capture_output=True, text=True)
    if completed.returncode:
        sys.exit(f"{checkout}: {name} ended with status {completed.returncode}\n{completed.stderr}")


def with_names(options: list[str], names: dict[str, str | None]) -> list[str]:
    """Return options, which are pairs of a name and a value, with the names of another checkout."""
    pairs = zip(options[::2], options[1::2], strict=True)
    renamed = [(names.get(option, option), value) for option, value in pairs]
    return [word for option, value in renamed if option is not None for word in (option, value)]


def metrics(run: Path, names: dict[str, str]) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [rename_keys({key: line[key] for key in line if key not in VARYING}, names) for line in lines]


def rename_keys(record: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {
        rename(key, names): rename_keys(value, names) if isinstance(value, dict) else value
        for key, value in record.items()
    }


def parameters(run: Path, names: dict[str, str]) -> dict[str, Tensor]:
    newest = max((run / "checkpoints").glob("*.safetensors"))
    return {rename(name, names): tensor for name, tensor in load_file(newest).items() if name.startswith("model.")}


def rename(name: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def differences(before: Path, after: Path, names: dict[str, dict[str, Any]]) -> list[str]:
    """Return what differs, as lines."""
    old_metrics, new_metrics = metrics(before, names["metrics"]), metrics(after, {})
    lines = []
    if len(old_metrics) != len(new_metrics):
        lines.append(f"{len(old_metrics)} lines of metrics before, {len(new_metrics)} after")
    for old, new in zip(old_metrics, new_metrics):
        different = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        lines += [f"step {new['step']}: {key} was {old.get(key)}, is {new.get(key)}" for key in different]
    tensors_before, tensors_after = parameters(before, names["parameters"]), parameters(after, {})
    lines += [f"{name} is in one checkpoint only" for name in sorted({*tensors_before} ^ {*tensors_after})]
    both = sorted({*tensors_before} & {*tensors_after})
    return lines + [f"{name} differs" for name in both if not tensors_before[name].equal(tensors_after[name])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT", help="Before and after.")
    parser.add_argument("--steps", type=int, default=100, help="Optimizer steps of each run.")
    parser.add_argument("--names", type=Path, help="JSON file that maps names between the checkouts.")
    parser.add_argument("--before", default="", help="Options of the first checkout only.")
    parser.add_argument("--after", default="", help="Options of the second checkout only.")
    parser.add_argument("--before-python", default=sys.executable, help="Python that runs the first checkout.")
    parser.add_argument("--only", choices=RUNS, help="One of the four runs.")
    arguments = parser.parse_args()
    names = {**NO_NAMES, **(json.loads(arguments.names.read_text()) if arguments.names else {})}
    before, after = (checkout.resolve() for checkout in arguments.checkouts)
    failed = 0
    for name in [arguments.only] if arguments.only else RUNS:
        options = [*SHORT, *RUNS[name], "--train.steps", str(arguments.steps)]
        with tempfile.TemporaryDirectory() as folder:
            old, new = Path(folder) / "before", Path(folder) / "after"
            write_corpus(Path(folder) / "text.txt")
            old_options = [*with_names(options, names["options"]), *shlex.split(arguments.before)]
            train(arguments.before_python, before, name, old, old_options)
            train(sys.executable, after, name, new, [*options, *shlex.split(arguments.after)])
            lines = differences(old, new, names)
            equal = f"{len(metrics(new, {}))} lines of metrics and {len(parameters(new, {}))} parameters are equal"
        failed += bool(lines)
        print(f"{name}, {arguments.steps} steps: {'DIFFERENT' if lines else equal}")
        print("".join(f"  {line}\n" for line in lines[:10]), end="", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
