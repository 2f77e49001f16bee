"""uvicorn's connections with time limits, which it has only between two requests, and its server with a last word."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 65_536  # bytes of the head of a request
PATIENCE = 10.0  # seconds for the head of a request
LINGER = 30.0  # seconds in which a client must take a part of its answer
PARTS, PART = 1000, 100  # a body may come in so many parts of any size, others have so many bytes on average


class TooManyParts(Exception):
    """A body that comes in very many small parts."""


class Messages(h11.Connection):
    """HTTP as h11 reads it, as long as a body's parts are not so small that each costs more time than it is worth: a
    megabyte in chunks of a byte would occupy the server for many seconds."""

    parts = size = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.parts = self.size = 0
        elif isinstance(event, h11.Data):
            self.parts += 1
            self.size += len(event.data)
            if self.parts > PARTS + self.size / PART:
                raise TooManyParts
        return event


class Impatient(H11Protocol):
    """A connection that is closed when the head of a request takes longer than `patience`, all of it and its answer
    longer than `answers_within`, or when the client takes nothing of its answer for `linger` seconds: clients that send
    or read a byte now and then hold nothing for ever.

    Of too many connections the one is closed whose client has let it wait longest for a request or the rest of one, so
    that those who send nothing, and need no token for that, do not keep out those who do."""

    patience, linger, answers_within = PATIENCE, LINGER, 330.0
    timer: asyncio.TimerHandle | None = None
    reading: asyncio.TimerHandle | None = None  # while the client has not taken what was written
    idle_since: float | None = None  # none while nothing is expected from the client

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = Messages(h11.SERVER, HEAD)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = time.monotonic()
        self._within(self.patience)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_longest_idle()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle_since = time.monotonic() if self.cycle.more_body else None

    def handle_events(self) -> None:
        before = self.cycle
        try:
            super().handle_events()
        except TooManyParts:
            self.transport.abort()
        if self.cycle is not before:
            self.idle_since = None
            self._within(self.answers_within)

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed message, unless its head has been answered already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.idle_since = time.monotonic()
        if not self.flow.write_paused:  # otherwise much of the answer is still to be taken, within its own time
            self._within(self.patience)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel(self.reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel(self.timer)
        self._cancel(self.reading)
        super().connection_lost(exc)

    def _within(self, seconds: float) -> None:
        self._cancel(self.timer)
        self.timer = self.loop.call_later(seconds, self.transport.abort)

    def _expect_reading(self, unread: int) -> None:
        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if left < unread:
                self._expect_reading(left)
            else:
                self.transport.abort()

        self._cancel(self.reading)
        self.reading = self.loop.call_later(self.linger, check)

    def _close_longest_idle(self) -> None:
        idle = [each for each in self.connections if isinstance(each, Impatient) and each.idle_since is not None]
        if oldest := min(idle, key=lambda each: each.idle_since or 0, default=None):
            self.connections.discard(oldest)  # now, not when its end is noticed
            oldest.transport.abort()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class Server(uvicorn.Server):
    """When it has been shutting down for `grace` seconds it calls `abort`, so that everyone who is still being answered
    is told why the answer ends; uvicorn itself would drop them."""

    def __init__(self, config: uvicorn.Config, abort: Callable[[], None], grace: float) -> None:
        super().__init__(config)
        self.abort, self.grace = abort, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self.grace, self.abort)
        await super().shutdown(sockets)
        timer.cancel()
