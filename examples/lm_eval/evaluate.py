"""Evaluate a trained model with EleutherAI's lm_eval through the server: three tasks on a local file, no downloads.
`pip install ".[serve]" 'lm_eval[api]'`, then, from the root of the repository:

    python examples/lm_eval/evaluate.py            trains a small model on the proverbs first, in about a minute
    python examples/lm_eval/evaluate.py RUN        uses your own language model

The tasks are the .yaml files beside this one. docs/serving.md has the command for a running server.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stairwell.runs.launch import fit
from stairwell.runs.presets import preset

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TASKS = "proverbs_choice,proverbs_end,proverbs_bits"


def train(folder: Path) -> Path:
    """Train a small model on the proverbs and return its run folder."""
    lines = [json.loads(line)["line"] for line in (HERE / "proverbs.jsonl").read_text().splitlines()]
    sampled = random.Random(0).choices(lines, k=2000)
    (folder / "proverbs.txt").write_text("\n".join(sampled) + "\n")
    options = {
        "task.path": str(folder / "proverbs.txt"), "task.unit": "bytes", "core.width": "64", "core.layers": "2",
        "core.memory": "64", "train.batch": "16", "train.segment": "64", "train.steps": "300",
    }  # fmt: skip
    fit(preset("lm/feedback").with_options(options), folder / "proverbs", "cpu")
    return folder / "proverbs"


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Start a server of a run and yield its address."""
    command = [sys.executable, "-m", "stairwell", "serve", str(run), "--port", "0", "--device", "cpu"]
    command.append("--no-request-log")
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        address = re.search(r"http://\S+", line)
        if address is None:
            sys.exit(line + server.stderr.read())
        yield address[0]
    finally:
        server.terminate()
        server.communicate()


def evaluate(address: str, name: str, out: Path) -> dict[str, dict[str, float]]:
    """Run lm_eval and return its metrics per task."""
    arguments = f"base_url={address}/v1/completions,model={name},num_concurrent=4,max_length=4096"
    command = [
        sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments,
        "--include_path", str(HERE), "--tasks", TASKS, "--batch_size", "4", "--output_path", str(out),
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(out / "cache")}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **offline}, check=True, stdout=sys.stderr)
    path = next(out.glob("**/results_*.json"))
    results: dict[str, dict[str, float]] = json.loads(path.read_text())["results"]
    return results


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else train(Path(folder))
        with served(run) as address:
            results = evaluate(address, run.resolve().name, Path(folder))
    for task, metrics in results.items():
        for metric in ("acc,none", "exact_match,none", "bits_per_byte,none"):
            if metric in metrics:
                print(f"{task:16} {metric.partition(',')[0]:14} {metrics[metric]:.6f}")


if __name__ == "__main__":
    main()
