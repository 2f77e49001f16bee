"""Mistakes and bugs are told apart: a mistake of the person who uses stairwell is told in one line, a bug keeps its
traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 0.7  # how alike two names must be, of 1, before one is offered for the other


class UserError(ValueError):
    """Something that the user asked for cannot be done as asked. The message says what was wrong, where, and what would
    be right; the command line prints it alone and exits with status 2."""


def nearest(name: str, names: Iterable[str], form: str = "'{}'") -> str:
    """The end of a message about an unknown name: the name that was meant, if one is near, or else all there are.
    `form` is how a name is written: '--core.{}'."""
    known = list(names)
    near = difflib.get_close_matches(name, known, 1, NEAR)
    return f"; did you mean {form.format(near[0])}?" if near else f"; there are: {', '.join(known)}"
