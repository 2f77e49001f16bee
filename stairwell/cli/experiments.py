"""`stairwell list` and `stairwell reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stairwell.cli.app import MAX_RUNS, MAX_SEED, Device, Engine, Quiet, app, output_option
from stairwell.cli.data import data_list
from stairwell.cli.help import REPRODUCE
from stairwell.cli.options import OPTIONS, PresetCommand, all_tasks, as_given, complete_experiment, same_option
from stairwell.errors import UserError, suggestion

if TYPE_CHECKING:
    from stairwell.experiments.experiment import Experiment, Variant


@app.command("list", rich_help_panel=REPRODUCE)
def list_command(
    what: Annotated[
        str | None, typer.Argument(help="What to list: experiments, models, tasks, cores or data; all if not given.")
    ] = None,
) -> None:
    """List experiments, pretrained models, tasks, cores (the recurrent models) and data."""
    from stairwell.cores import CORES
    from stairwell.tasks import TASKS

    names = all_tasks()

    def cores() -> None:
        for name, entry in CORES.items():
            print(f"{name:24} {entry.description}")

    def tasks() -> None:
        for name in names:
            print(f"{name:24} {TASKS[name][2]}")

    def experiments() -> None:
        from stairwell.experiments.reproduce import describe

        print("To train: TASK/CORE, such as random-walk/feedback. All combinations are valid.")
        print(f"tasks  {', '.join(names)}\ncores  {', '.join(CORES)}\n")
        print("To reproduce (stairwell reproduce NAME --scale laptop|paper):\n")
        describe(print)

    def models() -> None:
        from stairwell import checkpoints

        print(f"{'name':22} {'task':42} {'size':8} score")
        for name in checkpoints.names():
            card = checkpoints.read_card(name)
            print(f"{name:22} {card['task']:42} {checkpoints.size_of(name) / 1e6:.1f} MB   {card['score']}")

    listings = {"experiments": experiments, "models": models, "tasks": tasks, "cores": cores, "data": data_list}
    if what is not None and what not in listings:
        raise UserError(f"cannot list '{what}'{suggestion(what, listings)}")
    for name, show in listings.items():
        if what is None:
            print(f"\n{name}\n{'-' * len(name)}")
        if what in (None, name):
            show()


REPRODUCE_EXAMPLES = """\b
Examples:
  stairwell reproduce demo
  stairwell reproduce staircase.table1.random-walk --dry-run
  stairwell reproduce feedback.figure5 --task.path ptb --jobs 2

`stairwell list experiments` lists the names. A prefix such as `staircase.table1` selects every experiment below it.
"""


def reproduce_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of an experiment, or demo.", autocompletion=complete_experiment)],
    scale: Annotated[
        str,
        typer.Option(
            help="laptop: minutes to hours on two CPU cores; paper: the papers' sizes.", metavar="laptop|paper"
        ),
    ] = "laptop",
    out: Annotated[Path | None, output_option("Folder for the runs and the report.", "runs/NAME-SCALE")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Number of seeds per variant, counted from --first-seed.",
            min=1,
            max=MAX_RUNS,
            show_default="from the experiment",
        ),
    ] = None,
    first_seed: Annotated[
        int,
        typer.Option("--first-seed", help="First seed: N trains seeds N, N + 1, ...", min=0, max=MAX_SEED - MAX_RUNS),
    ] = 0,
    seed: Annotated[int | None, typer.Option("--seed", hidden=True)] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Runs trained in parallel; they share the threads.", min=1, show_default="1; demo: 3"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Train this variant only; may be repeated.", metavar="VARIANT")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the planned runs and their estimated time.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps (--train.steps).", min=1, show_default="from the experiment")
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    quiet: Quiet = False,
) -> None:
    """Run an experiment from the papers and print its results next to the paper's. The same command resumes it."""
    from stairwell.cli.display import display
    from stairwell.cli.tables import print_table
    from stairwell.experiments import experiment, papers, reproduce
    from stairwell.runs.device import choose_device
    from stairwell.train import Interrupted

    if scale not in experiment.SCALES:
        raise UserError(f"--scale must be laptop or paper, not '{scale}'")
    choose_device(device)  # a wrong device name is an error even if all runs are finished
    options = context.meta[OPTIONS]
    for option, value in (("--seed", seed), ("--train.seed", options.get("train.seed"))):
        if value is not None:
            raise UserError(
                f"{option}: an experiment trains several seeds per variant; for seed {value} alone give "
                f"--first-seed {value} --seeds 1"
            )
    changes = same_option("--steps", steps, "train.steps", options)
    with as_given(changes, {"train.steps": "--steps"} if steps is not None else {}):
        planned = [
            e.changed(changes, seeds, first_seed)
            for e in papers.find_experiments(name, "paper" if scale == "paper" else "laptop")
        ]
    only = only or []
    experiment.check_variants(name, [variant.name for e in planned for variant in e.variants], only)
    for chosen in planned:
        if only and not any(variant.name in only for variant in chosen.variants):
            continue
        folder = out / chosen.name if out and name != chosen.name else out or default_folder(chosen.name, scale)
        if dry_run:
            print_table(reproduce.plan_table(chosen, folder, device, only))
            continue
        check_page_path(chosen.page, folder)
        remaining = reproduce.missing(chosen, folder, only)
        try:
            with experiment_display(chosen, remaining, jobs or chosen.jobs, quiet) as callback:
                result = reproduce.reproduce(
                    chosen, folder, device=device, engine=engine, jobs=jobs, only=only, callback=callback,
                    show=lambda title, total, done: display(title, total, done, quiet),
                )  # fmt: skip
            page = reproduce.write_report(chosen, folder, result)
        except KeyboardInterrupt:  # outside of training
            raise Interrupted("interrupted; the same command resumes") from None
        print_table(reproduce.table(result))
        for text in reproduce.remarks(result):
            print(text)
        print(f"report: {page}")
        if chosen.page:
            print(f"interactive page: {write_page(chosen, folder)}")


reproduce_command.__doc__ = f"{reproduce_command.__doc__}\n\n{REPRODUCE_EXAMPLES}"


app.command("reproduce", cls=PresetCommand, rich_help_panel=REPRODUCE)(reproduce_command)


def default_folder(name: str, scale: str) -> Path:
    return Path("runs") / (name if name == "demo" else f"{name}-{scale}")


def experiment_display(experiment: Experiment, left: list[tuple[Variant, int]], jobs: int, quiet: bool) -> Any:
    """Return the display of an experiment's runs: panels side by side if all train in parallel, otherwise lines."""
    from stairwell.cli.display import RunLog, side_by_side

    steps = {f"{variant.name}, seed {seed}": variant.config.train.total_steps for variant, seed in left}
    if 1 < len(left) <= jobs:
        return side_by_side(steps, quiet)
    return RunLog(experiment.name, quiet)


def check_page_path(has_page: bool, folder: Path) -> None:
    """Raise an error, before anything is trained, if the page would overwrite a file that stairwell did not write."""
    from stairwell import outputs
    from stairwell.export import PAGE

    if has_page:
        outputs.check(folder / "drive.html", PAGE)


def write_page(experiment: Experiment, folder: Path) -> Path:
    """Write the interactive page of the first seed of every variant that was trained."""
    from stairwell.experiments.reproduce import read_result, run_of
    from stairwell.export import export_html, from_runs

    seed = experiment.first_seed
    finished = [variant for variant in experiment.variants if read_result(folder, variant, seed)]
    export_html(from_runs(run_of(folder, variant, seed).path for variant in finished), folder / "drive.html")
    return folder / "drive.html"
