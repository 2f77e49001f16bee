"""What is seen to before torch is loaded, which takes seconds: the platform and, for the command `stairwell`, closed
streams and Ctrl-C. A program that imports the package keeps its streams and signals."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from typing import Any, NoReturn

PLATFORMS = ("linux", "darwin")
ANY_PLATFORM = "STAIRWELL_ANY_PLATFORM"
TOO_EARLY = "interrupted before anything began"


def is_command() -> bool:
    """Whether this process is `stairwell ...` or `python -m stairwell ...`."""
    name = sys.argv[0] if sys.argv else ""
    module = name == "-m" and ("-m", "stairwell") in pairwise(sys.orig_argv)
    return module or os.path.basename(name) in ("stairwell", "stairwell.exe")


def is_supported() -> bool:
    return sys.platform in PLATFORMS or bool(os.environ.get(ANY_PLATFORM))


def refuse() -> NoReturn:
    """Say that the platform is not supported, before something fails for it."""
    text = (
        f"stairwell supports Linux and macOS, not '{sys.platform}', where nothing was tried (on Windows, use WSL); "
        f"{ANY_PLATFORM}=1 tries all the same"
    )
    if not is_command():
        raise RuntimeError(text)
    print(f"stairwell: {text}", file=sys.stderr, flush=True)
    sys.exit(2)


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
    print(TOO_EARLY, file=sys.stderr, flush=True)
    os._exit(1)
