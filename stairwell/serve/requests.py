"""Request bodies as pydantic models. They validate requests, and `openapi.py` publishes their JSON schemas.

The module's models have the constraints that hold on every server. `RequestModels` adds those of one server: the name
of its model, its vocabulary and its limits.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from stairwell import text
from stairwell.decode.sampling import REPETITION_PENALTY_RANGE, Sampling
from stairwell.errors import UserError
from stairwell.serve.chat_template import ChatTemplate, ChatTurn
from stairwell.serve.limits import Limits, RequestError
from stairwell.serve.logits import LogitsProcessor
from stairwell.stream import encode

MAX_STOPS, MAX_STOP_LENGTH = 16, 200  # stop strings, characters per stop string
MAX_LOGPROBS, MAX_TOP_LOGPROBS = 5, 20  # alternatives per token, of completions and of chat completions
MAX_LOGIT_BIAS = 300  # entries
MAX_TEMPERATURE = 100.0
DEFAULT_TOKENS = 16  # generated per sequence, as in the OpenAI API
DEFAULT_CHAT_TOKENS = 256  # of a chat completion; the OpenAI API has no limit there, but these models may never stop
MAX_MESSAGES, MAX_PARTS = 1000, 100  # per chat, and parts of a text per message
# Single precision cannot distinguish a smaller temperature or probability from 0.
SMALLEST = 1e-6
INT32, INT64 = 2**31 - 1, 2**63 - 1

Penalty = Annotated[float, Field(ge=-2, le=2)]
Nothing = Annotated[list[Any], Field(max_length=0)] | None


class RequestBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def reject_unknown_fields(cls, body: Any) -> Any:
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


class GenerationRequest(RequestBody):
    """The fields that completions and chat completions share."""

    model: str | None = None
    """Name of the model."""
    state: Annotated[str, Field(min_length=1)] | None = None
    """Id of the state to continue from. The stored state does not change."""
    max_tokens: int | None = None
    """Generated tokens per sequence."""
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
    stream: bool | None = None
    """Whether to send server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of a stream."""
    stop: str | list[str] | None = None
    """Strings at which generation ends."""
    seed: Annotated[int, Field(ge=-INT64 - 1, le=INT64)] | None = None
    """Seed of the random generators."""
    user: Any = None
    """Ignored."""
    store: Any = None
    """Ignored: the server stores no completions."""
    metadata: Any = None
    """Ignored."""
    service_tier: Any = None
    """Ignored."""
    safety_identifier: Any = None
    """Ignored."""
    prompt_cache_key: Any = None
    """Ignored."""
    prompt_cache_retention: Any = None
    """Ignored."""

    default_tokens: ClassVar[int] = DEFAULT_TOKENS

    @model_validator(mode="before")
    @classmethod
    def limit_logit_bias(cls, body: Any) -> Any:
        # Before pydantic validates, and reports, every entry.
        if isinstance(body, dict) and isinstance(bias := body.get("logit_bias"), dict) and len(bias) > MAX_LOGIT_BIAS:
            raise invalid(f"'logit_bias' has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are allowed")
        return body

    @model_validator(mode="after")
    def check_token_limits(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise invalid("'max_tokens' and 'max_completion_tokens' differ; give one of them")
        return self

    @property
    def returned(self) -> int:
        """Sequences returned per prompt."""
        return 1 if self.n is None else self.n

    @property
    def generated(self) -> int:
        """Sequences generated per prompt."""
        return self.returned

    @property
    def echoes(self) -> bool:
        """Whether the prompt is part of the response."""
        return False

    @property
    def alternatives(self) -> int | None:
        """Log-probabilities to return per token, besides that of the token itself; None for none at all."""
        return None

    @property
    def logprob_size(self) -> int:
        """Size of a token with its log-probabilities in the response, in tokens."""
        return 1 if self.alternatives is None else 2 + self.alternatives

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def token_limit(self, limits: Limits) -> int:
        """Return the number of tokens to generate per sequence."""
        given = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return min(self.default_tokens, limits.completion_tokens) if given is None else given

    def output_size(self, prompts: list[list[int]], limits: Limits) -> int:
        """Return the largest possible size of the response in tokens."""
        tokens = sum(self.token_limit(limits) + (len(prompt) if self.echoes else 0) for prompt in prompts)
        return self.logprob_size * self.generated * tokens

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


class CompletionRequest(GenerationRequest):
    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["prompt"]}, {"required": ["state"]}]})

    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    """A string, token ids, or a list of either. Required, and not empty, without a state."""
    best_of: int | None = None
    """Sequences generated per prompt; the n with the highest mean log-probability are returned."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Return log-probabilities, of this many alternatives per token."""
    echo: bool | None = None
    """Whether to return the prompt before the generated text; with `max_tokens` 0 the prompt is only scored."""
    suffix: Literal[""] | None = None
    """Not supported."""

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        if self.state is None and not all(self.prompts):
            raise invalid("'prompt' is missing or empty: give a prompt of at least one token, or a 'state'")
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
    def generated(self) -> int:
        return self.returned if self.best_of is None else self.best_of

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class TextPart(RequestBody):
    type: Literal["text"]
    """Only text is supported."""
    text: str
    """The text."""


