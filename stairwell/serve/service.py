"""What all routes share: the model and its scheduler, how bodies are read, and error responses.

Errors have the format of the OpenAI API: {"error": {"message": ..., "type": ..., "code": status}}.
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
from stairwell.decode import Sampling
from stairwell.models import LanguageModel
from stairwell.serve.chat_template import ChatTemplate
from stairwell.serve.limits import Limits, RequestError
from stairwell.serve.openapi import ErrorResponse
from stairwell.serve.requests import Body, RequestModels, printable, validate
from stairwell.serve.scheduler import Finished, Output, Prompt, Scheduler, SequenceRequest
from stairwell.serve.snapshot import Snapshot
from stairwell.serve.state_store import StateStore

WORKERS = 2  # threads for states, and as many to parse requests, besides the scheduler's thread
SMALL_BODY = 1 << 16  # bytes of JSON that are parsed on the event loop; more would block it
BODY_SECONDS, BODY_RATE = 30.0, 100_000.0  # a body must arrive within these seconds, or at this many bytes per second
MAX_BODIES = 4  # bodies of the largest size that may be received, and sent, at once
CHUNK = 1 << 16  # bytes of a response that are sent at once
FAILURES = {"error": 503, "cancelled": 503, "invalid": 400}  # status by the reason of `Finished`
NOT_FOUND = {
    "/v1/responses": "this server has no Responses API; use /v1/chat/completions or /v1/completions",
    "/v1/embeddings": "this server returns no embeddings; /openapi.json lists all endpoints",
}
Result = TypeVar("Result")


@dataclass
class Service:
    name: str
    model: LanguageModel
    vocabulary: text.Vocabulary
    limits: Limits
    scheduler: Scheduler
    states: StateStore
    models: RequestModels
    page: Callable[[], bytes]
    chat_template: ChatTemplate
    started: float
    output: int = 0  # output size of the requests in progress
    working: int = 0  # requests that run or wait for a worker thread
    receiving: int = 0  # bytes of incomplete requests
    sending: int = 0  # bytes of state files that are being sent
    workers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(WORKERS))
    parsers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(WORKERS))

    def token_text(self, token: int) -> str:
        """Return a single token as a JSON key: its text, or the bytes in hexadecimal if they are not UTF-8."""
        data = self.vocabulary.token_bytes(token)
        if data is None:
            return self.vocabulary.decode([token])
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    async def parse(self, function: Callable[[], Result]) -> Result:
        """Parse a request off the event loop; few at once, because each needs memory."""
        return await to_thread.run_sync(function, limiter=self.parsers)

    async def run_in_worker(self, function: Callable[[], Result]) -> Result:
        """Run a slow function off the event loop, few at once. If the caller is cancelled before the function starts,
        it does not run."""
        if self.working >= WORKERS + self.scheduler.max_waiting:
            raise RequestError(429, f"{self.working} requests are working on states already; try again later")
        needed = True

        def run() -> Result:
            if not needed:
                raise ClientDisconnect
            return function()

        def finish(task: asyncio.Task[Result]) -> None:
            self.working -= 1
            if not task.cancelled():
                task.exception()  # mark it as retrieved, even if no one awaits the task

        self.working += 1
        # A thread cannot be cancelled: it counts until it is done.
        task = asyncio.ensure_future(to_thread.run_sync(run, limiter=self.workers))
        task.add_done_callback(finish)
        try:
            return await asyncio.shield(task)
        finally:
            needed = False

    async def prefill(self, snapshot: Snapshot, ids: Sequence[int]) -> Snapshot:
        """Read tokens from a snapshot on, scheduled like all prompts, and return the snapshot after them."""
        if not ids:
            return snapshot
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Finished] = loop.create_future()

        def resolve(finished: Finished) -> None:
            if not future.done():
                future.set_result(finished)

        def on_output(output: Output) -> None:
            try:
                if isinstance(output, Finished):
                    loop.call_soon_threadsafe(resolve, output)
            except RuntimeError:  # the event loop is closed
                pass

        prompt = Prompt(ids, snapshot)
        request = SequenceRequest(prompt, 0, Sampling(), on_output)
        self.scheduler.submit(request)
        try:
            finished = await future
        finally:
            request.cancelled = True
        if finished.reason in FAILURES:
            raise RequestError(FAILURES[finished.reason], failure_message(finished))
        assert prompt.snapshot is not None
        return prompt.snapshot

    async def run_while_connected(self, request: Request, awaitable: Awaitable[Result]) -> Result:
        """Await a result until the client disconnects or the time limit is reached; then cancel it."""
        task = asyncio.ensure_future(awaitable)
        disconnected = asyncio.ensure_future(wait_for_disconnect(request))
        try:
            await asyncio.wait([task, disconnected], timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if disconnected.done():
                raise ClientDisconnect
            if not task.done():
                raise RequestError(
                    503,
                    f"the request took longer than {self.limits.seconds:g} seconds and was cancelled; request less at "
                    "a time",
                )
            return task.result()
        finally:
            disconnected.cancel()
            if not task.cancel() and not task.cancelled():
                task.exception()  # mark it as retrieved, even if no one awaits the task


def failure_message(finished: Finished) -> str:
    if finished.reason == "cancelled":
        return "the server is shutting down; the request was cancelled"
    return finished.text if finished.reason == "invalid" else "the request failed on the server; try again"


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def error_body(status: int, message: str) -> ErrorResponse:
    type_ = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": printable(message), "type": type_, "code": status}}


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    if status in (429, 503):
        headers = {"Retry-After": "1", **(headers or {})}
    return JSONResponse(error_body(status, message), status, headers)


async def on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error.status, str(error))


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = NOT_FOUND.get(request.url.path, "there is no such endpoint; /openapi.json lists all endpoints")
    return error_response(error.status_code, message, dict(error.headers or {}))


async def on_disconnect(request: Request, error: Exception) -> Response:
    return error_response(400, "the client disconnected before its request was complete")


async def on_bug(request: Request, error: Exception) -> Response:
    """Starlette logs the traceback."""
    service_of(request).scheduler.counts["failed"] += 1
    return error_response(500, "internal error; the server's log has the details")


HANDLERS: dict[Any, Any] = {
    RequestError: on_request_error,
    HTTPException: on_http_error,
    ClientDisconnect: on_disconnect,
    Exception: on_bug,
}


class ChunkedResponse(Response):
    """A large response, sent in chunks, so that a slow client does not fill the write buffer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        content = memoryview(self.body)
        for start in range(0, len(content), CHUNK):
            chunk = bytes(content[start : start + CHUNK])
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class StateFileResponse(ChunkedResponse):
    """A state file. The total size of those being sent is limited."""

    def __init__(self, service: Service, content: bytes) -> None:
        if service.sending + len(content) > MAX_BODIES * service.limits.state_file_bytes:
            raise RequestError(429, f"{service.sending} bytes of state files are being sent already; try again later")
        super().__init__(content, media_type="application/octet-stream")
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.service.sending += len(self.body)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.service.sending -= len(self.body)


