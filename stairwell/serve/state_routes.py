"""`/v1/states`: states that stay on the server.

A state is stored only if its client is still connected; another client cannot know its id, or delete it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stairwell.serve.limits import RequestError
from stairwell.serve.openapi import StateResponse
from stairwell.serve.requests import encode_prompt
from stairwell.serve.service import Service, StateFileResponse, media_type, read_bytes, read_request, service_of
from stairwell.serve.snapshot import Snapshot
from stairwell.serve.state_store import crop


def describe(service: Service, id: str, snapshot: Snapshot, status: int = 200) -> Response:
    content: StateResponse = {
        "id": id,
        "object": "state",
        "tokens": snapshot.tokens,
        "croppable": snapshot.croppable,
        "bytes": snapshot.nbytes,
        "expires_in": service.limits.state_seconds,
    }
    return JSONResponse(content, status)


async def create_state(request: Request) -> Response:
    service = service_of(request)
    prompt = (await read_request(request, service.models.create_state)).prompt
    ids = await service.parse(lambda: encode_prompt(prompt, service.vocabulary, service.limits))
    initial = service.states.initial
    service.states.check_quota(initial.nbytes)  # before the prompt is read
    snapshot = await service.run_while_connected(request, service.prefill(initial, ids))
    return describe(service, service.states.add(snapshot), snapshot, 201)


async def get_state(request: Request) -> Response:
    service, id = service_of(request), request.path_params["id"]
    return describe(service, id, service.states.get(id))


async def delete_state(request: Request) -> Response:
    service_of(request).states.delete(request.path_params["id"])
    return Response(status_code=204)


async def feed_state(request: Request) -> Response:
    service, id = service_of(request), request.path_params["id"]
    prompt = (await read_request(request, service.models.feed_state)).prompt
    ids = await service.parse(lambda: encode_prompt(prompt, service.vocabulary, service.limits))
    change = service.states.change(id, lambda snapshot: service.prefill(snapshot, ids))
    return describe(service, id, await service.run_while_connected(request, change))


async def crop_state(request: Request) -> Response:
    service, id = service_of(request), request.path_params["id"]
    tokens = (await read_request(request, service.models.crop_state)).tokens
    change = service.states.change(id, lambda snapshot: service.prefill(*crop(snapshot, tokens)))
    return describe(service, id, await service.run_while_connected(request, change))


async def fork_state(request: Request) -> Response:
    service = service_of(request)
    return describe(service, *service.states.fork(request.path_params["id"]), 201)


async def save_state(request: Request) -> Response:
    service, id = service_of(request), request.path_params["id"]
    save = service.run_in_worker(lambda: service.states.save(id))
    return StateFileResponse(service, await service.run_while_connected(request, save))


async def restore_state(request: Request) -> Response:
    service = service_of(request)
    if media_type(request) != "application/octet-stream":
        raise RequestError(415, "the Content-Type must be application/octet-stream, and the body a saved state file")
    content = await read_bytes(request, service.limits.state_file_bytes)
    restore = service.run_in_worker(lambda: service.states.restore(content))
    snapshot = await service.run_while_connected(request, restore)
    return describe(service, service.states.add(snapshot), snapshot, 201)
