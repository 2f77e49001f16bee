"""Being asked to stop: Ctrl-C, SIGTERM, the terminal's end, or that of the process that waits for this one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PARENT = "STAIRWELL_PARENT"  # the number of a process that starts trainings and waits for them


@contextmanager
def on_signals(ask: Callable[[int], None]) -> Iterator[None]:
    """Call `ask` with the signal's number when someone wants an end; nothing else happens then."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    # Not on Windows; and who started us with `nohup` does not want us to stop.
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)

    before = {number: signal.signal(number, lambda heard, _: ask(heard)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def left_alone() -> bool:
    """Whether the process that waited for this one was killed, so that nobody could ask it to stop."""
    parent = os.environ.get(PARENT)
    return parent is not None and os.getppid() != int(parent)
