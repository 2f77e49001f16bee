"""A connection of uvicorn's that loses patience: it has no time limits of its own but between two requests."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 30.0  # seconds for the head of a request, from the connection or the answer before


class Impatient(H11Protocol):
    """A connection that is ended when the head of a request takes longer than `patience`, or all of it and its answer
    longer than `answers_within`: clients that send or read a byte now and then hold nothing for ever."""

    patience = PATIENCE
    answers_within = 330.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._within(self.patience)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._within(self.answers_within)

    def on_response_complete(self) -> None:
        self._within(self.patience)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def _within(self, seconds: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self.transport.abort)
