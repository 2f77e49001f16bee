"""`stairwell list` and `stairwell reproduce`: what there is, and the papers' tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from stairwell.cli.app import MOST_SEEDS, Device, Engine, Quiet, app, output_option, say
from stairwell.cli.data import data_list
from stairwell.cli.options import complete_study, same_option, with_dotted_options
from stairwell.errors import UserError, nearest


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
        from stairwell.experiments.reproduce import describe

        print("To train: TASK/CORE, such as random-walk/feedback; every task goes with every core.")
        print(f"tasks  {', '.join(TASKS)}\ncores  {', '.join(CORES)}\n")
        print("To reproduce (stairwell reproduce NAME --scale laptop|paper):\n")
        print(
            "demo\n  Feedback, a Cached Staircase and a Transformer on the random walk, live; 6 minutes on two cores\n"
        )
        describe(print)

    kinds = {"experiments": experiments, "tasks": tasks, "cores": cores, "data": data_list}
    if what is not None and what not in kinds:
        raise UserError(f"cannot list '{what}'{nearest(what, kinds)}")
    for name, show in kinds.items():
        if what is None:
            print(f"\n{name}\n{'-' * len(name)}")
        if what in (None, name):
            show()


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
    out: Annotated[
        Path | None,
        output_option("where runs and report go; runs/NAME-SCALE if not given"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="train every model so many times", min=1, max=MOST_SEEDS)] = None,
    jobs: Annotated[
        int | None, typer.Option(help="trainings at a time, each with its share of the threads; 1 if not given", min=1)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="train this model only; may be given several times", metavar="MODEL")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="tell what would run and for how long")] = False,
    updates: Annotated[int | None, typer.Option(help="the same as --train.steps", min=1)] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    quiet: Quiet = False,
    options: Any = None,
) -> None:
    """Run an experiment of the papers and show our numbers beside theirs. Stopped ones go on where they were."""
    from stairwell.cli.display import display
    from stairwell.cli.tables import print_table
    from stairwell.experiments import demo, experiment, papers, reproduce
    from stairwell.runs.launch import choose_device
    from stairwell.train import Interrupted

    progress = lambda title, total, done: display(title, total, done, quiet)  # noqa: E731
    if scale not in experiment.SCALES:
        raise UserError(f"--scale must be laptop or paper, not '{scale}'")
    choose_device(device)  # a finished folder trains nothing, but a wrong name is an error there too
    models = tuple(only or ())
    if name == "demo":
        refuse_for_demo(scale, seeds, jobs, options or {})
        place, most = out or Path("runs/demo"), updates or demo.UPDATES
        if dry_run:
            print_table(demo.plan_table(place, most, device, models))
        else:
            run_demo(place, most, device, engine, quiet, models)
        return
    changes = same_option("--updates", updates, "train.steps", options or {})
    planned = [made.changed(changes, seeds) for made in papers.studies(name, "paper" if scale == "paper" else "laptop")]
    experiment.check_models(name, [row.model for made in planned for row in made.rows], models)
    for wanted in planned:
        if models and not any(row.model in models for row in wanted.rows):
            continue
        place = out / wanted.name if out and name != wanted.name else out or Path("runs") / f"{wanted.name}-{scale}"
        if dry_run:
            print_table(reproduce.plan_table(wanted, place, device, models))
            continue
        tell: Callable[[str], None] = (lambda _: None) if quiet else say
        try:
            result = reproduce.reproduce(wanted, place, device, engine, jobs or 1, progress, tell, models)
            page = reproduce.write_report(wanted, place, result)
        except KeyboardInterrupt:  # while nothing was training
            raise Interrupted("interrupted; the same command again goes on from there") from None
        print_table(reproduce.table(result))
        print(f"report: {page}")


reproduce_command.__doc__ = f"{reproduce_command.__doc__}\n\n{REPRODUCE_EXAMPLES}"


app.command("reproduce")(with_dotted_options(reproduce_command))


def refuse_for_demo(scale: str, seeds: int | None, jobs: int | None, options: dict[str, str]) -> None:
    """Refuse the options that the demo has no use for: its page compares three given models, trained once each."""
    from stairwell.experiments import demo

    other = f"try stairwell reproduce {demo.STUDY}"
    if scale != "laptop":
        raise UserError(f"--scale {scale}: the demo has laptop scale only; {other} --scale {scale}")
    if seeds not in (None, 1):
        raise UserError(f"--seeds {seeds}: the demo trains every model once; {other} --seeds {seeds}")
    if jobs is not None:
        raise UserError(f"--jobs {jobs}: the demo trains all its models at once; leave out --jobs")
    if "train.steps" in options:
        raise UserError("--train.steps: for the demo give --updates")
    if options:
        raise UserError(
            f"--{min(options)}: the demo's models and task are fixed; {other} --{min(options)} {options[min(options)]}"
        )


def run_demo(place: Path, updates: int, device: str, engine: str, quiet: bool, only: tuple[str, ...] = ()) -> None:
    from stairwell import outputs
    from stairwell.cli.display import together
    from stairwell.cli.tables import print_table
    from stairwell.experiments import demo
    from stairwell.export import PAGE, export_html, from_runs

    drive = place / "drive.html"
    outputs.check(drive, PAGE)
    results = demo.face_off(place, updates, device, engine, lambda models: together(models, quiet), only)
    page = demo.write_report(place, results)
    export_html(from_runs(place / core for core in results), drive)
    print_table(demo.table(results))
    print(demo.fairness())
    print(f"report: {page}")
    print(f"drive the agent yourself: {drive}")
