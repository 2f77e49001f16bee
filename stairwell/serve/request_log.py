"""The request log, and the latency of requests: one line per request, without any text of the client.

2026-01-31T12:00:00.123Z 127.0.0.1 POST /v1/completions 200 0.5s prompt_tokens=9 completion_tokens=16 finish=length
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stairwell.serve.metrics import Histogram

MAX_UNWRITTEN = 10_000  # lines; more are dropped, so that a blocked output does not block the server
DISCONNECTED = "disconnected"  # instead of a status: the client left before there was a response
PATH, DETAILS = "stairwell.path", "stairwell.details"  # keys of the ASGI scope


class RequestLog:
    """Writes lines from a thread of its own."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write, self.dropped = write, 0
        self.lines: queue.Queue[str | None] = queue.Queue(MAX_UNWRITTEN)
        self.thread = threading.Thread(target=self._run, name="stairwell-request-log", daemon=True)
        self.thread.start()

    def add(self, line: str) -> None:
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def close(self, seconds: float = 1.0) -> None:
        """Write what is left, for at most so long."""
        try:
            self.lines.put(None, timeout=seconds)
        except queue.Full:
            return
        self.thread.join(seconds)

    def _run(self) -> None:
        while (line := self.lines.get()) is not None:
            if dropped := self.dropped:
                self.dropped = 0
                line = f"{dropped} lines of the request log were dropped: its output was blocked\n{line}"
            self.write(line)


class RequestLogMiddleware:
    """Measures every request, and adds a line to the log if there is one. The path is that of the endpoint, without
    ids; other paths, which are text of the client, are not logged."""

    def __init__(self, app: ASGIApp, seconds: Histogram, log: RequestLog | None) -> None:
        self.app, self.seconds, self.log = app, seconds, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), DISCONNECTED
        scope[DETAILS] = {}

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception:
            if status == DISCONNECTED:
                status = "500"  # Starlette responds after this
            raise
        finally:
            seconds = time.monotonic() - started
            self.seconds.observe(seconds, path=scope.get(PATH, "other"), status=status)
            if self.log is not None:
                self.log.add(log_line(scope, status, seconds))


def log_line(scope: Scope, status: str, seconds: float) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    client = scope["client"][0] if scope.get("client") else "-"
    method = scope["method"] if scope["method"].isalpha() else "-"
    details = "".join(f" {name}={value}" for name, value in scope[DETAILS].items())
    return f"{now} {client} {method[:10]} {scope.get(PATH, '(unknown path)')} {status} {seconds:.3f}s{details}"


def note(scope: Scope, **details: Any) -> None:
    """Add numbers of a request to its line."""
    scope.get(DETAILS, {}).update(details)
