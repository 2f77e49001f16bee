"""Request bodies as pydantic models. They validate requests, and `openapi.py` publishes their JSON schemas.

The module's models have the constraints that hold on every server. `RequestModels` adds those of one server: the name
of its model, its vocabulary and its limits.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from stairwell import text
from stairwell.decode.sampling import REPETITION_PENALTY_RANGE, Sampling
from stairwell.errors import UserError
from stairwell.serve.limits import Limits, RequestError
from stairwell.serve.logits import LogitsProcessor
from stairwell.stream import encode

MAX_STOPS, MAX_STOP_LENGTH = 16, 200  # stop strings, characters per stop string
MAX_LOGPROBS = 5  # alternatives per token
MAX_LOGIT_BIAS = 300  # entries
MAX_TEMPERATURE = 100.0
DEFAULT_TOKENS = 16  # generated per sequence, as in the OpenAI API
# Single precision cannot distinguish a smaller temperature or probability from 0.
SMALLEST = 1e-6
INT32, INT64 = 2**31 - 1, 2**63 - 1

Penalty = Annotated[float, Field(ge=-2, le=2)]


class RequestBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_fields(cls, body: Any) -> Any:
        # pydantic reports each unknown field of the body; there may be very many.
        if isinstance(body, dict) and (unknown := sorted(body.keys() - cls.model_fields.keys())):
            names = {"unknown": printable(unknown[0][:50]), "known": ", ".join(sorted(cls.model_fields))}
            raise PydanticCustomError("unknown_field", "unknown field '{unknown}'; known fields: {known}", names)
        return body


class StreamOptions(RequestBody):
    include_usage: bool | None = None
    """Whether the last event has the token counts."""
    include_obfuscation: bool | None = None
    """Ignored."""


class CompletionRequest(RequestBody):
    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["prompt"]}, {"required": ["state"]}]})

    model: str | None = None
    """Name of the model."""
    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    """A string, token ids, or a list of either. Required, and not empty, without a state."""
    state: Annotated[str, Field(min_length=1)] | None = None
    """Id of the state to continue from. The stored state does not change."""
    max_tokens: int | None = None
    """Generated tokens per sequence; 0 with `echo` scores the prompt."""
    max_completion_tokens: int | None = None
    """Another name for `max_tokens`."""
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """Sampling temperature; 0 is greedy."""
    top_k: Annotated[int, Field(ge=1, le=INT32)] | None = None
    """Sample from the k most probable tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample from the most probable tokens that together have this probability."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Sample from tokens with at least this fraction of the highest probability."""
    repetition_penalty: (
        Annotated[float, Field(ge=REPETITION_PENALTY_RANGE[0], le=REPETITION_PENALTY_RANGE[1])] | None
    ) = None
    """Penalty on the 64 most recent tokens (Keskar et al., 2019); 1 is none."""
    presence_penalty: Penalty | None = None
    """Subtracted from the logit of every token generated before."""
    frequency_penalty: Penalty | None = None
    """Subtracted from the logit of a token once for each time it was generated before."""
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None = (
        Field(None, max_length=MAX_LOGIT_BIAS)
    )
    """Added to the logits, per token id."""
    n: int | None = None
    """Sequences returned per prompt."""
    best_of: int | None = None
    """Sequences generated per prompt; the n with the highest mean log-probability are returned."""
    stream: bool | None = None
    """Whether to send server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of a stream."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Return log-probabilities, of this many alternatives per token."""
    echo: bool | None = None
    """Whether to return the prompt before the generated text."""
    stop: str | list[str] | None = None
    """Strings at which generation ends."""
    suffix: Literal[""] | None = None
    """Not supported."""
    seed: Annotated[int, Field(ge=-INT64 - 1, le=INT64)] | None = None
    """Seed of the random generators."""
    user: str | None = None
    """Ignored."""

    @model_validator(mode="before")
    @classmethod
    def limit_logit_bias(cls, body: Any) -> Any:
        # Before pydantic validates, and reports, every entry.
        if isinstance(body, dict) and isinstance(bias := body.get("logit_bias"), dict) and len(bias) > MAX_LOGIT_BIAS:
            raise invalid(f"'logit_bias' has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are allowed")
        return body

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        if self.state is None and not all(self.prompts):
            raise invalid("'prompt' is missing or empty: give a prompt of at least one token, or a 'state'")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise invalid("'max_tokens' and 'max_completion_tokens' differ; give one of them")
        if self.best_of is not None and self.best_of < self.returned:
            raise invalid(f"'best_of' is {self.best_of} but n is {self.returned}; best_of must be at least n")
        if self.stream and self.generated > self.returned:
            raise invalid("'best_of' above n cannot be streamed; set 'stream' to false")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt

    @property
    def returned(self) -> int:
        """Sequences returned per prompt."""
        return 1 if self.n is None else self.n

    @property
    def generated(self) -> int:
        """Sequences generated per prompt."""
        return self.returned if self.best_of is None else self.best_of

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def token_limit(self, limits: Limits) -> int:
        """Return the number of tokens to generate per sequence."""
        given = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return min(DEFAULT_TOKENS, limits.completion_tokens) if given is None else given

    def output_size(self, prompts: list[list[int]], limits: Limits) -> int:
        """Return the largest possible size of the response in tokens. A token with k log-probabilities counts as
        2 + k tokens."""
        tokens = sum(self.token_limit(limits) + (len(prompt) if self.echo else 0) for prompt in prompts)
        return (1 if self.logprobs is None else 2 + self.logprobs) * self.generated * tokens

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self._temperature,
            top_k=self.top_k,
            top_p=None if self.top_p is None else max(self.top_p, SMALLEST),
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
        )

    def logits_processor(self) -> LogitsProcessor | None:
        if not (self.logit_bias or self.presence_penalty or self.frequency_penalty or self.min_p):
            return None
        return LogitsProcessor(
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            min_p=self.min_p or 0.0,
            temperature=self._temperature,
        )

    @property
    def _temperature(self) -> float:
        if self.temperature is None:
            return 1.0
        return self.temperature if self.temperature >= SMALLEST else 0.0


