"""Check that two checkouts compute the same numbers: six runs in each, compared bit by bit.

    python -m tools.same_numbers ../before .
    python -m tools.same_numbers ../before . --earlier-names --before-python ../venv/bin/python

A change that is not about the mathematics leaves every metric except for time and memory, and every parameter of the
last checkpoint, as it was. Dropout is on in every core that has it, so that the order of random numbers is compared
too. There are four runs of streams, one of translation and one of an agent.

`--earlier-names`: the first checkout has the names of options, parameters and metrics that `tools/convert_run.py`
converts. `--before` and `--after` are options of only one of the checkouts.
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

from tools.convert_run import FIELDS, convert_parameter, convert_scores

VARYING = ("seconds", "tokens_per_second", "peak_memory")  # metrics that differ between equal runs
DROPOUT = ["--model.embedding_dropout", "0.1", "--model.output_dropout", "0.1"]
ATTENTION = [*DROPOUT, "--core.attention_dropout", "0.1", "--core.relu_dropout", "0.1"]
SHORT = [
    "--train.batch", "8", "--train.warmup", "20", "--train.log_every", "5", "--train.validate_every", "40",
    "--train.checkpoint_every", "50",
]  # fmt: skip
SEGMENTS = ["--train.segment", "24", "--train.valid_batch", "4"]
EPISODES = ["--task.valid_episodes", "8", "--task.test_episodes", "8"]
STAGES = ["--train.curriculum_accuracy", "20"]
RUNS = {
    "random-walk/feedback": [*SEGMENTS, *ATTENTION, *EPISODES, *STAGES, "--train.accumulate", "2"],
    "lm/transformer-xl": [*SEGMENTS, *ATTENTION, "--task.path", "text.txt", "--core.layer_drop", "0.1"],
    "parity/staircase": [
        *SEGMENTS, *ATTENTION, *EPISODES, *STAGES, "--core.adaptive_span", "true", "--core.span_loss", "0.001",
    ],
    "algorithmic/lstm": [
        *SEGMENTS, *DROPOUT, *EPISODES, *STAGES, "--core.dropout", "0.1", "--train.decay", "cosine",
    ],
    "translation/feedback": [
        *ATTENTION, "--task.path", "pairs", "--task.vocabulary", "300", "--task.decode_examples", "0",
        "--task.max_target_length", "64", "--train.batch_tokens", "512", "--train.average", "2",
    ],
    "rl/feedback": [*SEGMENTS, *EPISODES, "--task.env", "corridor", "--task.length", "5", "--core.memory", "4"],
}  # fmt: skip


def write_corpora(folder: Path) -> None:
    """Write a small random text and small random parallel files, the same every time."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(200)]
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(600)) + "\n")
    (folder / "pairs").mkdir()
    for split, count in (("train", 600), ("valid", 40), ("test", 40)):
        sources = [rng.choices(words, k=rng.randint(2, 9)) for _ in range(count)]
        for suffix, sentences in (("de", sources), ("en", [sentence[::-1] for sentence in sources])):
            text = "".join(" ".join(sentence) + "\n" for sentence in sentences)
            (folder / "pairs" / f"{split}.{suffix}").write_text(text)


def train(python: str, checkout: Path, name: str, out: Path, options: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    environment["STAIRWELL_CACHE"] = str(out.parent / "cache" / out.name)
    command = [python, "-m", "stairwell", "train", name, *options, "--quiet", "--out", str(out)]
    completed = subprocess.run(command, cwd=out.parent, env=environment, capture_output=True, text=True)
    if completed.returncode:
        sys.exit(f"{checkout}: {name} ended with status {completed.returncode}\n{completed.stderr}")


def earlier_options(options: list[str]) -> list[str]:
    """Return options with the names that they had before."""
    earlier = {
        f"--{section}.{new}": f"--{section}.{old}" for section, names in FIELDS.items() for old, new in names.items()
    }
    return [earlier.get(option, option) for option in options]


def metrics(run: Path, earlier_names: bool = False) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if earlier_names:
        records = [convert_scores(record) for record in records]
    return [{key: value for key, value in record.items() if key not in VARYING} for record in records]


def parameters(run: Path, earlier_names: bool = False) -> dict[str, Tensor]:
    tensors = load_file(max((run / "checkpoints").glob("*.safetensors")))
    model = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    return {convert_parameter(name): tensor for name, tensor in model.items()} if earlier_names else model


def differences(before: Path, after: Path, earlier_names: bool) -> list[str]:
    """Return what differs, as lines."""
    old_metrics, new_metrics = metrics(before, earlier_names), metrics(after)
    lines = []
    if len(old_metrics) != len(new_metrics):
        lines.append(f"{len(old_metrics)} lines of metrics before, {len(new_metrics)} after")
    for old, new in zip(old_metrics, new_metrics):
        different = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        lines += [f"step {new['step']}: {key} was {old.get(key)}, is {new.get(key)}" for key in different]
    tensors_before, tensors_after = parameters(before, earlier_names), parameters(after)
    lines += [f"{name} is in one checkpoint only" for name in sorted({*tensors_before} ^ {*tensors_after})]
    both = sorted({*tensors_before} & {*tensors_after})
    return lines + [f"{name} differs" for name in both if not tensors_before[name].equal(tensors_after[name])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT", help="Before and after.")
    parser.add_argument("--steps", type=int, default=100, help="Optimizer steps of each run.")
    parser.add_argument("--earlier-names", action="store_true", help="The first checkout has earlier names.")
    parser.add_argument("--before", default="", help="Options of the first checkout only.")
    parser.add_argument("--after", default="", help="Options of the second checkout only.")
    parser.add_argument("--before-python", default=sys.executable, help="Python that runs the first checkout.")
    parser.add_argument("--only", choices=RUNS, help="One of the runs.")
    arguments = parser.parse_args()
    before, after = (checkout.resolve() for checkout in arguments.checkouts)
    failed = 0
    for name in [arguments.only] if arguments.only else RUNS:
        options = [*SHORT, *RUNS[name], "--train.steps", str(arguments.steps)]
        with tempfile.TemporaryDirectory() as folder:
            old, new = Path(folder) / "before", Path(folder) / "after"
            write_corpora(Path(folder))
            old_options = earlier_options(options) if arguments.earlier_names else options
            train(arguments.before_python, before, name, old, [*old_options, *shlex.split(arguments.before)])
            train(sys.executable, after, name, new, [*options, *shlex.split(arguments.after)])
            lines = differences(old, new, arguments.earlier_names)
            equal = f"{len(metrics(new))} lines of metrics and {len(parameters(new))} parameters are equal"
        failed += bool(lines)
        print(f"{name}, {arguments.steps} steps: {'DIFFERENT' if lines else equal}")
        print("".join(f"  {line}\n" for line in lines[:10]), end="", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
