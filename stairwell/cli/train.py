"""`stairwell train` and `stairwell eval`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stairwell import startup
from stairwell.cli.app import (
    MOST_SEEDS,
    AsJson,
    Device,
    Engine,
    Quiet,
    SplitName,
    app,
    output_option,
    result_text,
    strict_json,
)
from stairwell.cli.options import ExperimentCommand, complete_experiment, same_option, with_dotted_options
from stairwell.errors import UserError

EXAMPLES = """\b
Examples:
  stairwell train random-walk/feedback
  stairwell train random-walk/feedback --help      its options and their defaults
  stairwell train lm/staircase --task.path my-texts --out runs/mine
  stairwell train --resume --out runs/mine
  stairwell train --config runs/mine/config.json --seed 1 --out runs/again
"""


def train_command(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="TASK/CORE, such as random-walk/feedback", autocompletion=complete_experiment, metavar="EXPERIMENT"
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="a run's config.json instead of an experiment's name")] = None,
    out: Annotated[Path | None, output_option("the run folder; runs/TASK-CORE if not given")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the training in --out")] = False,
    steps: Annotated[int | None, typer.Option(help="the same as --train.steps; may change when resuming")] = None,
    seed: Annotated[int | None, typer.Option(help="the same as --train.seed")] = None,
    seeds: Annotated[
        int, typer.Option(help="train this many times, with seeds one apart, and sum up", min=1, max=MOST_SEEDS)
    ] = 1,
    device: Device = "auto",
    engine: Engine = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    show: Annotated[bool, typer.Option("--show", help="print the whole config and stop")] = False,
    options: Any = None,
) -> None:
    """Train a model. Every field of an experiment can be set: see the panels below."""
    from stairwell.cli.display import NullDisplay, display
    from stairwell.runs.launch import job_to_resume, new_job, train, train_seeds
    from stairwell.train import NotSaved

    options = same_option("--steps", steps, "train.steps", options or {})
    options = same_option("--seed", seed, "train.seed", options)
    try:
        job = (job_to_resume if resume else new_job)(experiment, config, out, options)
    except KeyboardInterrupt:
        raise NotSaved(startup.TOO_EARLY) from None
    if show:
        print(json.dumps(job.experiment.to_json(), indent=2))
        return

    def progress(title: str, total: int, done: int) -> Any:
        return display(title, total, done, quiet) if os.environ.get("RANK", "0") == "0" else NullDisplay()

    if seeds == 1:
        result = train(job, device, engine, progress)
    else:
        result = train_seeds(job, seeds, device, engine, progress)
    if result is not None:
        print(strict_json(result) if as_json else result_text(result))


train_command.__doc__ = f"{train_command.__doc__}\n\n{EXAMPLES}"


app.command("train", cls=ExperimentCommand)(with_dotted_options(train_command))


@app.command("eval")
def eval_command(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    split: SplitName = "test",
    data: Annotated[str | None, typer.Option(help="other data of the same kind, for tasks that read files")] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="parallel rows; 1 is exact for a single stream of text; --horizon: streams (4, or all labeled)",
            min=1,
        ),
    ] = None,
    segment: Annotated[int, typer.Option(help="tokens at a time; changes speed, not results", min=1)] = 256,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="summaries: also score the lead and the most similar article's summary")
    ] = False,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="follow endless streams or labeled sequences for so many tokens, to the first mistake", min=1
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="--horizon: follow the rows of so many seeds", min=1)] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    as_json: AsJson = False,
) -> None:
    """Stream a whole split through a trained model and score it; or follow a stream that never ends (--horizon)."""
    from stairwell.runs.launch import evaluate_run
    from stairwell.runs.seq2seq import score_baselines

    chosen: Literal["valid", "test"] = "valid" if split == "valid" else "test"
    if horizon is not None:
        if baselines:
            raise UserError("--baselines goes with a split; leave it out with --horizon")
        follow_run(run, horizon, rows, seeds, segment, device, engine, as_json, chosen, data)
        return
    if seeds is not None:
        raise UserError("--seeds goes with --horizon; a split is the same for every seed")
    watch = evaluating(as_json)
    # The baselines first: where there are none, nobody should wait for the model's scores to be told so.
    found = score_baselines(run, chosen, device, data) if baselines else {}
    result = {**evaluate_run(run, chosen, data, rows or 1, segment, device, engine, watch), **found}
    if watch is not None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # the counter has done its work
    print(strict_json(result) if as_json else result_text(result))


def evaluating(hidden: bool) -> Callable[[dict[str, Any]], None] | None:
    """A counter on one line while a split is read."""
    if hidden or not sys.stderr.isatty():
        return None

    def show(event: dict[str, Any]) -> None:
        print(f"\r{event['tokens']:,} tokens", end="", file=sys.stderr, flush=True)

    return show


def follow_run(
    run: Path,
    tokens: int,
    rows: int | None,
    seeds: int | None,
    segment: int,
    device: str,
    engine: str,
    as_json: bool,
    split: Literal["valid", "test"] = "test",
    data: str | None = None,
) -> None:
    """The horizon of a run; what was seen is told, however early someone stopped it."""
    from stairwell.cli.long_streams import following, horizon_text
    from stairwell.runs.long_streams import measure
    from stairwell.train import Interrupted

    with following(hidden=as_json) as watch:
        result = measure(run, tokens, rows, seeds, segment, device, engine, watch, split, data)
    print(strict_json(result) if as_json else horizon_text(result))
    if result["interrupted"]:
        kept = "what was seen is written" if result["kept"] else "a longer measurement is there and stays"
        raise Interrupted(f"interrupted at {result['tokens']:,} of {tokens:,} tokens; {kept}")
