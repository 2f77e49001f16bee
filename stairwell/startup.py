"""What the command `stairwell` sees to before torch is loaded, which takes seconds: closed streams and Ctrl-C.

A program that imports the package is left alone."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from typing import Any, NoReturn


def is_command() -> bool:
    """Whether this process is `stairwell ...` or `python -m stairwell ...`."""
    name = sys.argv[0] if sys.argv else ""
    module = name == "-m" and ("-m", "stairwell") in pairwise(sys.orig_argv)
    return module or os.path.basename(name) in ("stairwell", "stairwell.exe")


def prepare() -> None:
    open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)


def loaded() -> None:
    """From here on Ctrl-C is an exception like any other."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_streams() -> None:
    """Standard streams that were closed (`2>&-`) lead nowhere: else the next file that is opened would take their place
    and get what is printed."""
    while (place := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(place)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def stop(number: int, frame: Any) -> NoReturn:
    """Ctrl-C before the command line takes over. An exception would not do: some of what is loaded swallows it, and the
    command goes on. Status 130 would say that a training is saved."""
    print("interrupted before anything began", file=sys.stderr, flush=True)
    os._exit(1)
