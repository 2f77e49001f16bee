"""The typer application, options shared by several commands, and the output of results."""

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
    help="Transformers with recurrent memory: train, evaluate, use and reproduce them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def output_option(help: str) -> Any:
    """Return an option for an output path. An empty path, as from an unset variable, is refused: `Path("")`
    would be the current folder."""
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


MOST_SEED = 2**63 - 1  # the largest seed of PyTorch's random generators
MOST_SEEDS = 1000  # runs of one command; more is a typing error
# Groups of commands in the help.
TRAIN, USE, REPRODUCE, MAINTAIN = "Train", "Use", "Reproduce", "Maintain"

# Options that several commands share.
Device = Annotated[str, typer.Option(help="cpu, cuda or mps; auto uses a GPU if there is one.")]
Engine = Annotated[
    str, typer.Option(help="auto, fast or reference.", callback=one_of("--engine", "auto", "fast", "reference"))
]
WeightsName = Annotated[
    str,
    typer.Option(
        "--weights",
        help="float32, bfloat16 or int8: parameters of the decoder with fewer bits, for speed.",
        callback=one_of("--weights", "float32", "bfloat16", "int8"),
    ),
]
SplitName = Annotated[str, typer.Option(help="valid or test.", callback=one_of("--split", "valid", "test"))]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def say(text: str) -> None:
    """Print to stderr, from the first of several training processes only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def strict_json(result: dict[str, Any]) -> str:
    """Return a result as JSON. Infinity and NaN, which JSON lacks, become null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in result.items()
    }
    return json.dumps(finite)


def result_text(result: dict[str, Any]) -> str:
    width = max(len(name) for name in result)
    return "\n".join(f"{name:{width}}  {value:.6g}" if isinstance(value, float) else f"{name:{width}}  {value}"
                     for name, value in result.items())  # fmt: skip
