"""Mistakes and bugs are told apart: a mistake of the person who uses stairwell is told in one line, a bug keeps its
traceback."""

from __future__ import annotations


class UserError(ValueError):
    """Something that the user asked for cannot be done as asked. The message says what was wrong, where, and what would
    be right; the command line prints it alone and exits with status 2."""
