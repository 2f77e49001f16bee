"""uvicorn's HTTP protocol with limits on the time and the chunks of a request, and its server with a last response on
shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stairwell.serve.service import error_body

MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT = 10.0  # seconds
WRITE_TIMEOUT = 30.0  # seconds
HALF_CLOSE_TIMEOUT = 5.0  # seconds
INTERRUPTED = 130  # exit status
FREE_CHUNKS, CHUNK_BYTES = 1000, 100  # chunks of any size that a body may have, and bytes per further chunk


class TooManyChunksError(Exception):
    """A body in very many small chunks."""


class LimitedConnection(h11.Connection):
    """An h11 connection that rejects bodies in very many small chunks: a megabyte in chunks of one byte would block the
    server for many seconds."""

    chunks = size = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.size = 0
        elif isinstance(event, h11.Data):
            self.chunks += 1
            self.size += len(event.data)
            if self.chunks > FREE_CHUNKS + self.size / CHUNK_BYTES:
                raise TooManyChunksError
        return event


class TimeoutProtocol(H11Protocol):
    """Closes a connection if the head of a request takes longer than `head_timeout`, if the whole request with its
    response takes longer than `request_timeout`, or if the client reads nothing of its response for `write_timeout`.
    Clients that send or read a byte now and then cannot hold a connection forever.

    At the connection limit, the connection that has waited longest for its client to send is closed, so that clients
    that send nothing, and need no token for it, cannot keep others out."""

    head_timeout, write_timeout, request_timeout = HEAD_TIMEOUT, WRITE_TIMEOUT, 330.0
    timer: asyncio.TimerHandle | None = None
    write_timer: asyncio.TimerHandle | None = None  # while writing is paused
    idle_since: float | None = None  # None while nothing is expected from the client
    half_closed = False  # the client has ended its side and waits for a response
    rejected = False  # the rest of the request is ignored

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = LimitedConnection(h11.SERVER, MAX_HEAD_BYTES)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = time.monotonic()
        self._abort_after(self.head_timeout)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_longest_idle()

    def data_received(self, data: bytes) -> None:
        if self.rejected:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle_since = time.monotonic() if self.cycle.more_body else None

    def handle_events(self) -> None:
        cycle = self.cycle
        try:
            super().handle_events()
        except TooManyChunksError:
            limit = f"{FREE_CHUNKS} chunks and one more per {CHUNK_BYTES} bytes"
            self._reject(413, f"the request body has more than {limit}; send larger chunks")
        if self.cycle is not cycle and not self.rejected:
            self.idle_since = None
            self._abort_after(self.request_timeout)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection open: a client may end its side after a complete request and wait for
        the response. It looks the same as a client that has disconnected until something is sent to it, so the response
        must start within `HALF_CLOSE_TIMEOUT`."""
        cycle = self.cycle
        self.half_closed = cycle is not None and not cycle.more_body and not cycle.response_complete
        if self.half_closed and not cycle.response_started:
            self.loop.call_later(HALF_CLOSE_TIMEOUT, self._abort_unless_started, cycle)
        return self.half_closed

    def _abort_unless_started(self, cycle: Any) -> None:
        if not cycle.response_started:
            self.transport.abort()

    def _reject(self, status: int, message: str) -> None:
        """Respond to a request that is not complete, and ignore the rest of it. The connection stays open until the
        client closes it or for `head_timeout`: closing it with unread data would discard the response."""
        self.rejected = True
        if self.cycle is not None:
            self.cycle.disconnected = True  # the application's response is not sent
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        content = json.dumps(error_body(status, message)).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(content))), ("connection", "close")]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.write_eof()
        self._abort_after(self.head_timeout)

    def send_400_response(self, msg: str) -> None:
        """Respond to a malformed message, unless a response was sent already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.idle_since = time.monotonic()
        if not self.flow.write_paused:  # otherwise the client is still reading, within the time of the request
            self._abort_after(self.head_timeout)
        cycle = self.cycle
        super().on_response_complete()
        if self.half_closed and self.cycle is cycle:  # not if the client had sent another request
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_unless_read(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel(self.write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel(self.timer)
        self._cancel(self.write_timer)
        super().connection_lost(exc)

    def _abort_after(self, seconds: float) -> None:
        self._cancel(self.timer)
        self.timer = self.loop.call_later(seconds, self.transport.abort)

    def _abort_unless_read(self, unread: int) -> None:
        """Close the connection if the write buffer does not become smaller within `write_timeout`."""

        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if left < unread:
                self._abort_unless_read(left)
            else:
                self.transport.abort()

        self._cancel(self.write_timer)
        self.write_timer = self.loop.call_later(self.write_timeout, check)

    def _close_longest_idle(self) -> None:
        idle = [each for each in self.connections if isinstance(each, TimeoutProtocol) and each.idle_since is not None]
        if longest := min(idle, key=lambda each: each.idle_since or 0, default=None):
            self.connections.discard(longest)  # now, not in connection_lost
            longest.transport.abort()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class Server(uvicorn.Server):
    """Calls `abort` after `grace` seconds of shutdown, so that requests in progress get an error response. uvicorn
    alone would drop their connections. A second Ctrl-C ends the process immediately."""

    def __init__(self, config: uvicorn.Config, abort: Callable[[], None], grace: float) -> None:
        super().__init__(config)
        self.abort, self.grace = abort, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            # Without cleanup: PyTorch aborts the process if the interpreter exits while the scheduler's thread runs.
            sys.stderr.write("interrupted; the requests in progress were dropped\n")
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self.grace, self.abort)
        await super().shutdown(sockets)
        timer.cancel()
