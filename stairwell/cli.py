"""The command line. The only room that parses arguments and prints.

Results go to stdout, progress to stderr. Exit status: 0 done, 1 failed (a diverged training, a full disk), 2 the user's
mistake, 130 interrupted and saved.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="stairwell",
    help="Transformers that read their own past thoughts: train, evaluate and compare them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="Published corpora: list, fetch and check them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

EXAMPLES = """\b
Examples:
  stairwell train random-walk/feedback
  stairwell train lm/staircase --task.path my-texts --out runs/mine
  stairwell train --resume --out runs/mine
  stairwell train --config runs/mine/config.json --seed 1 --out runs/again
"""


NARROW = 11  # characters for an option's type in the help


def say(text: str) -> None:
    """To stderr; of processes that train together only the first speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def dotted_options() -> list[tuple[str, str, str]]:
    """Every option `section.field` that any experiment has: its name, its type, its help."""
    from stairwell import configs
    from stairwell.cores import CORES
    from stairwell.experiments.experiment import DERIVED
    from stairwell.models import LanguageModelConfig
    from stairwell.tasks import TASKS, task_type
    from stairwell.train_config import TrainConfig

    kinds: dict[str, dict[str, type]] = {
        "core": {name: entry.config for name, entry in CORES.items()},
        "model": {"": LanguageModelConfig},
        "task": {name: task_type(name)[0] for name in TASKS},
        "train": {"": TrainConfig},
    }
    options = []
    for section, members in kinds.items():
        fields: dict[str, tuple[str, str, list[str]]] = {}
        for member, kind in members.items():
            help = configs.field_help(kind)
            for name, annotation in configs.field_types(kind).items():
                if name in DERIVED.get(section, ()):
                    continue
                words = (configs.short_type_name(annotation), help.get(name, ""))
                fields.setdefault(name, (*words, []))[2].append(member)
        for name, (kind_name, words_of, owners) in fields.items():
            # A long list of choices would leave no room for the options' names.
            if len(kind_name) > NARROW:
                kind_name, words_of = "choice", f"{words_of} ({kind_name})"
            # Options that only some cores or tasks have say which.
            only = f" ({', '.join(owners)})" if len(owners) <= len(members) // 2 else ""
            options.append((f"{section}.{name}", kind_name, words_of + only))
    return options