class Message(RequestBody):
    role: Literal["system", "developer", "user", "assistant"]
    """Who wrote the message. The plain template ignores it."""
    content: str | list[TextPart]
    """The text, or a list of parts of it."""
    name: Any = None
    """Ignored."""
    refusal: Any = None
    """Ignored."""
    annotations: Any = None
    """Ignored."""
    audio: None = None
    """Not supported."""
    tool_calls: Nothing = None
    """Not supported."""
    function_call: None = None
    """Not supported."""

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ResponseFormat(RequestBody):
    type: Literal["text"]
    """Only text is supported."""


class ChatRequest(GenerationRequest):
    messages: list[Message]
    """The messages so far. The chat template makes a prompt of them."""
    logprobs: bool | None = None
    """Whether to return log-probabilities."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Number of alternatives per token whose log-probabilities are returned."""
    response_format: ResponseFormat | None = None
    """Only text is supported."""
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    """Only text is supported."""
    tools: Nothing = None
    """Not supported."""
    functions: Nothing = None
    """Not supported."""
    tool_choice: Literal["none", "auto"] | None = None
    """Ignored."""
    function_call: Literal["none", "auto"] | None = None
    """Ignored."""
    parallel_tool_calls: Any = None
    """Ignored."""
    prediction: Any = None
    """Ignored."""
    reasoning_effort: Any = None
    """Ignored."""
    verbosity: Any = None
    """Ignored."""

    default_tokens: ClassVar[int] = DEFAULT_CHAT_TOKENS

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("'top_logprobs' requires 'logprobs': true")
        return self

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def logprob_size(self) -> int:
        # Every log-probability has the bytes of its token too.
        return 1 if self.alternatives is None else 4 + 2 * self.alternatives


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
# The forms of a prompt or of a message. pydantic has them in the locations of errors.
STRING, TOKENS, STRINGS, TOKEN_LISTS, PARTS = FORMS = (
    "string", "token ids", "strings", "lists of token ids", "text parts",
)  # fmt: skip


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
        longest = vocabulary.max_token_length
        # A string that is too long is rejected before it is encoded, which takes time and memory.
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
        content = one_of(
            "a string or a list of text parts",
            {STRING: string, PARTS: list_of(constrain(TextPart, text=string), MAX_PARTS)},
            PARTS,
        )
        # A chat completion has one prompt, which is never scored alone: at least one token is generated.
        some_tokens_limit = Annotated[int, Field(ge=1, le=limits.completion_tokens)] | None
        self.chat = constrain(
            ChatRequest,
            model=model,
            messages=list_of(constrain(Message, content=content), MAX_MESSAGES, 1),
            max_tokens=some_tokens_limit,
            max_completion_tokens=some_tokens_limit,
            n=sequences,
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
    if error["type"] == "none_required" or "at most 0 items" in error["msg"]:
        return RequestError(400, f"'{printable(field)}' is not supported; leave it out")
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
    check_before_encoding(request, len(request.prompts), vocabulary, limits)
    prompts = [encode_prompt(prompt, vocabulary, limits) for prompt in request.prompts]
    check_output_size(request, prompts, limits)
    return prompts


def encode_messages(
    request: ChatRequest, template: ChatTemplate, vocabulary: text.Vocabulary, limits: Limits
) -> list[int]:
    """Return the token ids of the prompt that the template makes of the messages."""
    check_before_encoding(request, 1, vocabulary, limits)
    prompt = template([ChatTurn(message.role, message.text) for message in request.messages])
    if request.state is None and not prompt:
        raise RequestError(400, "the messages have no text: give at least one token, or a 'state'")
    longest = vocabulary.max_token_length
    if longest is not None and len(prompt) > limits.prompt_tokens * longest:
        raise RequestError(
            400, f"the messages have {len(prompt)} characters; at most {limits.prompt_tokens * longest} are allowed"
        )
    ids = encode_prompt(prompt, vocabulary, limits)
    check_output_size(request, [ids], limits)
    return ids


def check_before_encoding(
    request: GenerationRequest, prompts: int, vocabulary: text.Vocabulary, limits: Limits
) -> None:
    if prompts * request.generated > limits.sequences:
        raise RequestError(
            400,
            f"{prompts} prompts times {request.generated} sequences are more than the {limits.sequences} "
            "sequences allowed per request; send several requests",
        )
    if wrong := [token for token in request.logit_bias or () if int(token) >= vocabulary.size]:
        raise RequestError(400, f"'logit_bias' has token id {wrong[0]}; the largest is {vocabulary.size - 1}")


def check_output_size(request: GenerationRequest, prompts: list[list[int]], limits: Limits) -> None:
    size, limit = request.output_size(prompts, limits), min(limits.output, limits.total_output)
    if size > limit:
        raise RequestError(
            400,
            f"the output may have a size of {size}; at most {limit} is allowed. The size is sequences times tokens "
            "(with echo, of the prompt too), with logprobs times 2 + logprobs, in a chat times 4 + 2 top_logprobs; "
            "request less at a time",
        )


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
