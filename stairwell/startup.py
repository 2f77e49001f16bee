"""What the command `stairwell` sees to before torch is loaded, which takes seconds: closed streams and Ctrl-C.

A program that imports the package is left alone."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from types import TracebackType


def is_command() -> bool:
    """Whether this process is `stairwell ...` or `python -m stairwell ...`."""
    name = sys.argv[0] if sys.argv else ""
    module = name == "-m" and ("-m", "stairwell") in pairwise(sys.orig_argv)
    return module or os.path.basename(name) in ("stairwell", "stairwell.exe")


def prepare() -> None:
    open_streams()
    sys.excepthook = without_traceback


def open_streams() -> None:
    """Standard streams that were closed (`2>&-`) lead nowhere: else the next file that is opened would take their place
    and get what is printed."""
    while (place := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(place)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def without_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C before the command line takes over. Status 130 would say that a training is saved."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    print("interrupted before anything began", file=sys.stderr, flush=True)
    os._exit(1)
