"""`stairwell data`: published corpora, and one that is on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stairwell.cli.app import app, output_option, say

data_app = typer.Typer(
    help="Corpora: list, fetch and check published ones, make one of docstrings.", no_args_is_help=True
)


app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list() -> None:
    """Show the published corpora that can be fetched."""
    from stairwell.data import CORPORA

    for corpus in CORPORA.values():
        size = f"{corpus.archive.size / 1e6:,.0f} MB" if corpus.archive.size else "size unknown"
        print(f"{corpus.name:24} {size:>8}  {corpus.about} ({corpus.license})")


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="a corpus of `stairwell data list`")],
    to: Annotated[Path, output_option("the folder to put it in")] = Path("data"),
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


@data_app.command("docstrings")
def data_docstrings(
    to: Annotated[Path, output_option("the new folder to write to")] = Path("docstrings"),
    also: Annotated[
        list[Path] | None, typer.Option(help="read the packages of this site-packages folder, too; may be repeated")
    ] = None,
) -> None:
    """Make a corpus of the installed Python packages: functions, and the first sentences of their docstrings."""
    from rich.console import Console

    from stairwell.data import docstrings

    console = Console(stderr=True)
    with console.status("reading the functions of all installed packages") as status:

        def tell(package: str, pairs: int) -> None:
            status.update(f"{pairs:,} functions; reading {package}")

        made = docstrings.write(to, also or (), tell)
    for split, pairs in made["pairs"].items():
        say(f"{split}: {pairs:,} functions of {made['packages'][split]:,} packages")
    print(to)
