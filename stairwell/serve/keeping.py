"""`/v1/states`: texts are read once, and their states stay on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stairwell.serve.requests import Refused, as_object, number, tokens_of
from stairwell.serve.service import Service, media_type, read_bytes, read_json, service_of
from stairwell.serve.states import Past

Named = tuple[str, Past]


async def answered(service: Service, do: Callable[[], Named], status: int = 200) -> Response:
    def work() -> dict[str, Any]:
        name, past = do()
        return {
            "id": name,
            "object": "state",
            "tokens": past.tokens,
            "croppable": past.croppable,
            "bytes": past.nbytes,
            "expires_in": service.limits.state_seconds,
        }

    return JSONResponse(await service.work(work), status)


async def create_state(request: Request) -> Response:
    service = service_of(request)
    fields = as_object(await read_json(request), {"prompt"})

    def work() -> Named:
        return service.states.create(tokens_of(fields.get("prompt", ""), service.vocabulary, service.limits))

    return await answered(service, work, 201)


async def one_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    if request.method == "DELETE":
        service.states.delete(name)
        return Response(status_code=204)
    return await answered(service, lambda: (name, service.states.read(name)))


async def feed_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    fields = as_object(await read_json(request), {"prompt"})

    def work() -> Named:
        ids = tokens_of(fields.get("prompt"), service.vocabulary, service.limits)
        return name, service.states.feed(name, ids)

    return await answered(service, work)


async def crop_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    fields = as_object(await read_json(request), {"tokens"})
    tokens = number(fields, "tokens", None, 0, 2**31 - 1, int)
    if tokens is None:
        raise Refused(400, "'tokens' says how many to take back")
    return await answered(service, lambda: (name, service.states.crop(name, tokens)))


async def fork_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    return await answered(service, lambda: service.states.fork(name), 201)


async def save_state(request: Request) -> Response:
    service = service_of(request)
    content = await service.work(lambda: service.states.save(request.path_params["id"]))
    return Response(content, media_type="application/octet-stream")


async def restore_state(request: Request) -> Response:
    service = service_of(request)
    if media_type(request) != "application/octet-stream":
        raise Refused(415, "the request must be application/octet-stream: what saving a state gave out")
    content = await read_bytes(request, service.limits.state_bytes)
    return await answered(service, lambda: service.states.restore(content), 201)
