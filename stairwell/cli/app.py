"""The typer application, options shared by several commands, and the output of results."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from stairwell.cli.help import App
from stairwell.errors import UserError

app = App(
    name="stairwell",
    help="Transformers with recurrent memory: train, evaluate, use and reproduce them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def output_option(help: str, default: str | bool = True) -> Any:
    """Return an option for an output path. `default` describes a default that is None. An empty path, as from an unset
    variable, is rejected: `Path("")` would be the current folder."""
    return typer.Option(help=help, parser=output_path, metavar="PATH", show_default=default)


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


@contextmanager
def naming(options: Mapping[str, str], prefix: str = "") -> Iterator[None]:
    """Name the options in errors of functions that know the parameters only: `options` has how a message about each of
    them starts, or its parameter. A prefix is added to all messages."""
    try:
        yield
    except UserError as error:
        message = str(error)
        for start, option in options.items():
            if message.startswith(f"{start} "):
                message = option + message[len(start) :]
            elif "_" in start:  # the name of a parameter, wherever it is
                message = re.sub(rf"(?<![\w.-]){start}(?![\w.])", option, message)
        error.args = (prefix + message,)
        raise


# How messages about sampling and search start, and the options they are about.
SAMPLING = {
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "the repetition penalty": "--repetition-penalty",
    "a stop string": "--stop",
    "the length penalty": "--length-penalty",
    "no_repeat_ngram_size": "--no-repeat-ngram-size",
    "max_length": "--max-length",
    "max_length_ratio": "--max-length-ratio",
    "min_length": "--min-length",
    "min_length_ratio": "--min-length-ratio",
}
MAX_SEED = 2**63 - 1  # the largest seed of PyTorch's random generators
MAX_RUNS = 1000  # runs of one command; more is a typing error

# Options that several commands share.
Device = Annotated[
    str, typer.Option(help="Device to compute on; auto uses a GPU if there is one.", metavar="auto|cpu|cuda|mps")
]
Engine = Annotated[
    str,
    typer.Option(
        help="Fast or reference implementation; auto uses the fast one where possible.",
        callback=one_of("--engine", "auto", "fast", "reference"),
        metavar="auto|fast|reference",
    ),
]
WeightsName = Annotated[
    str,
    typer.Option(
        "--weights",
        help="Data type of the parameters while decoding; fewer bits are faster.",
        callback=one_of("--weights", "float32", "bfloat16", "int8"),
        metavar="float32|bfloat16|int8",
    ),
]
SplitName = Annotated[
    str, typer.Option(help="Split to score.", callback=one_of("--split", "valid", "test"), metavar="valid|test")
]
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
