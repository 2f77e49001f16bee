"""What happens before torch is imported, which takes seconds: a check of the platform and, for the command `stairwell`,
closed standard streams and Ctrl-C. A program that imports the package keeps its own streams and signal handlers."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from types import FrameType
from typing import NoReturn

PLATFORMS = ("linux", "darwin")
ANY_PLATFORM = "STAIRWELL_ANY_PLATFORM"
INTERRUPTED_AT_STARTUP = "interrupted before the command started"


def is_command() -> bool:
    """Return whether this process is `stairwell ...` or `python -m stairwell ...`."""
    name = sys.argv[0] if sys.argv else ""
    module = name == "-m" and ("-m", "stairwell") in pairwise(sys.orig_argv)
    return module or os.path.basename(name) in ("stairwell", "stairwell.exe")


def is_supported_platform() -> bool:
    return sys.platform in PLATFORMS or bool(os.environ.get(ANY_PLATFORM))


def reject_platform() -> NoReturn:
    """Raise RuntimeError; as the command, print the message and exit with status 2."""
    text = (
        f"stairwell supports Linux and macOS, not '{sys.platform}', which is untested (on Windows, use WSL); "
        f"set {ANY_PLATFORM}=1 to try it anyway"
    )
    if not is_command():
        raise RuntimeError(text)
    print(f"stairwell: {text}", file=sys.stderr, flush=True)
    sys.exit(2)


def prepare_command() -> None:
    """Open closed standard streams, and let Ctrl-C end the process while it imports."""
    open_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_on_interrupt)


def restore_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, once everything is imported."""
    if signal.getsignal(signal.SIGINT) is exit_on_interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_standard_streams() -> None:
    """Open closed standard streams (`2>&-`) on the null device. Otherwise the next file that is opened would get their
    descriptor, and the output would be printed into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def exit_on_interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """End the process on Ctrl-C during the imports. An exception is not enough: some libraries suppress it while they
    are imported. The status is not 130, which means that a run was saved."""
    print(INTERRUPTED_AT_STARTUP, file=sys.stderr, flush=True)
    os._exit(1)
