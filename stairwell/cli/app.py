"""The application that commands are added to, and how results are shown."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from stairwell.errors import UserError

app = typer.Typer(
    name="stairwell",
    help="Transformers that read their own past thoughts: train, evaluate and compare them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def output_option(help: str) -> Any:
    """An option that names a path to write to. `Path` takes an empty one, as from a variable that is not set, for the
    current folder; here it is refused."""
    return typer.Option(help=help, parser=output_path, metavar="PATH")


def output_path(given: str | Path) -> Path:
    if not str(given).strip():
        raise typer.BadParameter("the path is empty; name a file or a folder")
    return Path(given)


def one_of(option: str, *choices: str) -> Callable[[str], str]:
    """Return a check of an option's value, for typer's `callback`."""

    def check(value: str) -> str:
        if value not in choices:
            raise UserError(f"{option} must be {', '.join(choices[:-1])} or {choices[-1]}, not '{value}'")
        return value

    return check


MOST_SEED = 2**63 - 1  # what PyTorch's random generators take
MOST_SEEDS = 1000  # trainings of one command; more is a typing error

# Options that several commands share.
Device = Annotated[str, typer.Option(help="cpu, cuda, mps; auto takes a GPU if there is one")]
Engine = Annotated[
    str, typer.Option(help="auto, fast or reference", callback=one_of("--engine", "auto", "fast", "reference"))
]
SplitName = Annotated[str, typer.Option(help="valid or test", callback=one_of("--split", "valid", "test"))]
AsJson = Annotated[bool, typer.Option("--json", help="the result as one JSON object")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]


def say(text: str) -> None:
    """To stderr; of processes that train together only the first speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


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
