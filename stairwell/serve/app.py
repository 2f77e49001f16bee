"""The routes: OpenAI's completions, states that stay on the server, tokens, health, numbers, and the page.

Everything that a client sends is data: no path, no pickle, no code is ever taken from it. Errors have the shape that
OpenAI's clients know: {"error": {"message": ..., "type": ..., "code": status}}.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stairwell import text
from stairwell.errors import UserError
from stairwell.generate import bytes_of
from stairwell.models import LanguageModel
from stairwell.serve.batch import Batch, Busy, Done, Job, Token
from stairwell.serve.requests import Completion, Limits, Refused, as_object, completion, number, tokens_of
from stairwell.serve.states import Kept, States
from stairwell.stream import Stream, with_slack
from stairwell.version import __version__

LOCAL = ["localhost", "127.0.0.1"]


@dataclass
class Service:
    """What the routes share."""

    name: str
    model: LanguageModel
    vocabulary: text.Vocabulary
    limits: Limits
    batch: Batch
    states: States
    page: Callable[[], str]
    began: float

    def spelled(self, token: int) -> str:
        """A token by itself, as a key: bytes that are no text by their number."""
        if isinstance(self.vocabulary, text.Bytes | text.BPE):
            data = bytes_of(self.vocabulary, token)
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return self.vocabulary.decode([token])


def make_app(
    model: LanguageModel,
    vocabulary: text.Vocabulary,
    *,
    name: str = "stairwell",
    token: str | None = None,
    limits: Limits | None = None,
    rows: int = 16,
    waiting: int = 64,
    hosts: list[str] | None = None,
    page: Callable[[], str] | None = None,
) -> Starlette:
    """The service as an ASGI application. `token` guards every route; `hosts` are the names that it answers to, so that
    no web page elsewhere can reach it under a name of its own."""
    limits = limits or Limits()
    batch = Batch(model, vocabulary, rows, waiting)
    states = States(model, vocabulary, limits)
    service = Service(name, model, vocabulary, limits, batch, states, page or (lambda: PLAIN), time.time())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(batch.close)

    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts or LOCAL)]
    if token is not None:
        middleware.append(Middleware(Guard, token=token))
    handlers: Any = {Refused: refused, Busy: busy, HTTPException: plain_error, ClientDisconnect: gone}
    app = Starlette(routes=ROUTES, lifespan=lifespan, middleware=middleware, exception_handlers=handlers)
    app.state.service = service
    return app


class Guard:
    """Every route, known or not, needs the bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        given = dict(scope.get("headers", [])).get(b"authorization", b"")
        if hmac.compare_digest(given, self.expected):
            await self.app(scope, receive, send)
            return
        answer = error(401, "a bearer token is needed: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)


def error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    message = message.encode("utf-8", "replace").decode("utf-8")  # it may quote what is no text
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status, headers)


async def refused(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, Refused)
    return error(exception.status, str(exception), {"Retry-After": "1"} if exception.status == 429 else None)


async def busy(request: Request, exception: Exception) -> Response:
    return error(429, str(exception), {"Retry-After": "1"})


