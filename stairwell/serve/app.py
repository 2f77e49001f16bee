"""The server as an ASGI application: its endpoints, and the small ones of them.

Everything that a client sends is data. No path, pickle or code is taken from a request.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
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
from stairwell.serve import openapi
from stairwell.serve import state_routes as states
from stairwell.serve.access import AccessMiddleware
from stairwell.serve.chat import chat
from stairwell.serve.chat_template import ChatTemplate
from stairwell.serve.completions import complete
from stairwell.serve.limits import Limits, RequestError
from stairwell.serve.openapi import Endpoint, Handler, describe
from stairwell.serve.request_log import PATH, RequestLog, RequestLogMiddleware
from stairwell.serve.requests import RequestModels, encode_prompt
from stairwell.serve.scheduler import Scheduler
from stairwell.serve.service import HANDLERS, ChunkedResponse, Service, read_request, service_of
from stairwell.serve.state_store import StateStore
from stairwell.version import __version__

LOCAL_HOSTS = ["localhost", "127.0.0.1", "::1"]
PLAIN_PAGE = "<!doctype html><title>stairwell</title><p>API description: <a href=openapi.json>openapi.json"
METRICS = {
    "requests": "Requests for completions and chat completions.",
    "rejected": "Requests rejected because the queue was full.",
    "failed": "Internal errors; see the log.",
    "prompt_tokens": "Tokens prefilled.",
    "generated_tokens": "Tokens generated.",
    "steps": "Decode steps of the batch.",
    "running": "Sequences in the batch.",
    "waiting": "Sequences in the queue.",
    "states": "Stored states.",
}


def make_app(
    model: LanguageModel,
    vocabulary: text.Vocabulary,
    *,
    name: str = "stairwell",
    token: str | None = None,
    limits: Limits | None = None,
    batch_size: int = 16,
    max_waiting: int = 64,
    hosts: Collection[str] = LOCAL_HOSTS,
    page: Callable[[], str] = lambda: PLAIN_PAGE,
    chat_template: ChatTemplate | None = None,
    request_log: Callable[[str], None] | None = None,
) -> Starlette:
    """Return the application. Every endpoint requires `token`, if there is one; `hosts` are the accepted names in Host
    headers, "*" accepts all. `request_log` gets one line per request, in a thread of its own."""
    limits = limits or Limits()
    limits = replace(limits, sequences=min(limits.sequences, batch_size + max_waiting))
    name = name.encode("utf-8", "replace").decode("utf-8")  # the name of a folder may not be Unicode
    scheduler = Scheduler(model, vocabulary, batch_size, max_waiting)
    store = StateStore(model, vocabulary, limits)
    models = RequestModels(name, vocabulary, limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(scheduler.close)
        if log is not None:
            await run_in_threadpool(log.close)

    log = None if request_log is None else RequestLog(request_log)
    middleware = [
        Middleware(RequestLogMiddleware, seconds=scheduler.latency.request, log=log),
        Middleware(AccessMiddleware, hosts=hosts, token=token, max_clients=limits.clients),
    ]
    app = Starlette(routes=ROUTES, lifespan=lifespan, middleware=middleware, exception_handlers=HANDLERS)
    cached_page = cache(lambda: page().encode("utf-8"))
    app.state.service = Service(
        name, model, vocabulary, limits, scheduler, store, models, cached_page, chat_template or ChatTemplate(),
        started=time.time(),
    )  # fmt: skip
    return app


def model_info(service: Service) -> openapi.ModelResponse:
    return {"id": service.name, "object": "model", "created": int(service.started), "owned_by": "stairwell"}


async def list_models(request: Request) -> Response:
    content: openapi.ModelListResponse = {"object": "list", "data": [model_info(service_of(request))]}
    return JSONResponse(content)


async def get_model(request: Request) -> Response:
    service = service_of(request)
    if request.path_params["name"] != service.name:
        raise RequestError(404, f"there is no such model; the model of this server is '{service.name}'")
    return JSONResponse(model_info(service))


async def tokenize(request: Request) -> Response:
    service = service_of(request)
    prompt = (await read_request(request, service.models.tokenize)).prompt
    ids = await service.parse(lambda: encode_prompt(prompt, service.vocabulary, service.limits))
    limit = service.limits.prompt_tokens
    content: openapi.TokenizeResponse = {"tokens": ids, "count": len(ids), "max_model_len": limit}
    return JSONResponse(content)


async def detokenize(request: Request) -> Response:
    service = service_of(request)
    ids = (await read_request(request, service.models.detokenize)).tokens
    content: openapi.DetokenizeResponse = {"prompt": await service.parse(lambda: service.vocabulary.decode(ids))}
    return JSONResponse(content)


async def get_tokenizer_info(request: Request) -> Response:
    """Return what lm_eval asks for. A text starts with a newline, as in `generate`."""
    service = service_of(request)
    vocabulary = service.vocabulary
    try:
        has_newline = len(vocabulary.encode("\n")) == 1
    except UserError:
        has_newline = False
    content: openapi.TokenizerInfoResponse = {
        "tokenizer_class": f"stairwell.{vocabulary.type_name}",
        "vocab_size": vocabulary.size,
        "bos_token": "\n" if has_newline else None,
        "eos_token": None,
        "pad_token": None,
        "chat_template": service.chat_template.source,
    }
    return JSONResponse(content)


async def get_health(request: Request) -> Response:
    scheduler = service_of(request).scheduler
    healthy = scheduler.thread.is_alive() and not scheduler.closing
    content: openapi.HealthResponse = {"status": "ok" if healthy else "closing", "version": __version__}
    return JSONResponse(content, 200 if healthy else 503)


async def get_metrics(request: Request) -> Response:
    """Return metrics in the text format of Prometheus."""
    service = service_of(request)
    scheduler = service.scheduler
    gauges = {"running": len(scheduler.running), "waiting": len(scheduler.queue), "states": len(service.states)}
    lines = []
    for name, value in {**scheduler.counts, **gauges}.items():
        metric, type_ = (f"{name}_total", "counter") if name in scheduler.counts else (name, "gauge")
        lines += [f"# HELP stairwell_{metric} {METRICS[name]}", f"# TYPE stairwell_{metric} {type_}"]
        lines.append(f"stairwell_{metric} {value}")
    lines += scheduler.latency.lines()
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def get_page(request: Request) -> Response:
    service = service_of(request)
    return ChunkedResponse(await service.run_in_worker(service.page), media_type="text/html")


async def get_openapi(request: Request) -> Response:
    service = service_of(request)
    return JSONResponse(describe(ENDPOINTS, service.name, service.models))


STATE = openapi.StateResponse
ENDPOINTS = [
    Endpoint("GET", "/", get_page, "The page of the HTML export.", media_types=("text/html",)),
    Endpoint("GET", "/health", get_health, "Whether the server is healthy.", openapi.HealthResponse),
    Endpoint("GET", "/metrics", get_metrics, "Metrics for Prometheus.", media_types=("text/plain",)),
    Endpoint("GET", "/openapi.json", get_openapi, "This description."),
    Endpoint("GET", "/v1/models", list_models, "The model of the server.", openapi.ModelListResponse),
    Endpoint("GET", "/v1/models/{name}", get_model, "The model of the server.", openapi.ModelResponse, errors=(404,)),
    Endpoint(
        "POST", "/v1/completions", complete, "Complete prompts; with `stream`, as server-sent events.",
        openapi.CompletionResponse, (openapi.JSON, "text/event-stream"), errors=(404, 409, 503),
    ),
    Endpoint(
        "POST", "/v1/chat/completions", chat, "Continue a chat; with `stream`, as server-sent events.",
        openapi.ChatResponse, (openapi.JSON, "text/event-stream"), errors=(404, 409, 503),
    ),
    Endpoint("POST", "/tokenize", tokenize, "The token ids of a text.", openapi.TokenizeResponse, errors=(404,)),
    Endpoint("POST", "/detokenize", detokenize, "The text of token ids.", openapi.DetokenizeResponse, errors=(404,)),
    Endpoint("GET", "/tokenizer_info", get_tokenizer_info, "The special tokens.", openapi.TokenizerInfoResponse),
    Endpoint(
        "POST", "/v1/states", states.create_state, "Read a prompt and store the state.", STATE, status=201,
        errors=(503,),
    ),
    Endpoint(
        "POST", "/v1/states/restore", states.restore_state, "Store a saved state.", STATE, upload=True, status=201,
        errors=(503, 507),
    ),
    Endpoint("GET", "/v1/states/{id}", states.get_state, "Describe a state.", STATE, errors=(404,)),
    Endpoint(
        "DELETE", "/v1/states/{id}", states.delete_state, "Delete a state.", media_types=(), status=204, errors=(404,)
    ),
    Endpoint("POST", "/v1/states/{id}/feed", states.feed_state, "Read more tokens.", STATE, errors=(404, 503)),
    Endpoint(
        "POST", "/v1/states/{id}/crop", states.crop_state, "Remove the most recent tokens.", STATE,
        errors=(404, 409, 503),
    ),
    Endpoint("POST", "/v1/states/{id}/fork", states.fork_state, "Copy a state.", STATE, status=201, errors=(404,)),
    Endpoint(
        "GET", "/v1/states/{id}/save", states.save_state, "The state as a file.", media_types=(openapi.BINARY,),
        errors=(404, 503, 507),
    ),
]  # fmt: skip


def make_routes() -> list[Route]:
    """Return one route per path, so that its 405 responses list all methods."""
    paths: dict[str, dict[str, Handler]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint.handler
    return [Route(path, dispatch(path, handlers), methods=[*handlers]) for path, handlers in paths.items()]


def dispatch(path: str, handlers: Mapping[str, Handler]) -> Handler:
    async def handle(request: Request) -> Response:
        request.scope[PATH] = path
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle


ROUTES = make_routes()