def with_dotted_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options `--section.field`; those that were used arrive in `options`."""
    named = {name.replace(".", "__"): (name, kind, help) for name, kind, help in dotted_options()}

    def wrapped(**arguments: Any) -> None:
        options = {named[key][0]: arguments.pop(key) for key in list(arguments) if key in named}
        command(**arguments, options={name: text for name, text in options.items() if text is not None})

    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "options"]
    hints = inspect.get_annotations(command, eval_str=True)
    dotted = []
    for key, (name, kind, help) in named.items():
        option = typer.Option(f"--{name}", help=help, metavar=kind, rich_help_panel=name.partition(".")[0])
        hints[key] = Annotated[str | None, option]
        dotted.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[key]))
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]) for parameter in own
    ]
    hints.pop("options", None)
    wrapped.__signature__ = inspect.Signature([*own, *dotted])  # type: ignore[attr-defined]
    wrapped.__annotations__ = hints
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped


def complete_experiment(incomplete: str) -> list[str]:
    from stairwell.cores import CORES
    from stairwell.tasks import TASKS

    names = [f"{task}/{core}" for task in TASKS for core in CORES]
    return [name for name in names if name.startswith(incomplete)]


def complete_study(incomplete: str) -> list[str]:
    from stairwell.experiments.papers import CATALOGUE

    return [name for name in ("demo", *CATALOGUE) if name.startswith(incomplete)]


@app.command("list")
def list_command(
    what: Annotated[
        str | None, typer.Argument(help="experiments, tasks, cores or data; all of them if not given")
    ] = None,
) -> None:
    """Show what there is: experiments, tasks, cores, data."""
    from stairwell.cores import CORES
    from stairwell.tasks import TASKS

    def cores() -> None:
        for name, entry in CORES.items():
            print(f"{name:24} {entry.description}")

    def tasks() -> None:
        for name, (_, _, words) in TASKS.items():
            print(f"{name:24} {words}")

    def experiments() -> None:
        from stairwell.experiments.reproducing import describe

        print("To train: TASK/CORE, such as random-walk/feedback; every task goes with every core.")
        print(f"tasks  {', '.join(TASKS)}\ncores  {', '.join(CORES)}\n")
        print("To reproduce (stairwell reproduce NAME --scale laptop|paper):\n")
        print("demo\n  Feedback against a Transformer on the random walk, live; 9 minutes on two cores\n")
        describe(print)

    kinds = {"experiments": experiments, "tasks": tasks, "cores": cores, "data": data_list}
    if what is not None and what not in kinds:
        raise ValueError(f"cannot list '{what}'; there are: {', '.join(kinds)}")
    for name, show in kinds.items():
        if what is None:
            print(f"\n{name}\n{'-' * len(name)}")
        if what in (None, name):
            show()


def train_command(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="TASK/CORE, such as random-walk/feedback", autocompletion=complete_experiment, metavar="EXPERIMENT"
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="a run's config.json instead of an experiment's name")] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder; runs/TASK-CORE if not given")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the training in --out")] = False,
    steps: Annotated[int | None, typer.Option(help="the same as --train.steps; may be raised when resuming")] = None,
    seed: Annotated[int | None, typer.Option(help="the same as --train.seed")] = None,
    seeds: Annotated[int, typer.Option(help="train this many times, with seeds one apart, and sum up", min=1)] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps; auto takes a GPU if there is one")] = "auto",
    engine: Annotated[str, typer.Option(help="auto, fast or reference")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the result as one JSON object")] = False,
    show: Annotated[bool, typer.Option("--show", help="print the whole config and stop")] = False,
    options: Any = None,
) -> None:
    """Train a model. Every field of an experiment can be set: see the panels below."""
    from stairwell.display import Silence, display
    from stairwell.experiments.running import plan, train, train_seeds

    options = dict(options or {})
    for name, value in (("train.steps", steps), ("train.seed", seed)):
        if value is not None:
            options[name] = str(value)
    planned = plan(experiment, config, out, resume, options)
    if show:
        print(json.dumps(planned.experiment.to_json(), indent=2))
        return

    def progress(title: str, total: int, done: int) -> Any:
        return display(title, total, done, quiet) if os.environ.get("RANK", "0") == "0" else Silence()

    if seeds == 1:
        result = train(planned, device, engine, progress)
    else:
        result = train_seeds(planned, seeds, device, engine, progress)
    if result is not None:
        print(strict_json(result) if as_json else result_text(result))


train_command.__doc__ = f"{train_command.__doc__}\n\n{EXAMPLES}"
app.command("train")(with_dotted_options(train_command))


@app.command("eval")
def eval_command(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    split: Annotated[str, typer.Option(help="valid or test")] = "test",
    data: Annotated[str | None, typer.Option(help="other data of the same kind, for tasks that read files")] = None,
    rows: Annotated[int, typer.Option(help="parallel rows; 1 is exact for a single stream of text", min=1)] = 1,
    segment: Annotated[int, typer.Option(help="tokens at a time; changes speed, not results", min=1)] = 256,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps; auto takes a GPU if there is one")] = "auto",
    engine: Annotated[str, typer.Option(help="auto, fast or reference")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="the result as one JSON object")] = False,
) -> None:
    """Stream a whole split through a trained model and score it."""
    from stairwell.experiments.running import evaluate_run

    if split not in ("valid", "test"):
        raise ValueError(f"--split must be valid or test, not '{split}'")
    watch = evaluating(as_json)
    result = evaluate_run(run, "valid" if split == "valid" else "test", data, rows, segment, device, engine, watch)
    if watch is not None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # the counter has done its work
    print(strict_json(result) if as_json else result_text(result))


REPRODUCE_EXAMPLES = """Examples:

    stairwell reproduce demo

    stairwell reproduce staircase.table1.random-walk --dry-run

    stairwell reproduce feedback.figure5 --task.path ptb --jobs 2

