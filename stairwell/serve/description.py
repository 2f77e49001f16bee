"""The service described for programs: OpenAPI 3.1, at /openapi.json. `requests.py` holds requests to the same."""

from __future__ import annotations

from typing import Any

from stairwell.serve.requests import HOTTEST, LOGPROBS, NEUTRAL, PENALTY, STOP_LENGTH, STOPS, Limits
from stairwell.version import __version__

Schema = dict[str, Any]


def describe(name: str, symbols: int, limits: Limits) -> Schema:
    """`name` of the model, `symbols` that it knows."""
    tokens = array(whole(0, symbols - 1), 1, limits.prompt)
    schemas = {
        "Error": record({"error": record({"message": text(), "type": text(), "code": whole(400, 599)})}),
        "Prompt": {
            "description": "a text, tokens, or a list of either",
            "anyOf": [text(1), tokens, array(text(1), 1, limits.texts), array(tokens, 1, limits.texts)],
        },
        "OnePrompt": {"description": "a text or tokens", "anyOf": [text(), {**tokens, "minItems": 0}]},
        "Completion": completion(name, limits),
        "Answer": answer(),
        "State": record(
            {
                "id": text(1),
                "object": {"const": "state"},
                "tokens": whole(0),
                "croppable": whole(0),
                "bytes": whole(0),
                "expires_in": {"type": "number"},
            }
        ),
        "Model": record({"id": text(1), "object": {"const": "model"}, "created": whole(0), "owned_by": text(1)}),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "stairwell", "version": __version__, "description": f"completions and states of '{name}'"},
        "paths": paths(name, tokens),
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],  # a server without a token needs none
    }


def completion(name: str, limits: Limits) -> Schema:
    optional: Schema = {
        "model": {"const": name},
        "prompt": refer("Prompt"),
        "state": {**text(1), "description": "the id of a state to go on from, which stays as it is"},
        "max_tokens": whole(0, limits.tokens),
        "temperature": number(0, HOTTEST),
        "top_k": whole(1, 2**31 - 1),
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "repetition_penalty": number(*PENALTY),
        "n": whole(1, limits.texts),
        "stream": {"type": "boolean"},
        "stream_options": record({}, {"include_usage": {"type": ["boolean", "null"]}}),
        "logprobs": whole(0, LOGPROBS),
        "echo": {"type": "boolean"},
        "stop": {"anyOf": [text(1, STOP_LENGTH), array(text(1, STOP_LENGTH), 0, STOPS)]},
        "seed": whole(-(2**63), 2**63 - 1),
        "user": text(),
        **{field: {"const": nothing} for field, nothing in NEUTRAL.items()},
    }
    nullable = {field: {"anyOf": [schema, {"type": "null"}]} for field, schema in optional.items()}
    without = {field: nullable[field] for field in nullable if field not in ("prompt", "state")}
    read = {"description": "what is read first", "anyOf": [refer("Prompt"), {"const": ""}, {"type": "null"}]}
    return {
        "anyOf": [
            record({"prompt": optional["prompt"]}, {**without, "state": {"type": "null"}}),
            record({"state": optional["state"]}, {**without, "prompt": read}),
        ]
    }


def answer() -> Schema:
    logprobs = record(
        {
            "tokens": array(text()),
            "token_logprobs": array({"type": ["number", "null"]}),
            "top_logprobs": array({"type": ["object", "null"], "additionalProperties": {"type": "number"}}),
            "text_offset": array(whole(0)),
        }
    )
    choice = record(
        {
            "index": whole(0),
            "text": text(),
            "logprobs": {"anyOf": [logprobs, {"type": "null"}]},
            "finish_reason": {"enum": ["stop", "length"]},
        }
    )
    usage = record({field: whole(0) for field in ("prompt_tokens", "completion_tokens", "total_tokens")})
    return record(
        {
            "id": text(1),
            "object": {"const": "text_completion"},
            "created": whole(0),
            "model": text(1),
            "choices": array(choice),
            "usage": usage,
        }
    )


