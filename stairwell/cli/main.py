"""The entry point: exit statuses, and every expected error in one line.

0 done, 1 failed (a diverged run, a full disk, a run interrupted before it started or could be saved, a bug,
which keeps its traceback), 2 a user error, 130 interrupted and saved.
"""

from __future__ import annotations

import difflib
import errno
import os
import sys
from collections.abc import Iterable
from typing import NoReturn

import typer

from stairwell import startup
from stairwell.cli import data, experiments, options, play, seq2seq, train, use  # noqa: F401  each adds its commands
from stairwell.cli.app import app, say
from stairwell.errors import MIN_SIMILARITY, UserError

INTERRUPTED = 130


# Errors of the operating system about wrong paths.
WRONG_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


def main() -> None:
    """Run a command and exit with its status. Every expected error is one line."""
    try:
        status = command()
    except KeyboardInterrupt:  # while modules are imported
        say(startup.INTERRUPTED_AT_STARTUP)
        sys.exit(1)
    if status == INTERRUPTED:
        say("interrupted")
    sys.exit(status)


def command() -> int:
    """Run the command and return its exit status. typer turns Ctrl-C into a status."""
    from stairwell.cli.display import use_safe_stderr
    from stairwell.train import Diverged, Interrupted, NotSaved

    startup.restore_interrupt()
    use_safe_stderr()
    try:
        status = app(prog_name="stairwell", standalone_mode=False)
    except (Interrupted, typer.Abort) as error:
        say(str(error) or "interrupted")
        sys.exit(INTERRUPTED)
    except (Diverged, NotSaved) as error:
        fail(error, 1)
    except (UserError, *WRONG_PATHS) as error:
        fail(error, 2)
    except OSError as error:
        fail(error, 2 if error.errno in WRONG_NAMES else 1)
    except Exception as error:
        if is_out_of_memory(error):
            fail(UserError(f"out of memory ({error}); lower {what_to_lower(sys.argv[1:])}"), 1)
        usage_error(error)
        raise
    # Outside standalone mode, `typer.Exit` is returned as a value.
    return status if isinstance(status, int) else 0


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory ran out. Libraries raise different ones."""
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


# The options of each command that its memory depends on.
LARGE = {
    "eval": "--streams or --segment",
    "translate": "--batch, --beam or --nbest",
    "summarize": "--batch, --beam or --nbest",
    "tune": "--beam",
    "distill": "--batch or --beam",
    "serve": "--batch or --max-prompt",
}


def what_to_lower(words: list[str]) -> str:
    command = next((word for word in words if not word.startswith("-")), "")
    return LARGE.get(command, "--train.batch, or the model's size")


def usage_error(error: Exception) -> None:
    """Exit with one line for an error of the argument parser; without any arguments, show the help instead."""
    if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
        return
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        sys.exit(error.exit_code)
    # An option without a value has a name too, but no `possibilities`.
    if (option := getattr(error, "option_name", "")) and hasattr(error, "possibilities"):
        context = getattr(error, "ctx", None)
        if context is not None and options.PRESET in context.meta:
            hint = options.near_option(option, context.meta[options.PRESET], error.possibilities or ())
        else:
            hint = suggest(option, error.possibilities)
        fail(UserError(f"No such option: {option}{hint}"), error.exit_code)
    fail(UserError(" ".join(error.format_message().split())), error.exit_code)


def suggest(option: str, possible: Iterable[str] | None) -> str:
    """Return a suggestion. The parser offers every option with the same section; only similar names are helpful."""
    names = {name.rpartition(".")[2]: name for name in possible or ()}
    matches = difflib.get_close_matches(option.rpartition(".")[2], names, 1, MIN_SIMILARITY)
    return f"; did you mean {names[matches[0]]}?" if matches else ""


def fail(error: BaseException, status: int) -> NoReturn:
    """Print one line and exit. STAIRWELL_DEBUG=1 shows the traceback."""
    if os.environ.get("STAIRWELL_DEBUG"):
        raise error
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    say(f"stairwell: {' '.join(text.split())}")
    sys.exit(status)