`stairwell list experiments` tells the names. A name without its last part stands for all parts.
"""


def reproduce_command(
    name: Annotated[str, typer.Argument(help="demo, or a table or figure", autocompletion=complete_study)],
    scale: Annotated[
        str, typer.Option(help="laptop: two cores, minutes to hours; paper: the papers' sizes")
    ] = "laptop",
    out: Annotated[Path | None, typer.Option(help="where runs and report go; runs/NAME-SCALE if not given")] = None,
    seeds: Annotated[int | None, typer.Option(help="train every model so many times", min=1)] = None,
    jobs: Annotated[int, typer.Option(help="trainings at a time, each with its share of the threads", min=1)] = 1,
    only: Annotated[list[str] | None, typer.Option(help="train this model alone; may be given several times")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="tell what would run and for how long")] = False,
    updates: Annotated[int | None, typer.Option(help="the same as --train.steps", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps; auto takes a GPU if there is one")] = "auto",
    engine: Annotated[str, typer.Option(help="auto, fast or reference")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    options: Any = None,
) -> None:
    """Run an experiment of the papers and show our numbers beside theirs. Stopped ones go on where they were."""
    from stairwell.display import display
    from stairwell.experiments import papers, reproducing, study
    from stairwell.train import Interrupted

    progress = lambda title, total, done: display(title, total, done, quiet)  # noqa: E731
    if name == "demo":
        demo(out or Path("runs/demo"), updates or 4000, device, engine, progress)
        return
    if scale not in study.SCALES:
        raise ValueError(f"--scale must be laptop or paper, not '{scale}'")
    changes = {**(options or {}), **({"train.steps": str(updates)} if updates else {})}
    for planned in papers.studies(name, "paper" if scale == "paper" else "laptop"):
        wanted = planned.changed(changes, seeds)
        place = out / wanted.name if out and name != wanted.name else out or Path("runs") / f"{wanted.name}-{scale}"
        if dry_run:
            print_table(reproducing.plan_table(wanted, place, device))
            continue
        tell: Callable[[str], None] = (lambda _: None) if quiet else say
        try:
            result = reproducing.reproduce(wanted, place, device, engine, jobs, progress, tell, tuple(only or ()))
        except KeyboardInterrupt:  # while nothing was training
            raise Interrupted("interrupted; the same command again goes on from there") from None
        page = reproducing.write_report(wanted, place, result)
        print_table(reproducing.table(result))
        print(f"The whole story: {page}")


reproduce_command.__doc__ = f"{reproduce_command.__doc__}\n\n{REPRODUCE_EXAMPLES}"
app.command("reproduce")(with_dotted_options(reproduce_command))


def demo(place: Path, updates: int, device: str, engine: str, progress: Any) -> None:
    from stairwell.experiments import faceoff

    results = faceoff.face_off(place, updates, device, engine, progress)
    page = faceoff.write_report(place, results)
    print_table(faceoff.table(results))
    print(f"The whole story: {page}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders, compared on one page")],
    out: Annotated[Path, typer.Option(help="the page to write; the picture goes beside it")] = Path("report.html"),
) -> None:
    """Make one HTML page (and a PNG) of trainings: curves, scores, beliefs, attention."""
    from stairwell.report import gather, summary, write_html, write_png

    gathered = [gather(run) for run in runs]
    write_html(out, ", ".join(dict.fromkeys(run.task for run in gathered)), gathered, [summary(gathered)], [])
    write_png(out.with_suffix(".png"), gathered)
    print(out)


def print_table(table: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=table.title, caption=table.caption)
    for column in table.columns:
        shown.add_column(column)
    for row in table.rows:
        shown.add_row(*(str(cell) for cell in row))
    Console().print(shown)


@app.command()
def generate(
    run: Annotated[Path, typer.Argument(help="the run folder of a language model")],
    prompt: Annotated[str, typer.Option(help="the text to go on from")] = "\n",
    tokens: Annotated[int, typer.Option(help="how many tokens to write", min=1)] = 500,
    temperature: Annotated[
        float, typer.Option(help="below 1 bolder words get rarer; 0 always takes the likeliest", min=0)
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="choose among so many likeliest tokens only")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="choose among the likeliest tokens that together have this chance")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed writes the same text")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps; auto takes a GPU if there is one")] = "auto",
) -> None:
    """Let a trained language model write, token by token as it comes."""
    from stairwell.generate import generate_text

    for piece in generate_text(run, prompt, tokens, temperature, top_k, top_p, seed, device):
        print(piece, end="", flush=True)
    print()


@app.command()
def info() -> None:
    """Tell versions, device, engine and threads."""
    from stairwell.experiments.running import information

    for name, value in information().items():
        print(f"{name:12} {value}")


# The measurements have a help of their own, which lists them with their cases.
@app.command("bench", add_help_option=False, context_settings={"ignore_unknown_options": True})
def bench_command(
    arguments: Annotated[list[str] | None, typer.Argument(help="what to measure, then cases", metavar="NAME")] = None,
) -> None:
    """Measure speed and memory, from a checkout of the sources; `--help` lists what there is."""
    import stairwell

    for place in (Path.cwd(), Path(stairwell.__file__).resolve().parent.parent):
        # A folder of this name beside the package: nobody else's is run.
        if (place / "bench/__main__.py").is_file() and (place / "stairwell/__init__.py").is_file():
            sys.path.insert(0, str(place))
            importlib.import_module("bench.__main__").run(arguments or [])
            return
    raise ValueError("the measurements come with the sources: clone them and run `stairwell bench` in that folder")


def evaluating(hidden: bool) -> Callable[[dict[str, Any]], None] | None:
    """A counter on one line while a split is read."""
    if hidden or not sys.stderr.isatty():
        return None

    def show(event: dict[str, Any]) -> None:
        print(f"\r{event['tokens']:,} tokens", end="", file=sys.stderr, flush=True)

    return show


@data_app.command("list")
def data_list() -> None:
    """Show the published corpora that can be fetched."""
    from stairwell.data import CORPORA

    for corpus in CORPORA.values():
        size = f"{corpus.archive.size / 1e6:,.0f} MB" if corpus.archive.size else "size unknown"
        print(f"{corpus.name:24} {size:>8}  {corpus.about} ({corpus.licence})")


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="a corpus of `stairwell data list`")],
    to: Annotated[Path, typer.Option(help="the folder to put it in")] = Path("data"),
    source: Annotated[Path | None, typer.Option("--from", help="a copy at hand instead of a download")] = None,
) -> None:
    """Fetch a corpus, verify it and unpack it. An interrupted download goes on where it stopped."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from stairwell.data import find, get

    find(name)  # before a bar appears
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name)
        place = get(name, to, source, lambda done, total: bar.update(task, completed=done, total=total))
    print(place)


