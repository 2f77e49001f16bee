"""`/v1/states`: texts are read once, and their states stay on the server.

A state is kept only once its client is there to be told its id: nobody could ask for it otherwise, or delete it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stairwell.serve.requests import Refused, as_object, number, tokens_of
from stairwell.serve.service import Saved, Service, media_type, read_bytes, read_json, service_of
from stairwell.serve.states import Past


def answer(service: Service, name: str, past: Past, status: int = 200) -> Response:
    content = {
        "id": name,
        "object": "state",
        "tokens": past.tokens,
        "croppable": past.croppable,
        "bytes": past.nbytes,
        "expires_in": service.limits.state_seconds,
    }
    return JSONResponse(content, status)


async def create_state(request: Request) -> Response:
    service = service_of(request)
    fields = as_object(await read_json(request), {"prompt"})
    ids = await service.parse(lambda: tokens_of(fields.get("prompt", ""), service.vocabulary, service.limits))
    fresh = service.states.fresh
    service.states.check_room(fresh.nbytes)  # before anything is read
    past = await service.attend(request, service.read(fresh, ids))
    return answer(service, service.states.keep(past), past, 201)


async def one_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    if request.method == "DELETE":
        service.states.delete(name)
        return Response(status_code=204)
    return answer(service, name, service.states.read(name))


async def feed_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    fields = as_object(await read_json(request), {"prompt"})
    ids = await service.parse(lambda: tokens_of(fields.get("prompt"), service.vocabulary, service.limits))
    change = service.states.change(name, lambda past: service.read(past, ids))
    return answer(service, name, await service.attend(request, change))


async def crop_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    fields = as_object(await read_json(request), {"tokens"})
    tokens = number(fields, "tokens", None, 0, 2**31 - 1, int)
    if tokens is None:
        raise Refused(400, "'tokens' says how many to take back")
    change = service.states.change(name, lambda past: service.read(*service.states.cropped(past, tokens)))
    return answer(service, name, await service.attend(request, change))


async def fork_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    return answer(service, *service.states.fork(name), 201)


async def save_state(request: Request) -> Response:
    service, name = service_of(request), request.path_params["id"]
    content = await service.attend(request, service.work(lambda: service.states.save(name)))
    return Saved(service, content)


async def restore_state(request: Request) -> Response:
    service = service_of(request)
    if media_type(request) != "application/octet-stream":
        raise Refused(415, "the request must be application/octet-stream: what saving a state gave out")
    content = await read_bytes(request, service.limits.state_bytes)
    past = await service.attend(request, service.work(lambda: service.states.restore(content)))
    return answer(service, service.states.keep(past), past, 201)
