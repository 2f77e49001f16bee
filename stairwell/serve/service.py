"""What the routes share: the model and its batch, how a body is read, how a mistake is told.

Errors have the shape that OpenAI's clients know: {"error": {"message": ..., "type": ..., "code": status}}.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from stairwell import text
from stairwell.generate import Choice, bytes_of
from stairwell.models import LanguageModel
from stairwell.serve.batch import Batch, Busy, Done, Job, Prompt, Token
from stairwell.serve.requests import Limits, Refused
from stairwell.serve.states import Past, States

WORKERS = 2  # threads that work on states, and as many that read requests, besides the one of the batch
SHORT = 1 << 16  # bytes of JSON that are parsed at once; more could hold up the event loop
BODY_SECONDS, BODY_RATE = 30.0, 100_000.0  # a body comes within so many seconds, or with so many bytes per second
BODIES = 4  # of the largest size may be received, and as many sent, at a time
SLICE = 1 << 16  # bytes of an answer that are sent at a time
UNFINISHED = {"error": 503, "cancelled": 503, "refused": 400}  # reasons for which there is no answer
Result = TypeVar("Result")


@dataclass
class Service:
    name: str
    model: LanguageModel
    vocabulary: text.Vocabulary
    limits: Limits
    batch: Batch
    states: States
    page: Callable[[], bytes]
    began: float
    told: int = 0  # size of the answers in the making
    working: int = 0  # requests that work on states, or wait to
    receiving: int = 0  # bytes of requests that are not whole yet
    sending: int = 0  # bytes of saved states that are not taken yet
    workers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(WORKERS))
    parsers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(WORKERS))

    def spelled(self, token: int) -> str:
        """A token by itself, as a key: bytes that are no text by their number."""
        if isinstance(self.vocabulary, text.Bytes | text.BPE):
            data = bytes_of(self.vocabulary, token)
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return self.vocabulary.decode([token])

    async def parse(self, do: Callable[[], Result]) -> Result:
        """Understand a request off the event loop; few at a time, since each takes memory."""
        return await to_thread.run_sync(do, limiter=self.parsers)

    async def work(self, do: Callable[[], Result]) -> Result:
        """Do what takes a while off the event loop, few at a time; Busy when too many wait for it. Work that has not
        begun when the caller is cancelled is left undone."""
        if self.working >= WORKERS + self.batch.waiting:
            raise Busy(f"{self.working} requests work on states already; try again later")
        wanted = True

        def unless_cancelled() -> Result:
            if not wanted:
                raise ClientDisconnect
            return do()

        def over(task: asyncio.Task[Result]) -> None:
            self.working -= 1
            if not task.cancelled():
                task.exception()  # seen, also when nobody waits for it

        self.working += 1
        # A thread cannot be cancelled: its place is taken until it is done.
        task = asyncio.ensure_future(to_thread.run_sync(unless_cancelled, limiter=self.workers))
        task.add_done_callback(over)
        try:
            return await asyncio.shield(task)
        finally:
            wanted = False

    async def read(self, past: Past, ids: Sequence[int]) -> Past:
        """Read tokens from a state on, in the batch, where all prompts take turns, until it is cancelled."""
        if not ids:
            return past
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Done] = loop.create_future()

        def settle(done: Done) -> None:
            if not ended.done():
                ended.set_result(done)

        def tell(what: Token | Done) -> None:
            try:
                if isinstance(what, Done):
                    loop.call_soon_threadsafe(settle, what)
            except RuntimeError:  # the server is gone
                pass

        prompt = Prompt(ids, (past.state, past.logits, past.recent))
        job = Job(prompt, 0, Choice(), tell)
        self.batch.submit(job)
        try:
            done = await ended
        finally:
            job.cancelled = True
        if done.reason in UNFINISHED:
            raise Refused(UNFINISHED[done.reason], unfinished(done))
        assert prompt.state is not None
        return Past(prompt.state, prompt.logits, tuple(prompt.recent))

    async def attend(self, request: Request, doing: Awaitable[Result]) -> Result:
        """Wait for work as long as the client waits for it and time is left; otherwise cancel it."""
        task = asyncio.ensure_future(doing)
        leaving = asyncio.ensure_future(until_gone(request))
        try:
            await asyncio.wait([task, leaving], timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientDisconnect
            if not task.done():
                seconds = f"{self.limits.seconds:g} seconds"
                raise Refused(503, f"it was not done within {seconds} and was cancelled; ask for less at a time")
            return task.result()
        finally:
            leaving.cancel()
            if not task.cancel() and not task.cancelled():
                task.exception()  # seen, also when nobody waits for it


def unfinished(done: Done) -> str:
    if done.reason == "cancelled":
        return "the server is shutting down; the request was not finished"
    return done.text if done.reason == "refused" else "the request could not be finished; try again"


async def until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    message = message.encode("utf-8", "replace").decode("utf-8")  # it may quote what is no text
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status in (429, 503):
        headers = {"Retry-After": "1", **(headers or {})}
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status, headers)


async def refused(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, Refused)
    return error(exception.status, str(exception))


async def busy(request: Request, exception: Exception) -> Response:
    return error(429, str(exception))


async def plain_error(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    return error(exception.status_code, str(exception.detail), dict(exception.headers or {}))


async def gone(request: Request, exception: Exception) -> Response:
    return error(400, "the client left before its request was whole")


async def bug(request: Request, exception: Exception) -> Response:
    """Its traceback is in the server's log."""
    return error(500, "a bug in the server; its log has the details")


