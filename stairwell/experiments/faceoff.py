"""The demo: Feedback and a Transformer of the same size on the random walk, live, then a report to look at.

Both get the same curriculum, the same number of updates and so the same number of tokens. Feedback remembers 16 tokens
of thoughts; the Transformer sees every action of the episode at once. Laptop scale: the paper's models are 30 times
larger and its episodes 100 actions long.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from stairwell.experiments.experiment import Experiment
from stairwell.experiments.presets import preset
from stairwell.experiments.running import Plan, Show, evaluate_run, train
from stairwell.files import write_text
from stairwell.runs import Run

LENGTH = 50
PAPER = {"feedback": 100.0, "transformer-xl": 68.0}  # Fan et al., table 1: accuracy at episodes of 100 actions


def contender(core: str, updates: int) -> Experiment:
    """One of the two. The Transformer's memory holds a whole episode and the reset before it."""
    options = {
        "task.length": str(LENGTH),
        "train.curriculum": f"length=8..{LENGTH}",
        "train.steps": str(updates),
        "train.validate_every": "0",
        "train.log_every": "20",
        "train.stop_when_mastered": str(core == "feedback"),
        "train.curriculum_accuracy": "97",
    }
    if core == "transformer-xl":
        options["core.memory"] = str(2 * LENGTH)
    return preset(f"random-walk/{core}").with_options(options)


def face_off(out: Path, updates: int, device: str, engine: str, show: Show) -> dict[str, Any]:
    """Train both, or go on where they were stopped, test both on fresh episodes, write the report."""
    results: dict[str, Any] = {}
    for core in ("feedback", "transformer-xl"):
        run = Run(out / core)
        finished = run.path / "result.json"
        if not finished.exists():
            experiment = contender(core, updates)
            resume = bool(run.exists and run.checkpoints())
            if not resume and run.exists:
                raise ValueError(f"{run.path} was stopped before its first checkpoint; delete {out} and start again")
            result = train(Plan(experiment, run, resume), device, engine, show)
            assert result is not None
            result["test"] = evaluate_run(run.path, "test", None, 50, 101, device, engine, None)
            write_text(finished, json.dumps(result) + "\n")
        results[core] = json.loads(finished.read_text(encoding="utf-8"))
        # Whoever comes second gets exactly the updates that the first one took.
        updates = results[core]["updates"]
    return results


def scores(results: dict[str, Any]) -> dict[str, float]:
    return {core: result["test"]["accuracy"] for core, result in results.items()}


def shortened(experiment: Experiment, updates: int) -> Experiment:
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, steps=updates))
