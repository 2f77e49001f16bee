"""The OpenAPI 3.1 description of the server, generated from its endpoints, its request models and the types of its
responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic cannot read typing.TypedDict before Python 3.12

from stairwell.serve.requests import RequestModels
from stairwell.version import __version__

Schema = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
JSON, BINARY = "application/json", "application/octet-stream"
NonNegative = Annotated[int, Field(ge=0)]
exact = with_config(ConfigDict(extra="forbid"))


@exact
class ErrorDetail(TypedDict):
    message: str
    type: str
    code: int


@exact
class ErrorResponse(TypedDict):
    error: ErrorDetail


@exact
class Logprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[NonNegative]


@exact
class CompletionChoice(TypedDict):
    index: NonNegative
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None


@exact
class Usage(TypedDict):
    prompt_tokens: NonNegative
    completion_tokens: NonNegative
    total_tokens: NonNegative


@exact
class CompletionResponse(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: NonNegative
    model: str
    choices: list[CompletionChoice]
    usage: Usage


@exact
class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[NonNegative]


@exact
class TokenLogprobs(TokenLogprob):
    top_logprobs: list[TokenLogprob]


@exact
class ChatLogprobs(TypedDict):
    content: list[TokenLogprobs]
    refusal: None


@exact
class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


@exact
class ChatChoice(TypedDict):
    index: NonNegative
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None


@exact
class ChatResponse(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: NonNegative
    model: str
    choices: list[ChatChoice]
    usage: Usage


@exact
class StateResponse(TypedDict):
    id: str
    object: Literal["state"]
    tokens: NonNegative
    croppable: NonNegative
    bytes: NonNegative
    expires_in: float


@exact
class ModelResponse(TypedDict):
    id: str
    object: Literal["model"]
    created: NonNegative
    owned_by: str


@exact
class ModelListResponse(TypedDict):
    object: Literal["list"]
    data: list[ModelResponse]


@exact
class TokenizeResponse(TypedDict):
    tokens: list[NonNegative]
    count: NonNegative
    max_model_len: NonNegative


@exact
class DetokenizeResponse(TypedDict):
    prompt: str


@exact
class TokenizerInfoResponse(TypedDict):
    tokenizer_class: str
    vocab_size: NonNegative
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


@exact
class HealthResponse(TypedDict):
    status: str
    version: str


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. `RequestModels` has the model of its JSON body, if any, under the name of the handler."""

    method: str
    path: str
    handler: Handler
    summary: str
    response: Any = None
    """Type of the JSON response, None if it has another media type or no content."""
    media_types: Sequence[str] = (JSON,)
    """Media types of the response."""
    upload: bool = False
    """Whether the body is a file."""
    status: int = 200
    """Status of success."""
    errors: tuple[int, ...] = ()
    """Statuses of errors, besides those that every endpoint has."""

    @property
    def id(self) -> str:
        return self.handler.__name__


ERRORS = {
    400: "The request is invalid; the message says why.",
    401: "The bearer token is missing or wrong.",
    404: "There is no model or state of this name.",
    405: "The path has other methods.",
    408: "The body did not arrive in time.",
    409: "The state has not read enough tokens.",
    413: "The body is too large.",
    415: "The body has the wrong media type.",
    429: "Too many requests; try again after Retry-After seconds.",
    503: "The request failed, or was not finished in time; try again.",
    507: "The server's disk is full.",
}


def describe(endpoints: Sequence[Endpoint], name: str, models: RequestModels) -> Schema:
    """Return the OpenAPI description of a server whose model has this name."""
    types = {endpoint.id: endpoint.response for endpoint in endpoints if endpoint.response is not None}
    bodies = {each.id: getattr(models, each.id) for each in endpoints if hasattr(models, each.id)}
    adapters = [(id, "serialization", TypeAdapter(type_)) for id, type_ in types.items()]
    adapters += [(id, "validation", TypeAdapter(model)) for id, model in bodies.items()]
    adapters.append(("error", "serialization", TypeAdapter(ErrorResponse)))
    schemas, definitions = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: Schema = {}
    for endpoint in endpoints:
        path = paths.setdefault(endpoint.path, {})
        path[endpoint.method.lower()] = operation(endpoint, schemas)  # type: ignore[arg-type]
        if "{" in endpoint.path:
            parameter = endpoint.path.partition("{")[2].partition("}")[0]
            schema = {"const": name} if parameter == "name" else {"type": "string", "minLength": 1}
            path["parameters"] = [{"name": parameter, "in": "path", "required": True, "schema": schema}]
    of_state = [endpoint.id for endpoint in endpoints if "{id}" in endpoint.path]
    links = {id: {"operationId": id, "parameters": {"id": "$response.body#/id"}} for id in of_state}
    paths["/v1/states"]["post"]["responses"]["201"]["links"] = links
    return {
        "openapi": "3.1.0",
        "info": {"title": "stairwell", "version": __version__, "description": f"Completions and states of '{name}'."},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],  # optional: a server may have no token
    }


def operation(endpoint: Endpoint, schemas: dict[tuple[str, str], Schema]) -> Schema:
    success: Schema = {"description": endpoint.summary}
    if endpoint.media_types:
        success["content"] = {media_type: {"schema": {}} for media_type in endpoint.media_types}
    if endpoint.response is not None:
        success["content"][JSON]["schema"] = schemas[endpoint.id, "serialization"]
    error = {JSON: {"schema": schemas["error", "serialization"]}}
    body: Any = {BINARY: {}} if endpoint.upload else None
    if (endpoint.id, "validation") in schemas:
        body = {JSON: {"schema": schemas[endpoint.id, "validation"]}}
    responses: Schema = {str(endpoint.status): success}
    for status in sorted({400, 401, 405, 429, *endpoint.errors, *((408, 413, 415) if body else ())}):
        responses[str(status)] = {"description": ERRORS[status], "content": error}
    result: Schema = {"operationId": endpoint.id, "summary": endpoint.summary, "responses": responses}
    if body is not None:
        result["requestBody"] = {"required": True, "content": body}
    return result
