"""The demo: Feedback and a Transformer of the same size on the random walk, live, then a report to look at.

Both get the same curriculum, the same number of updates and so the same number of tokens. Feedback remembers 16 tokens
of thoughts; the Transformer sees every action of the episode at once. Laptop scale: the paper's models are 30 times
larger and its episodes 100 actions long.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stairwell import report
from stairwell.files import write_text
from stairwell.provenance import provenance
from stairwell.report import Table
from stairwell.runs.experiment import Experiment
from stairwell.runs.presets import preset
from stairwell.runs.trainings import Job, Show, evaluate_run, train
from stairwell.train import Interrupted, NotSaved, Run

LENGTH = 50
NAMES = {"feedback": "Feedback", "transformer-xl": "Transformer-XL"}
PAPER = {"feedback": 100.0, "transformer-xl": 68.0}  # Fan et al., table 1: accuracy at episodes of 100 actions


def contender(core: str, updates: int) -> Experiment:
    """One of the two. The Transformer's memory holds a whole episode and the reset before it."""
    options = {
        "task.length": str(LENGTH),
        "train.curriculum": f"length=8..{LENGTH}",
        "train.steps": str(updates),
        "train.validate_every": str(max(updates // 10, 1)),
        "train.log_every": "20",
        "train.decay": "cosine",
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
            try:
                result = train(Job(contender(core, updates), run, resume=run.exists), device, engine, show)
            except (Interrupted, NotSaved) as stopped:
                what = str(stopped).partition(";")[0]
                raise type(stopped)(f"{NAMES[core]} {what}; the same command again goes on from there") from None
            assert result is not None
            result["test"] = evaluate_run(run.path, "test", None, 50, 101, device, engine, None)
            result["provenance"] = provenance()
            write_text(finished, json.dumps(result) + "\n")
        results[core] = json.loads(finished.read_text(encoding="utf-8"))
    return results


def write_report(out: Path, results: dict[str, Any]) -> Path:
    """The page, and the picture beside it."""
    runs = [
        report.gather(out / core, name=NAMES[core], scores=result["test"], provenance=result["provenance"])
        for core, result in results.items()
    ]
    report.write_png(out / "curves.png", runs)
    page = out / "report.html"
    notes = [
        f"Laptop scale: models of 0.1 million weights, episodes of {LENGTH} actions, a curriculum over their length; "
        "the paper's have 3.2 million weights and episodes of 100 actions.",
        "Both models had the same curriculum, updates and tokens. Feedback remembers 16 tokens; the Transformer sees "
        "the whole episode.",
    ]
    report.write_html(page, "Where am I? Feedback and a Transformer on the random walk", runs, [table(results)], notes)
    return page


def table(results: dict[str, Any]) -> Table:
    """Ours beside the paper's."""
    rows = [
        [
            NAMES[core],
            f"{result['weights']:,}",
            f"{result['tokens']:,}",
            f"{result['test']['accuracy']:.1f}",
            f"{PAPER[core]:.0f}",
        ]
        for core, result in results.items()
    ]
    columns = ["model", "weights", "tokens", f"ours, {LENGTH} actions (%)", "paper, 100 actions (%)"]
    caption = f"Accuracy on {results['feedback']['test']['scored']:,} actions of fresh episodes, one seed"
    return Table("Random walk: where is the agent?", columns, rows, caption)