HANDLERS: dict[Any, Any] = {
    Refused: refused,
    Busy: busy,
    HTTPException: plain_error,
    ClientDisconnect: gone,
    Exception: bug,
}


class Sliced(Response):
    """A large answer, of which a client that reads slowly makes no copy that waits: it is sent slice by slice."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        content = memoryview(self.body)
        for first in range(0, len(content), SLICE):
            part = bytes(content[first : first + SLICE])
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Saved(Sliced):
    """A state as a file. All that are being sent have a limit together."""

    def __init__(self, service: Service, content: bytes) -> None:
        if service.sending + len(content) > BODIES * service.limits.state_bytes:
            raise Busy(f"{service.sending} bytes of states are being sent already; try again later")
        super().__init__(content, media_type="application/octet-stream")
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.service.sending += len(self.body)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.service.sending -= len(self.body)


async def read_bytes(request: Request, most: int) -> bytes:
    service, loop = service_of(request), asyncio.get_running_loop()
    parts, size, began = [], 0, loop.time()
    try:
        async with asyncio.timeout(BODY_SECONDS) as limit:
            async for part in request.stream():
                size += len(part)
                service.receiving += len(part)
                if size > most:
                    raise Refused(413, f"the request is larger than {most} bytes")
                if service.receiving > BODIES * service.limits.state_bytes:
                    raise Busy(f"{service.receiving} bytes of requests are being received already; try again later")
                parts.append(part)
                limit.reschedule(began + BODY_SECONDS + size / BODY_RATE)
    except TimeoutError:
        raise Refused(408, f"the body of the request did not come within {BODY_SECONDS:g} seconds") from None
    finally:
        service.receiving -= size
    return b"".join(parts)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request) -> Any:
    # A web page elsewhere cannot send this type without asking first.
    if media_type(request) != "application/json":
        raise Refused(415, "the request must be application/json")
    service = service_of(request)
    content = await read_bytes(request, service.limits.body)
    return parsed(content) if len(content) <= SHORT else await service.parse(lambda: parsed(content))


def parsed(content: bytes) -> Any:
    try:
        return json.loads(
            content.decode("utf-8"), parse_float=as_number, parse_constant=not_json, object_pairs_hook=named_once
        )
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON, in UTF-8, with no name twice in an object") from None


def as_number(digits: str) -> int | float:
    """In JSON 5.0 is a whole number too."""
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def not_json(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found
