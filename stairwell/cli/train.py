"""`stairwell train` and `stairwell eval`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from stairwell import startup
from stairwell.cli.app import (
    MAX_RUNS,
    AsJson,
    Device,
    Engine,
    Quiet,
    SplitName,
    WeightsName,
    app,
    output_option,
    result_text,
    say,
    strict_json,
)
from stairwell.cli.help import TRAIN
from stairwell.cli.options import OPTIONS, TASK_CORE, PresetCommand, as_given, complete_preset, same_option
from stairwell.errors import UserError

if TYPE_CHECKING:
    from stairwell.decode.weights import Weights
    from stairwell.runs.config import RunConfig
    from stairwell.runs.run import Run

EXAMPLES = """\b
Examples:
  stairwell train random-walk/feedback
  stairwell train random-walk/feedback --help      the options of one model
  stairwell train lm/staircase --task.path my-texts --out runs/mine
  stairwell train --resume --out runs/mine
  stairwell train --config runs/mine/config.json --seed 1 --out runs/again
"""
EVAL_EXAMPLES = """\b
Examples:
  stairwell eval runs/mine
  stairwell eval runs/mine --split valid --json
  stairwell eval s5-feedback --horizon 100000      mistakes in 4 streams of 100,000 tokens
"""


def train_command(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Task and core, which set the defaults (the preset); `stairwell list` shows all.",
            autocompletion=complete_preset,
            metavar=TASK_CORE,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A run's config.json, instead of TASK/CORE.")] = None,
    out: Annotated[Path | None, output_option("Run folder.", "runs/TASK-CORE")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    steps: Annotated[
        int | None,
        typer.Option(help="Optimizer steps (--train.steps); may change when resuming.", show_default="from the preset"),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(
            help="Agents: environment frames to train for, instead of --steps.",
            min=1,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed (--train.seed).", show_default="from the preset")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Train with this many consecutive seeds and summarize them.", min=1, max=MAX_RUNS)
    ] = 1,
    jobs: Annotated[int, typer.Option(help="Seeds trained in parallel, each in its own process.", min=1)] = 1,
    device: Device = "auto",
    engine: Engine = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    show: Annotated[bool, typer.Option("--show", help="Print the config and exit.")] = False,
) -> None:
    """Train a model. Every config field is an option; see `train TASK/CORE --help`."""
    from stairwell.runs.launch import new_run, run_to_resume, steps_of_frames
    from stairwell.train import NotSaved

    aliases = {"train.steps": "--steps"} if steps is not None else {}
    aliases |= {"train.seed": "--seed"} if seed is not None else {}
    options = same_option("--steps", steps, "train.steps", context.meta[OPTIONS])
    options = same_option("--seed", seed, "train.seed", options)
    if frames is not None and "train.steps" in options:
        raise UserError("--frames and --steps both set the length of the training; give one of them")
    with as_given(options, aliases):
        choose = run_to_resume if resume else new_run
        try:
            run_config, run = choose(name, config, out, options)
            if frames is not None:
                options["train.steps"] = str(steps_of_frames(run_config, frames))
                run_config, run = choose(name, config, out, options)
        except KeyboardInterrupt:
            raise NotSaved(startup.INTERRUPTED_AT_STARTUP) from None
        train_and_print(run_config, run, resume, seeds, jobs, device, engine, quiet, as_json, show)


def train_and_print(
    chosen: RunConfig,
    run: Run,
    resume: bool,
    seeds: int,
    jobs: int,
    device: str,
    engine: str,
    quiet: bool,
    as_json: bool,
    show: bool,
) -> None:
    """Train and print the result, or show the config."""
    from stairwell.cli.display import NullDisplay, RunLog, display
    from stairwell.runs.launch import last_improvement, train, train_seeds

    if show:
        print(json.dumps(chosen.to_json(), indent=2))
        return

    def progress(title: str, total: int, done: int) -> Any:
        return display(title, total, done, quiet, chosen.unit) if os.environ.get("RANK", "0") == "0" else NullDisplay()

    if seeds == 1:
        result = train(chosen, run, resume=resume, device=device, engine=engine, show=progress)
    elif resume:
        raise UserError(f"{run.path} is one run; to resume several --seeds, repeat the command that started them")
    else:
        result = train_seeds(
            chosen, run.path, seeds, jobs=jobs, device=device, engine=engine, show=progress,
            callback=RunLog(str(run.path), quiet),
        )  # fmt: skip
    if result is not None:
        named = {chosen.unit if name == "tokens" else name: value for name, value in result.items()}
        print(strict_json(named) if as_json else result_text(named))
    if result is not None and seeds == 1 and not quiet and (accuracies := last_improvement(chosen, run)):
        say(
            f"validation accuracy was still improving (from {accuracies[0]:.1f} to {accuracies[1]:.1f}); "
            f"continue with: stairwell train --resume --out {run.path} --steps {2 * result['steps']}"
        )


train_command.__doc__ = f"{train_command.__doc__}\n\n{EXAMPLES}"


app.command("train", cls=PresetCommand, rich_help_panel=TRAIN)(train_command)


def eval_command(
    run: Annotated[Path, typer.Argument(help="Run folder, or name of a pretrained model.")],
    split: SplitName = "test",
    data: Annotated[
        str | None,
        typer.Option(
            help="Data to score instead of the run's, in the same format; only for tasks that read files.",
            metavar="PATH",
        ),
    ] = None,
    streams: Annotated[
        int | None,
        typer.Option(
            help="Batch size (streams or environments); 1 keeps a text's full context.",
            min=1,
            show_default="1; agents: 64; --horizon: 4 or all",
        ),
    ] = None,
    segment: Annotated[
        int | None,
        typer.Option(help="Tokens per call; changes speed, not results. Not for agents.", min=1, show_default="256"),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Agents: take the most probable action (greedy) instead of sampling."),
    ] = False,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also score two summarization baselines: the article's first sentences, and the summary of the most "
            "similar training article.",
        ),
    ] = False,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Long-stream evaluation: read this many tokens per stream without a reset, and count mistakes.",
            min=1,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of random seeds of the streams (--horizon only).", min=1, show_default="1"),
    ] = None,
    weights: WeightsName = "float32",
    device: Device = "auto",
    engine: Engine = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a trained model on a split, or on streams far longer than those of training (--horizon)."""
    from stairwell.runs.families import EvalOptions
    from stairwell.runs.load import evaluate_run, save_test_scores
    from stairwell.runs.pair_runs import score_baselines

    split_name: Literal["valid", "test"] = "valid" if split == "valid" else "test"
    weight_type = cast("Weights", weights)
    if horizon is not None:
        for option, given in (("--baselines", baselines), ("--deterministic", deterministic)):
            if given:
                raise UserError(f"{option} needs a split; leave it out with --horizon")
        evaluate_long_streams(
            run, horizon, streams, seeds, segment or 256, device, engine, as_json, split_name, data, weight_type
        )
        return
    if seeds is not None:
        raise UserError("--seeds needs --horizon; a split is the same for every seed")
    callback = token_counter(as_json)
    # Score the baselines first, so that a task without baselines fails before the model is scored.
    scores = score_baselines(run, split_name, device, data) if baselines else {}
    options = EvalOptions(streams, segment, deterministic)
    result = {**evaluate_run(run, split_name, data, options, device, engine, callback, weight_type), **scores}
    if split_name == "test" and data is None and weight_type == "float32":
        save_test_scores(run, result)
    if callback is not None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # clear the counter
    print(strict_json(result) if as_json else result_text(result))


