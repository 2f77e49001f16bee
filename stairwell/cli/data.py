"""`stairwell data`: published corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stairwell.cli.app import app, output_option
from stairwell.cli.help import TRAIN, App

data_app = App(help="List and download published corpora.", no_args_is_help=True)


app.add_typer(data_app, name="data", rich_help_panel=TRAIN)


@data_app.command("list")
def data_list() -> None:
    """List the published corpora that can be downloaded."""
    from stairwell.data import CORPORA

    for corpus in CORPORA.values():
        size = f"{corpus.archive.size / 1e6:,.0f} MB" if corpus.archive.size else "size unknown"
        print(f"{corpus.name:24} {size:>8}  {corpus.description} ({corpus.license})")


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A corpus of `stairwell data list`.")],
    to: Annotated[Path, output_option("Folder to put it in.")] = Path("data"),
    source: Annotated[Path | None, typer.Option("--from", help="Local copy to use instead of a download.")] = None,
) -> None:
    """Download, verify and unpack a corpus. An interrupted download is resumed."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from stairwell.data import find_corpus, get

    find_corpus(name)  # raises before a progress bar appears
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name)
        path = get(name, to, source, lambda done, total: bar.update(task, completed=done, total=total))
    print(path)
