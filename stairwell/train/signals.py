"""Requests to stop: Ctrl-C, SIGTERM, SIGHUP, or the exit of the parent process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PARENT = "STAIRWELL_PARENT"  # process id of the process that starts runs and waits for them


@contextmanager
def handle_signals(handler: Callable[[int], None]) -> Iterator[None]:
    """Call `handler` with the number of a signal that asks the process to stop, in place of the signal's own effect."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    # Windows has no SIGHUP, and `nohup` ignores it.
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)

    previous = {number: signal.signal(number, lambda received, _: handler(received)) for number in numbers}
    try:
        yield
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)


def parent_exited() -> bool:
    """Return whether the parent process was killed before it could ask this process to stop."""
    parent = os.environ.get(PARENT)
    return parent is not None and os.getppid() != int(parent)
