"""Commands on what is trained: `report`, `generate`; and about this installation: `info`, `bench`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from stairwell.cli.app import Device, app
from stairwell.errors import UserError


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


@app.command()
def generate(
    run: Annotated[Path, typer.Argument(help="the run folder of a language model")],
    prompt: Annotated[str, typer.Option(help="the text to go on from")] = "\n",
    tokens: Annotated[int, typer.Option(help="how many tokens to write", min=1)] = 500,
    temperature: Annotated[
        float,
        typer.Option(
            help="lower is more predictable: 1 samples from the model's own distribution, 0 takes the likeliest", min=0
        ),
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="choose among so many likeliest tokens only")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="choose among the likeliest tokens that together have this chance")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed writes the same text", min=0, max=2**63 - 1)] = None,
    device: Device = "auto",
) -> None:
    """Let a trained language model write, token by token as it comes."""
    from stairwell.generate import generate_text

    for piece in generate_text(run, prompt, tokens, temperature, top_k, top_p, seed, device):
        print(piece, end="", flush=True)
    print()


@app.command()
def info() -> None:
    """Tell versions, device, engine and threads."""
    from stairwell.runs.trainings import information

    for name, value in information().items():
        print(f"{name:12} {value}")


# The measurements have a help of their own, which lists them with their cases.
@app.command("bench", add_help_option=False, context_settings={"ignore_unknown_options": True})
def bench_command(
    arguments: Annotated[list[str] | None, typer.Argument(help="what to measure, then cases", metavar="NAME")] = None,
) -> None:
    """Measure speed and memory, from a checkout of the sources; `--help` lists what there is."""

    for place in (Path.cwd(), Path(__file__).resolve().parents[2]):
        # A folder of this name beside the package: nobody else's is run.
        if (place / "bench/__main__.py").is_file() and (place / "stairwell/__init__.py").is_file():
            sys.path.insert(0, str(place))
            importlib.import_module("bench.__main__").run(arguments or [])
            return
    raise UserError("the measurements come with the sources: clone them and run `stairwell bench` in that folder")