class TokenizeRequest(RequestBody):
    model: str | None = None
    """Name of the model."""
    prompt: str | list[int]
    """A string or token ids."""
    add_special_tokens: bool | None = None
    """Ignored: there are no special tokens."""


class DetokenizeRequest(RequestBody):
    model: str | None = None
    """Name of the model."""
    tokens: list[int]
    """Token ids."""


class CreateStateRequest(RequestBody):
    prompt: str | list[int] = ""
    """A string or token ids to read into the new state."""


class FeedStateRequest(RequestBody):
    prompt: str | list[int]
    """A string or token ids to read."""


class CropStateRequest(RequestBody):
    tokens: Annotated[int, Field(ge=0, le=INT32)]
    """Number of most recent tokens to remove."""


Body = TypeVar("Body", bound=RequestBody)
# The forms of a prompt. pydantic has them in the locations of errors.
STRING, TOKENS, STRINGS, TOKEN_LISTS = FORMS = ("string", "token ids", "strings", "lists of token ids")


def form_of(value: Any) -> str | None:
    if isinstance(value, list) and value:
        return {int: TOKENS, str: STRINGS, list: TOKEN_LISTS}.get(type(value[0]))
    return STRING if isinstance(value, str) else None


def one_of(expected: str, forms: dict[str, Any], list_form: str | None = None) -> Any:
    """Return the union of these forms of a value, which errors call `expected`. All lists are of `list_form`, or of the
    form that their first element has."""

    def form(value: Any) -> str | None:
        return list_form if list_form is not None and isinstance(value, list) else form_of(value)

    members = tuple(Annotated[type_, Tag(form)] for form, type_ in forms.items())
    message = f"Input should be {expected}"
    return Annotated[
        Union[members],  # noqa: UP007
        Discriminator(form, custom_error_type="form", custom_error_message=message),
    ]


class RequestModels:
    """The request models of one server, by the names of the handlers. Its limits are constraints of the fields."""

    def __init__(self, name: str, vocabulary: text.Vocabulary, limits: Limits) -> None:
        def list_of(item: Any, longest: int, shortest: int = 0) -> Any:
            return Annotated[list[item], Field(min_length=shortest, max_length=longest, fail_fast=True)]

        token_id = Annotated[int, Field(ge=0, le=vocabulary.size - 1)]
        tokens, some_tokens = (list_of(token_id, limits.prompt_tokens, shortest) for shortest in (0, 1))
        longest = longest_token(vocabulary)
        # A string that is too long is refused before it is encoded, which takes time and memory.
        string = Annotated[str, Field(max_length=None if longest is None else limits.prompt_tokens * longest)]
        prompt = one_of("a string or a list of token ids", {STRING: string, TOKENS: tokens}, TOKENS)
        prompts = one_of(
            "a string, a list of token ids, a list of strings or a list of lists of token ids",
            {
                STRING: string,
                TOKENS: some_tokens,
                STRINGS: list_of(string, limits.sequences),
                TOKEN_LISTS: list_of(some_tokens, limits.sequences),
            },
        )
        stop_string = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
        stop = one_of(
            "a string or a list of strings", {STRING: stop_string, STRINGS: list_of(stop_string, MAX_STOPS)}, STRINGS
        )
        model = Literal[name] | None  # type: ignore[valid-type]
        max_tokens = Annotated[int, Field(ge=0, le=limits.completion_tokens)] | None
        sequences = Annotated[int, Field(ge=1, le=limits.sequences)] | None
        self.complete = constrain(
            CompletionRequest,
            model=model,
            prompt=prompts | None,
            max_tokens=max_tokens,
            max_completion_tokens=max_tokens,
            n=sequences,
            best_of=sequences,
            stop=stop | None,
        )
        self.tokenize = constrain(TokenizeRequest, model=model, prompt=prompt)
        self.detokenize = constrain(DetokenizeRequest, model=model, tokens=tokens)
        self.create_state = constrain(CreateStateRequest, prompt=prompt)
        self.feed_state = constrain(FeedStateRequest, prompt=prompt)
        self.crop_state = CropStateRequest


