"""What the routes share: the model and its batch, how a body is read, how a mistake is told.

Errors have the shape that OpenAI's clients know: {"error": {"message": ..., "type": ..., "code": status}}.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from stairwell import text
from stairwell.generate import bytes_of
from stairwell.models import LanguageModel
from stairwell.serve.batch import Batch, Busy
from stairwell.serve.requests import Limits, Refused
from stairwell.serve.states import States

WORKERS = 2  # threads that work on states, besides the one of the batch
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
    told: int = 0  # tokens that the answers in the making may come to
    working: int = 0  # requests that work on states, or wait to
    workers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(WORKERS))

    def spelled(self, token: int) -> str:
        """A token by itself, as a key: bytes that are no text by their number."""
        if isinstance(self.vocabulary, text.Bytes | text.BPE):
            data = bytes_of(self.vocabulary, token)
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return self.vocabulary.decode([token])

    async def work(self, do: Callable[[], Result]) -> Result:
        """Do what takes a while off the event loop, few at a time; Busy when too many wait for it."""
        if self.working >= WORKERS + self.batch.waiting:
            raise Busy(f"{self.working} requests work on states already; try again later")
        self.working += 1
        try:
            return await to_thread.run_sync(do, limiter=self.workers)
        finally:
            self.working -= 1


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


async def read_bytes(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refused(413, f"the request is larger than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request) -> Any:
    # A web page elsewhere cannot send this type without asking first.
    if media_type(request) != "application/json":
        raise Refused(415, "the request must be application/json")
    content = await read_bytes(request, service_of(request).limits.body)
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