async def read_bytes(request: Request, limit: int) -> bytes:
    """Return the body of a request, with limits on its size, its time and the size of all incomplete bodies."""
    service, loop = service_of(request), asyncio.get_running_loop()
    chunks, size, started = [], 0, loop.time()
    try:
        async with asyncio.timeout(BODY_SECONDS) as timeout:
            async for chunk in request.stream():
                size += len(chunk)
                service.receiving += len(chunk)
                if size > limit:
                    raise RequestError(413, f"the request body is larger than {limit} bytes")
                if service.receiving > MAX_BODIES * service.limits.state_file_bytes:
                    raise RequestError(
                        429, f"{service.receiving} bytes of requests are being received already; try again later"
                    )
                chunks.append(chunk)
                timeout.reschedule(started + BODY_SECONDS + size / BODY_RATE)
    except TimeoutError:
        raise RequestError(408, f"the request body did not arrive within {BODY_SECONDS:g} seconds") from None
    finally:
        service.receiving -= size
    return b"".join(chunks)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_request(request: Request, model: type[Body]) -> Body:
    """Return the validated JSON body of a request."""
    # A browser asks before it sends this type to another site, so a foreign web page cannot.
    if media_type(request) != "application/json":
        raise RequestError(415, "the Content-Type must be application/json")
    service = service_of(request)
    content = await read_bytes(request, service.limits.body_bytes)
    if len(content) <= SMALL_BODY:
        return validate(model, parse_json(content))
    return await service.parse(lambda: validate(model, parse_json(content)))


def parse_json(content: bytes) -> Any:
    try:
        return json.loads(
            content.decode("utf-8"), parse_float=parse_number, parse_constant=reject_constant, object_pairs_hook=as_dict
        )
    except (ValueError, RecursionError):
        raise RequestError(400, "the request body is not valid JSON in UTF-8 without repeated keys") from None


def parse_number(digits: str) -> int | float:
    """Return 5.0 as an integer, as JSON Schema does."""
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key is repeated")
    return result
