"""The service as an ASGI application: its routes, and those of them that are small.

Everything that a client sends is data: no path, no pickle, no code is ever taken from it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stairwell import text
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.serve import keeping
from stairwell.serve.batch import Batch
from stairwell.serve.completing import completions
from stairwell.serve.description import describe
from stairwell.serve.guard import Guard
from stairwell.serve.requests import Limits, Refused, as_object, check_model, flag, tokens_of
from stairwell.serve.service import HANDLERS, Service, Sliced, read_json, service_of
from stairwell.serve.states import States
from stairwell.version import __version__

LOCAL = ["localhost", "127.0.0.1", "::1"]
PLAIN = "<!doctype html><title>stairwell</title><p>what there is: <a href=openapi.json>openapi.json"
METRICS = {
    "requests": "requests for completions",
    "rejected": "requests that were told to come back",
    "failed": "failures that are bugs; the log has them",
    "prompt_tokens": "tokens of prompts read",
    "written_tokens": "tokens written",
    "steps": "steps of the batch",
    "rows": "texts that are being written",
    "waiting": "texts that wait for a row",
    "states": "states that are kept",
}


def make_app(
    model: LanguageModel,
    vocabulary: text.Vocabulary,
    *,
    name: str = "stairwell",
    token: str | None = None,
    limits: Limits | None = None,
    rows: int = 16,
    waiting: int = 64,
    hosts: Collection[str] = LOCAL,
    page: Callable[[], str] = lambda: PLAIN,
) -> Starlette:
    """`token` guards every route; `hosts` are the names that the service answers to, "*" is any."""
    limits = limits or Limits()
    limits = replace(limits, texts=min(limits.texts, rows + waiting))
    name = name.encode("utf-8", "replace").decode("utf-8")  # a folder's may be no text
    batch = Batch(model, vocabulary, rows, waiting)
    states = States(model, vocabulary, limits)
    made = cache(lambda: page().encode("utf-8"))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(batch.close)

    guard = Middleware(Guard, hosts=hosts, token=token, clients=limits.clients)
    app = Starlette(routes=ROUTES, lifespan=lifespan, middleware=[guard], exception_handlers=HANDLERS)
    app.state.service = Service(name, model, vocabulary, limits, batch, states, made, time.time())
    return app


async def models(request: Request) -> Response:
    service = service_of(request)
    one = {"id": service.name, "object": "model", "created": int(service.began), "owned_by": "stairwell"}
    wanted = request.path_params.get("name")
    if wanted is None:
        return JSONResponse({"object": "list", "data": [one]})
    if wanted != service.name:
        raise Refused(404, f"there is no such model; there is: {service.name}")
    return JSONResponse(one)


async def tokenize(request: Request) -> Response:
    service = service_of(request)
    fields = as_object(await read_json(request), {"prompt", "model", "add_special_tokens"})
    check_model(fields, service.name)
    flag(fields, "add_special_tokens")  # there are none
    ids = await service.parse(lambda: tokens_of(fields.get("prompt"), service.vocabulary, service.limits))
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": service.limits.prompt})


async def detokenize(request: Request) -> Response:
    service = service_of(request)
    fields = as_object(await read_json(request), {"tokens", "model"})
    check_model(fields, service.name)
    if not isinstance(fields.get("tokens"), list):
        raise Refused(400, "'tokens' must be a list of tokens")
    ids = tokens_of(fields["tokens"], service.vocabulary, service.limits)
    return JSONResponse({"prompt": await service.parse(lambda: service.vocabulary.decode(ids))})


async def tokenizer_info(request: Request) -> Response:
    """As lm_eval asks. Nothing is known before the first token: what begins a text is a line end, as for `generate`."""
    vocabulary = service_of(request).vocabulary
    try:
        begins = len(vocabulary.encode("\n")) == 1
    except UserError:
        begins = False
    special = {"bos_token": "\n" if begins else None, "eos_token": None, "pad_token": None, "chat_template": None}
    return JSONResponse({"tokenizer_class": f"stairwell.{vocabulary.kind}", "vocab_size": vocabulary.size, **special})


async def health(request: Request) -> Response:
    batch = service_of(request).batch
    alive = batch.thread.is_alive() and not batch.closing
    return JSONResponse({"status": "ok" if alive else "closing", "version": __version__}, 200 if alive else 503)


async def metrics(request: Request) -> Response:
    """In the text format of Prometheus."""
    service = service_of(request)
    batch = service.batch
    now = {"rows": len(batch.active), "waiting": len(batch.queue), "states": len(service.states)}
    lines = []
    for name, value in {**batch.counts, **now}.items():
        full, kind = (f"stairwell_{name}_total", "counter") if name in batch.counts else (f"stairwell_{name}", "gauge")
        lines += [f"# HELP {full} {METRICS[name]}", f"# TYPE {full} {kind}", f"{full} {value}"]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def page(request: Request) -> Response:
    service = service_of(request)
    return Sliced(await service.work(service.page), media_type="text/html")


async def openapi(request: Request) -> Response:
    service = service_of(request)
    return JSONResponse(describe(service.name, service.vocabulary.size, service.limits))


Handler = Callable[[Request], Awaitable[Response]]


def route(path: str, handler: Handler, *methods: str) -> Route:
    return Route(path, handler, methods=list(methods) or ["GET"])


ROUTES = [
    route("/", page),
    route("/health", health),
    route("/metrics", metrics),
    route("/openapi.json", openapi),
    route("/v1/models", models),
    route("/v1/models/{name}", models),
    route("/v1/completions", completions, "POST"),
    route("/tokenize", tokenize, "POST"),
    route("/detokenize", detokenize, "POST"),
    route("/tokenizer_info", tokenizer_info),
    route("/v1/states", keeping.create_state, "POST"),
    route("/v1/states/restore", keeping.restore_state, "POST"),
    route("/v1/states/{id}", keeping.one_state, "GET", "DELETE"),
    route("/v1/states/{id}/feed", keeping.feed_state, "POST"),
    route("/v1/states/{id}/crop", keeping.crop_state, "POST"),
    route("/v1/states/{id}/fork", keeping.fork_state, "POST"),
    route("/v1/states/{id}/save", keeping.save_state),
]