eval_command.__doc__ = f"{eval_command.__doc__}\n\n{EVAL_EXAMPLES}"
app.command("eval", rich_help_panel=TRAIN)(eval_command)


def token_counter(hidden: bool) -> Callable[[dict[str, Any]], None] | None:
    """Return a callback that shows the number of tokens or frames on one line of a terminal."""
    if hidden or not sys.stderr.isatty():
        return None

    def show(event: dict[str, Any]) -> None:
        print(f"\r{event['tokens']:,} {event.get('unit', 'tokens')}", end="", file=sys.stderr, flush=True)

    return show


def evaluate_long_streams(
    run: Path,
    tokens: int,
    streams: int | None,
    seeds: int | None,
    segment: int,
    device: str,
    engine: str,
    as_json: bool,
    split: Literal["valid", "test"] = "test",
    data: str | None = None,
    weights: Weights = "float32",
) -> None:
    """Evaluate a run on long streams and print the result, or the result so far if interrupted."""
    from stairwell.cli.long_streams import horizon_text, progress
    from stairwell.runs.long_streams import measure
    from stairwell.train import Interrupted

    with progress(hidden=as_json) as callback:
        result = measure(run, tokens, streams, seeds, segment, device, engine, callback, split, data, weights)
    print(strict_json(result) if as_json else horizon_text(result))
    if result["interrupted"]:
        status = "the result so far is saved" if result["saved"] else "an earlier, longer result is kept"
        raise Interrupted(f"interrupted at {result['tokens']:,} of {tokens:,} tokens; {status}")