def constrain(base: type[Body], **types: Any) -> type[Body]:
    """Return a subclass with other types of some fields; defaults and descriptions stay."""
    fields: dict[str, Any] = {}
    for name, type_ in types.items():
        field = base.model_fields[name]
        fields[name] = (type_, Field(field.default, description=field.description))
    return create_model(base.__name__, __base__=base, **fields)


def longest_token(vocabulary: text.Vocabulary) -> int | None:
    """Return the most characters of a text that one token can stand for; None without a limit, as with words, which
    any number of spaces may separate."""
    if isinstance(vocabulary, text.BPE):
        return max(int(vocabulary.byte_lengths.max()), 1)
    return 1 if isinstance(vocabulary, text.Bytes | text.Characters) else None


def validate(model: type[Body], body: Any) -> Body:
    """Return the request in a JSON body, or raise a `RequestError` about its first mistake."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise request_error(error.errors(include_url=False, include_context=False)[0]) from None


def request_error(error: ErrorDetails) -> RequestError:
    location, given = [part for part in error["loc"] if part not in (*FORMS, "[key]")], error["input"]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if error["type"] == "literal_error" and field == "model" and isinstance(given, str):
        return RequestError(404, f"there is no model {shown(given)}; the model of this server is {error['msg'][16:]}")
    if error["type"] == "model_type":
        return RequestError(400, f"{f'{field!r}' if field else 'the request body'} must be a JSON object")
    if error["type"] == "missing":
        return RequestError(400, f"the field '{field}' is missing")
    if error["type"] == "string_unicode":
        where = f"'{field}'" if field else "a field name"
        return RequestError(400, f"{where} is not valid Unicode: it has a lone surrogate")
    message = re.sub("^[A-Z][a-z]+ should ", "must ", error["msg"])
    message, length, _ = message.partition(" after validation")
    if not message.startswith("must"):
        return RequestError(400, message)
    short = length or error["type"].startswith("string_too")
    return RequestError(400, f"'{printable(field)}' {message}" + ("" if short else f", not {shown(given)}"))


def invalid(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_request", message)


def shown(value: Any) -> str:
    """Return a short form of a value; only the type of lists and objects, which may be large."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:50]


def printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def encode_prompts(request: CompletionRequest, vocabulary: text.Vocabulary, limits: Limits) -> list[list[int]]:
    """Return the token ids of each prompt. Check what depends on several fields, or on the vocabulary."""
    if len(request.prompts) * request.generated > limits.sequences:
        raise RequestError(
            400,
            f"{len(request.prompts)} prompts times {request.generated} sequences are more than the {limits.sequences} "
            "sequences allowed per request; send several requests",
        )
    if wrong := [token for token in request.logit_bias or () if int(token) >= vocabulary.size]:
        raise RequestError(400, f"'logit_bias' has token id {wrong[0]}; the largest is {vocabulary.size - 1}")
    prompts = [encode_prompt(prompt, vocabulary, limits) for prompt in request.prompts]
    size, limit = request.output_size(prompts, limits), min(limits.output, limits.total_output)
    if size > limit:
        raise RequestError(
            400,
            f"the output may have a size of {size}; at most {limit} is allowed. The size is sequences times tokens "
            "(with echo, of the prompt too), with logprobs times 2 + logprobs; request less at a time",
        )
    return prompts


def encode_prompt(prompt: str | list[int], vocabulary: text.Vocabulary, limits: Limits) -> list[int]:
    """Return the token ids of a validated prompt."""
    if not isinstance(prompt, str):
        return prompt
    try:
        ids: list[int] = encode(vocabulary, prompt).tolist()
    except UserError as error:
        raise RequestError(400, str(error)) from None
    if len(ids) > limits.prompt_tokens:
        raise RequestError(400, f"the prompt has {len(ids)} tokens; at most {limits.prompt_tokens} are allowed")
    return ids