async def plain_error(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    return error(exception.status_code, str(exception.detail), dict(exception.headers or {}))


async def gone(request: Request, exception: Exception) -> Response:
    return error(400, "the client left before its request was whole")


async def read_bytes(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refused(413, f"the request is larger than {most} bytes")
        parts.append(part)
    return b"".join(parts)


async def read_json(request: Request) -> Any:
    service: Service = request.app.state.service
    # A web page elsewhere cannot send this type without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the request must be application/json")
    content = await read_bytes(request, service.limits.body)
    try:
        return json.loads(content or b"{}", parse_constant=not_json)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON") from None


def not_json(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    asked = completion(await read_json(request), service.vocabulary, service.name, service.limits)
    begin = await run_in_threadpool(beginning, service, asked) if asked.state is not None else None
    loop, told = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Token | Done]]()
    deadline = time.monotonic() + service.limits.seconds
    jobs: list[Job] = []
    for prompt in asked.prompts:
        for _ in range(asked.n):
            jobs.append(job_for(asked, prompt, begin, len(jobs), loop, told, deadline))
    service.batch.submit(*jobs)
    if asked.stream:
        events = as_events(service, asked, jobs, told)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
    return await whole(request, service, asked, jobs, told)


def beginning(service: Service, asked: Completion) -> Any:
    """The state that a request goes on from; the request does not change it."""
    kept = service.states.read(str(asked.state))
    with kept.lock:
        if kept.stream.logits is None and not all(asked.prompts):
            raise Refused(400, "the state has read nothing yet and a prompt is empty: nothing is known of what follows")
        state = with_slack(service.model.core, kept.stream.state(), 0)
        return state, kept.stream.logits, list(kept.stream.recent)


def job_for(asked: Completion, prompt: list[int], begin: Any, index: int, loop: Any, told: Any, deadline: float) -> Job:
    seed = None if asked.seed is None else (asked.seed + index) % 2**63  # several texts differ, and all are fixed

    def tell(what: Token | Done) -> None:
        try:
            loop.call_soon_threadsafe(told.put_nowait, (index, what))
        except RuntimeError:  # the server is gone
            job.cancelled = True

    job = Job(prompt, asked.tokens, asked.choice, tell, asked.stop, seed, asked.echo, asked.logprobs, begin, deadline)
    return job


class Text:
    """One choice of an answer, as it grows."""

    def __init__(self, service: Service, index: int, logprobs: bool) -> None:
        self.service, self.index, self.length, self.reason = service, index, 0, None
        self.wants = logprobs

    def part(self, tokens: list[Token], shown: str, reason: str | None) -> dict[str, Any]:
        answer: dict[str, Any] = {"index": self.index, "text": shown, "logprobs": None, "finish_reason": reason}
        if self.wants:
            answer["logprobs"] = {
                "tokens": [self.service.spelled(token.id) for token in tokens],
                "token_logprobs": [token.logprob for token in tokens],
                "top_logprobs": [
                    {self.service.spelled(i): value for i, value in token.top} if token.logprob is not None else None
                    for token in tokens
                ],
                "text_offset": self.offsets(tokens),
            }
        return answer

    def offsets(self, tokens: list[Token]) -> list[int]:
        found = []
        for token in tokens:
            found.append(self.length)
            self.length += len(token.text)
        return found


def envelope(service: Service, choices: list[dict[str, Any]], name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "text_completion", "created": created, "model": service.name, "choices": choices}


def usage(asked: Completion, jobs: list[Job]) -> dict[str, int]:
    read, written = sum(len(prompt) for prompt in asked.prompts), sum(job.written for job in jobs)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def whole(request: Request, service: Service, asked: Completion, jobs: list[Job], told: Any) -> Response:
    tokens: list[list[Token]] = [[] for _ in jobs]
    done: dict[int, Done] = {}
    watch = asyncio.ensure_future(leaves(request))
    try:
        while len(done) < len(jobs):
            get = asyncio.ensure_future(told.get())
            await asyncio.wait([get, watch], return_when=asyncio.FIRST_COMPLETED)
            if not get.done():
                get.cancel()
                return error(400, "the client left")
            index, what = get.result()
            if isinstance(what, Token):
                tokens[index].append(what)
            else:
                done[index] = what
    finally:
        watch.cancel()
        for job in jobs:
            job.cancelled = True
    if any(one.reason in ("error", "cancelled") for one in done.values()):
        return error(503, "the request could not be finished; try again")
    choices = [
        Text(service, i, asked.logprobs is not None).part(
            tokens[i], "".join(token.text for token in tokens[i]) + done[i].text, done[i].reason
        )
        for i in range(len(jobs))
    ]
    answer = envelope(service, choices, f"cmpl-{uuid.uuid4().hex}", int(time.time()))
    return JSONResponse({**answer, "usage": usage(asked, jobs)})


async def leaves(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.1)


async def as_events(service: Service, asked: Completion, jobs: list[Job], told: Any) -> AsyncIterator[str]:
    name, created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
    texts = [Text(service, i, asked.logprobs is not None) for i in range(len(jobs))]
    left = len(jobs)

    def event(content: dict[str, Any]) -> str:
        return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"

    try:
        while left:
            index, what = await told.get()
            if isinstance(what, Token):
                part = texts[index].part([what], what.text, None)
            elif what.reason in ("error", "cancelled"):
                yield event({"error": {"message": "the request could not be finished", "code": 503}})
                return
            else:
                left -= 1
                part = texts[index].part([], what.text, what.reason)
            yield event(envelope(service, [part], name, created))
        if asked.usage:
            yield event({**envelope(service, [], name, created), "usage": usage(asked, jobs)})
        yield "data: [DONE]\n\n"
    finally:  # also when the client has left
        for job in jobs:
            job.cancelled = True


async def models(request: Request) -> Response:
    service: Service = request.app.state.service
    one = {"id": service.name, "object": "model", "created": int(service.began), "owned_by": "stairwell"}
    wanted = request.path_params.get("name")
    if wanted is None:
        return JSONResponse({"object": "list", "data": [one]})
    if wanted != service.name:
        raise Refused(404, f"there is no such model; there is: {service.name}")
    return JSONResponse(one)


async def tokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = as_object(await read_json(request), {"prompt", "model"})
    ids = tokens_of(fields.get("prompt"), service.vocabulary, service.limits)
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": service.limits.prompt})


async def detokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = as_object(await read_json(request), {"tokens", "model"})
    ids = tokens_of(fields.get("tokens"), service.vocabulary, service.limits)
    return JSONResponse({"prompt": service.vocabulary.decode(ids)})


def described(name: str, stream: Stream) -> dict[str, Any]:
    return {"id": name, "object": "state", "tokens": stream.count, "bytes": stream.state().nbytes}


async def using(request: Request, do: Callable[[Service, Kept], None]) -> Response:
    """Do something with a state, off the event loop, while nobody else does."""
    service: Service = request.app.state.service

    def work() -> dict[str, Any]:
        kept = service.states.read(request.path_params["id"])
        with kept.lock:
            try:
                do(service, kept)
            except UserError as mistake:
                raise Refused(400, str(mistake)) from None
            return described(request.path_params["id"], kept.stream)

    return JSONResponse(await run_in_threadpool(work))


async def create_state(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = as_object(await read_json(request), {"prompt"})
    ids = tokens_of(fields.get("prompt", ""), service.vocabulary, service.limits)

    def work() -> dict[str, Any]:
        name, stream = service.states.create()
        stream.feed(ids)
        return described(name, stream)

    return JSONResponse(await run_in_threadpool(work), 201)


async def show_state(request: Request) -> Response:
    return await using(request, lambda service, kept: None)


async def feed_state(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = as_object(await read_json(request), {"prompt"})
    ids = tokens_of(fields.get("prompt"), service.vocabulary, service.limits)
    return await using(request, lambda service, kept: kept.stream.feed(ids))


async def crop_state(request: Request) -> Response:
    fields = as_object(await read_json(request), {"tokens"})
    tokens = number(fields, "tokens", None, 0, 1 << 31, int)
    if tokens is None:
        raise Refused(400, "'tokens' says how many to take back")
    return await using(request, lambda service, kept: kept.stream.crop(tokens))


async def fork_state(request: Request) -> Response:
    service: Service = request.app.state.service

    def work() -> dict[str, Any]:
        name = service.states.fork(request.path_params["id"])
        return described(name, service.states.read(name).stream)

    return JSONResponse(await run_in_threadpool(work), 201)


async def save_state(request: Request) -> Response:
    service: Service = request.app.state.service
    content = await run_in_threadpool(service.states.save, request.path_params["id"])
    return Response(content, media_type="application/octet-stream")


async def restore_state(request: Request) -> Response:
    service: Service = request.app.state.service
    if request.headers.get("content-type") != "application/octet-stream":
        raise Refused(415, "the request must be application/octet-stream: what saving a state gave out")
    content = await read_bytes(request, service.limits.state_bytes)
    name, stream = await run_in_threadpool(service.states.restore, content)
    return JSONResponse(described(name, stream), 201)


async def delete_state(request: Request) -> Response:
    request.app.state.service.states.delete(request.path_params["id"])
    return Response(status_code=204)


async def health(request: Request) -> Response:
    service: Service = request.app.state.service
    alive = service.batch.thread.is_alive() and not service.batch.closing
    return JSONResponse({"status": "ok" if alive else "closing", "version": __version__}, 200 if alive else 503)


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    batch = service.batch
    now = {"rows": len(batch.active), "waiting": len(batch.queue), "states": len(service.states)}
    lines = [f"# TYPE stairwell_{name}_total counter\nstairwell_{name}_total {n}" for name, n in batch.counts.items()]
    lines += [f"# TYPE stairwell_{name} gauge\nstairwell_{name} {n}" for name, n in now.items()]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def page(request: Request) -> Response:
    service: Service = request.app.state.service
    return HTMLResponse(await run_in_threadpool(service.page))


PLAIN = "<!doctype html><title>stairwell</title><p>POST /v1/completions; see docs/serving.md"
Handler = Callable[[Request], Awaitable[Response]]


def route(path: str, handler: Handler, method: str = "GET") -> Route:
    return Route(path, handler, methods=[method])


ROUTES = [
    route("/", page),
    route("/health", health),
    route("/metrics", metrics),
    route("/v1/models", models),
    route("/v1/models/{name}", models),
    route("/v1/completions", completions, "POST"),
    route("/tokenize", tokenize, "POST"),
    route("/detokenize", detokenize, "POST"),
    route("/v1/states", create_state, "POST"),
    route("/v1/states/restore", restore_state, "POST"),
    route("/v1/states/{id}", show_state),
    route("/v1/states/{id}", delete_state, "DELETE"),
    route("/v1/states/{id}/feed", feed_state, "POST"),
    route("/v1/states/{id}/crop", crop_state, "POST"),
    route("/v1/states/{id}/fork", fork_state, "POST"),
    route("/v1/states/{id}/save", save_state),
]