@data_app.command("check")
def data_check(path: Annotated[Path, typer.Argument(help="a file or folder")]) -> None:
    """Say what a file or folder is, and whether its checksums hold."""
    from stairwell.data import check

    report = check(path)
    print(f"{path}: {report.summary}")
    for verdict in report.files:
        word = {True: "whole", False: "WRONG", None: "no checksum published"}[verdict.holds]
        print(f"  {verdict.file.name}: {verdict.size:,} bytes, {word}; {verdict.detail}")
    if report.holds is False:
        raise typer.Exit(1)


def strict_json(result: dict[str, Any]) -> str:
    """JSON has no infinity and no NaN: they become null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in result.items()
    }
    return json.dumps(finite)


def result_text(result: dict[str, Any]) -> str:
    width = max(len(name) for name in result)
    return "\n".join(f"{name:{width}}  {value:.6g}" if isinstance(value, float) else f"{name:{width}}  {value}"
                     for name, value in result.items())  # fmt: skip


def main() -> None:
    """The entry point: every expected error is one line."""
    from stairwell.train import Diverged, Interrupted

    try:
        status = app(prog_name="stairwell", standalone_mode=False)
    except (Interrupted, KeyboardInterrupt, typer.Abort) as error:
        say(str(error) or "interrupted")
        sys.exit(130)
    except Diverged as error:
        fail(error, 1)
    except (ValueError, TypeError, *WRONG_PATHS) as error:
        fail(error, 2)
    except OSError as error:
        fail(error, 1)
    except Exception as error:
        usage_error(error)
        raise
    # Without a standalone mode `typer.Exit` arrives as a value.
    sys.exit(status if isinstance(status, int) else 0)


# What the operating system says when a path is not what it was taken for.
WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


def usage_error(error: Exception) -> None:
    """Errors of the argument parser in one line too; without any argument it shows the help instead."""
    if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
        return
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        sys.exit(error.exit_code)
    fail(ValueError(" ".join(error.format_message().split())), error.exit_code)


def fail(error: BaseException, status: int) -> None:
    """One line, no traceback; STAIRWELL_DEBUG=1 shows where it came from."""
    if os.environ.get("STAIRWELL_DEBUG"):
        raise error
    say(f"stairwell: {' '.join(str(error).split())}")
    sys.exit(status)
