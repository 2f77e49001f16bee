"""The exception for errors of the user, which are reported in one line. Other exceptions are bugs, with a traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

MIN_SIMILARITY = 0.7  # of two names, from 0 to 1, to suggest one for the other


class UserError(ValueError):
    """An invalid request of the user. The message says what is wrong, where, and what to do. The command line prints it
    without a traceback and exits with status 2."""


class MissingPackage(UserError):
    """An optional package is not installed."""

    def __init__(self, message: str, *requirements: str) -> None:
        """`requirements` as pip reads them, such as gymnasium>=1.1; the message ends with the command that installs
        them."""
        self.install = install_command(*requirements)
        super().__init__(f"{message}: {self.install}")


def install_command(*requirements: str) -> str:
    """Return the command that installs optional packages. It names the packages and not an extra of stairwell, because
    the package `stairwell` of the public index is another project."""
    return " ".join(["pip install", *(f'"{text}"' if re.search(r"[<>=]", text) else text for text in requirements)])


def suggestion(name: str, names: Iterable[str], form: str = "'{}'") -> str:
    """Return the end of an error message about an unknown name: a similar name, or all names if none is similar.
    `form` is how a name is written, such as '--core.{}'."""
    known = list(names)
    similar = similar_name(name, known)
    return f"; did you mean {form.format(similar)}?" if similar else f"; there are: {', '.join(known)}"


def similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of some names; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(names), 1, MIN_SIMILARITY)), None)