def paths(name: str, tokens: Schema) -> Schema:
    model = {"name": "name", "in": "path", "required": True, "schema": {"const": name}}
    prompt = {"prompt": refer("OnePrompt")}
    maybe = {"model": {"anyOf": [{"const": name}, {"type": "null"}]}}
    tokenized = record({"tokens": array(whole(0)), "count": whole(0), "max_model_len": whole(1)})
    special = {name: {"type": ["string", "null"]} for name in ("bos_token", "eos_token", "pad_token", "chat_template")}
    tokenizer = record({"tokenizer_class": text(1), "vocab_size": whole(1), **special})
    return {
        "/": {"get": operation("page", "the page of the HTML export", plain("text/html"))},
        "/health": {"get": operation("health", "whether it is well", record({"status": text(), "version": text()}))},
        "/metrics": {"get": operation("metrics", "numbers for Prometheus", plain("text/plain"))},
        "/openapi.json": {"get": operation("describe", "this description", {"type": "object"})},
        "/v1/models": {
            "get": operation(
                "models", "the one model", record({"object": {"const": "list"}, "data": array(refer("Model"))})
            )
        },
        "/v1/models/{name}": {
            "parameters": [model],
            "get": operation("model", "the one model", refer("Model"), errors=(404,)),
        },
        "/v1/completions": {
            "post": operation(
                "complete",
                "texts that go on from prompts; with `stream`, server-sent events",
                refer("Answer"),
                body=refer("Completion"),
                errors=(404, 409, 503),
                streams=True,
            )
        },
        "/tokenize": {
            "post": operation(
                "tokenize",
                "a text as tokens",
                tokenized,
                body=record(prompt, {**maybe, "add_special_tokens": {"type": ["boolean", "null"]}}),
                errors=(404,),
            )
        },
        "/detokenize": {
            "post": operation(
                "detokenize",
                "tokens as a text",
                record({"prompt": text()}),
                body=record({"tokens": {**tokens, "minItems": 0}}, maybe),
                errors=(404,),
            )
        },
        "/tokenizer_info": {"get": operation("tokenizer", "what begins a text", tokenizer)},
        **state_paths(prompt),
    }


def state_paths(prompt: Schema) -> Schema:
    saved: Schema = {"application/octet-stream": {"schema": {}}}
    one = [{"name": "id", "in": "path", "required": True, "schema": text(1)}]
    kept = refer("State")
    feed = operation("feed", "read on", kept, body=record(prompt), errors=(404, 503))
    count = record({"tokens": whole(0, 2**31 - 1)})
    crop = operation("crop", "take the last tokens back", kept, body=count, errors=(404, 409, 503))
    create = operation(
        "create", "read a text and keep the state", kept, 201, record({}, {"prompt": refer("OnePrompt")}), (503,)
    )
    for field in ("feed", "crop", "fork", "save", "show", "forget"):
        link = {"operationId": field, "parameters": {"id": "$response.body#/id"}}
        create["responses"]["201"].setdefault("links", {})[field] = link
    restore = operation("restore", "keep a state that was saved", kept, 201, errors=(408, 413, 415, 503, 507))
    restore["requestBody"] = {"required": True, "content": saved}
    return {
        "/v1/states": {"post": create},
        "/v1/states/restore": {"post": restore},
        "/v1/states/{id}": {
            "parameters": one,
            "get": operation("show", "how much was read", kept, errors=(404,)),
            "delete": operation("forget", "forget a state", None, 204, errors=(404,)),
        },
        "/v1/states/{id}/feed": {"parameters": one, "post": feed},
        "/v1/states/{id}/crop": {"parameters": one, "post": crop},
        "/v1/states/{id}/fork": {
            "parameters": one,
            "post": operation("fork", "another state with the same past", kept, 201, errors=(404,)),
        },
        "/v1/states/{id}/save": {
            "parameters": one,
            "get": operation("save", "the state as a file", plain("application/octet-stream"), errors=(404, 503, 507)),
        },
    }


def operation(
    name: str,
    words: str,
    result: Schema | None,
    status: int = 200,
    body: Schema | None = None,
    errors: tuple[int, ...] = (),
    streams: bool = False,
) -> Schema:
    """One method of a path. `result` is the schema of a JSON answer, or what `plain` gives, or nothing."""
    content = {} if result is None else result.get("content") or {"application/json": {"schema": result}}
    if streams:
        content = {**content, "text/event-stream": {"schema": {}}}
    responses: Schema = {str(status): {"description": words, **({"content": content} if content else {})}}
    said = {"application/json": {"schema": refer("Error")}}
    for wrong in sorted({400, 401, 405, 429, *errors, *((408, 413, 415) if body else ())}):
        responses[str(wrong)] = {"description": REASONS[wrong], "content": said}
    made: Schema = {"operationId": name, "summary": words, "responses": responses}
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


REASONS = {
    400: "what was wrong, and what would be right",
    401: "the token is missing or wrong",
    404: "there is none of this name",
    405: "another method is needed",
    408: "the body did not come in time",
    409: "the state has not read enough for it",
    413: "too large",
    415: "of another type",
    429: "too many at a time; come back after Retry-After seconds",
    503: "it could not be finished, or not in time; try again",
    507: "the server's disk is full",
}


def plain(media: str) -> Schema:
    return {"content": {media: {"schema": {}}}}


def refer(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: Schema, optional: Schema | None = None) -> Schema:
    """An object of these fields and no others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def array(items: Schema, least: int | None = None, most: int | None = None) -> Schema:
    return {"type": "array", "items": items, **bounds("Items", least, most)}


def text(least: int | None = None, most: int | None = None) -> Schema:
    return {"type": "string", **bounds("Length", least, most)}


def bounds(what: str, least: int | None, most: int | None) -> Schema:
    given = {f"min{what}": least, f"max{what}": most}
    return {key: value for key, value in given.items() if value is not None}


def number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def whole(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}
