"""What a request may be: every field by name, type and range. Anything else is refused with what would be right.

`description.py` tells the same to programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stairwell import text
from stairwell.errors import UserError
from stairwell.generate import PENALTY, Choice
from stairwell.stream import encode

STOPS, STOP_LENGTH = 16, 200  # stop strings, characters of each
LOGPROBS = 5  # the likeliest tokens, beside each
HOTTEST = 100.0
ANY_NUMBER = 1 << 62
# Below this, single precision cannot tell a temperature or a share of the probability from 0.
NEXT_TO_NOTHING = 1e-6


class Refused(Exception):
    """The client's mistake: a status and a line that says what would be right."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """What clients may ask for."""

    prompt: int = 16_384  # tokens
    tokens: int = 4_096  # to write
    texts: int = 32  # prompts times n
    told: int = 1 << 19  # size of the answers in the making, of all clients; see `Completion.told`
    answer: int = 1 << 18  # size of one answer
    seconds: float = 300.0  # of one request
    body: int = 1_000_000  # bytes
    clients: int = 256  # at a time
    states: int = 256  # kept at a time
    states_bytes: int = 1_000_000_000  # of all of them
    state_seconds: float = 3_600.0  # a state that nobody asked for is forgotten
    state_bytes: int = 64_000_000  # of a state that is restored


# Fields of OpenAI's that mean nothing here unless they ask for nothing.
NEUTRAL: dict[str, Any] = {"suffix": "", "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}}
KNOWN = {
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "n", "stream",
    "stream_options", "logprobs", "echo", "stop", "seed", "user", "state", *NEUTRAL,
}  # fmt: skip


@dataclass(frozen=True)
class Completion:
    prompts: list[list[int]]
    tokens: int
    choice: Choice
    n: int
    stream: bool
    usage: bool  # whether a stream ends with how much was used
    logprobs: int | None
    echo: bool
    stop: tuple[str, ...]
    seed: int | None
    state: str | None

    @property
    def told(self) -> int:
        """The most that the answer may come to: its tokens, each with `logprobs` k as large as 2 + k without."""
        each = 1 if self.logprobs is None else 2 + self.logprobs
        return each * self.n * sum(self.tokens + (len(prompt) if self.echo else 0) for prompt in self.prompts)


def completion(body: Any, vocabulary: text.Vocabulary, model: str, limits: Limits) -> Completion:
    """A request for /v1/completions, checked."""
    fields = as_object(body, KNOWN)
    for name, nothing in NEUTRAL.items():
        given = fields.get(name)
        if given is not None and (given != nothing or isinstance(given, bool)):
            raise Refused(400, f"'{name}' is not supported; leave it out")
    check_model(fields, model)
    word(fields, "user")
    n = number(fields, "n", 1, 1, limits.texts, int)
    state = word(fields, "state")
    given = several("" if fields.get("prompt") is None else fields["prompt"])
    if len(given) * n > limits.texts:
        raise Refused(400, f"{len(given)} prompts times n={n} are more than {limits.texts} texts")
    prompts = [tokens_of(one, vocabulary, limits) for one in given]
    if state is None and not all(prompts):
        raise Refused(400, "a prompt is empty: nothing is known before the first token")
    options = fields.get("stream_options")
    if options is not None and not (isinstance(options, dict) and options.keys() <= {"include_usage"}):
        raise Refused(400, "'stream_options' may hold include_usage alone")
    asked = Completion(
        prompts=prompts,
        tokens=number(fields, "max_tokens", min(16, limits.tokens), 0, limits.tokens, int),
        choice=choice(fields),
        n=n,
        stream=flag(fields, "stream"),
        usage=flag(options or {}, "include_usage"),
        logprobs=number(fields, "logprobs", None, 0, LOGPROBS, int),
        echo=flag(fields, "echo"),
        stop=stops(fields.get("stop")),
        seed=number(fields, "seed", None, -(2**63), 2**63 - 1, int),
        state=state,
    )
    if asked.told > (most := min(limits.answer, limits.told)):
        raise Refused(
            400,
            f"an answer of a size of up to {asked.told} is too long: at most {most}. The size is prompts times n times "
            "tokens (with echo, the prompt's too), with logprobs times 2 + logprobs; ask for less at a time",
        )
    return asked


def choice(fields: Mapping[str, Any]) -> Choice:
    temperature = number(fields, "temperature", 1.0, 0, HOTTEST, float)
    top_p = number(fields, "top_p", None, 0, 1, float)
    try:
        return Choice(
            temperature=temperature if temperature >= NEXT_TO_NOTHING else 0.0,
            top_k=number(fields, "top_k", None, 1, 2**31 - 1, int),
            top_p=max(top_p, NEXT_TO_NOTHING) if top_p else top_p,
            repetition_penalty=number(fields, "repetition_penalty", 1.0, *PENALTY, float),
        )
    except UserError as error:
        raise Refused(400, str(error)) from None


def several(prompt: Any) -> list[Any]:
    """One prompt, or a list of them: text or tokens each."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(map(is_whole, prompt))):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        return prompt
    raise Refused(400, "'prompt' must be a text, a list of tokens, or a list of texts or of lists of tokens")


def tokens_of(prompt: Any, vocabulary: text.Vocabulary, limits: Limits) -> list[int]:
    if isinstance(prompt, str):
        # A long text is refused before time and memory go into its tokens.
        check_length(-(-len(prompt) // longest_token(vocabulary)), limits)
        try:
            encoded = encode(vocabulary, prompt)
        except UserError as error:
            raise Refused(400, str(error)) from None
        check_length(len(encoded), limits)
        return list(encoded.tolist())
    if not isinstance(prompt, list) or not all(map(is_whole, prompt)):
        raise Refused(400, "a prompt is a text or a list of tokens")
    check_length(len(prompt), limits)
    if wrong := [i for i in prompt if not 0 <= i < vocabulary.size]:
        raise Refused(400, f"token {wrong[0]} is out of range: the model knows 0..{vocabulary.size - 1}")
    return prompt


def check_length(tokens: int, limits: Limits) -> None:
    if tokens > limits.prompt:
        raise Refused(400, f"a prompt of {tokens} tokens or more is too long: at most {limits.prompt}")


def longest_token(vocabulary: text.Vocabulary) -> int:
    """How many characters of a text one token stands for at most; between words there may be any number of spaces."""
    if isinstance(vocabulary, text.BPE):
        return max(int(vocabulary.lengths.max()), 1)
    return 1 if isinstance(vocabulary, text.Bytes | text.Characters) else ANY_NUMBER


def stops(given: Any) -> tuple[str, ...]:
    found = [] if given is None else [given] if isinstance(given, str) else given
    if (
        not isinstance(found, list)
        or len(found) > STOPS
        or not all(isinstance(one, str) and 0 < len(one) <= STOP_LENGTH for one in found)
    ):
        raise Refused(400, f"'stop' must be a text or a list of up to {STOPS}, each of 1 to {STOP_LENGTH} characters")
    return tuple(found)


def as_object(body: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Refused(400, "the request must be a JSON object")
    if unknown := sorted(set(body) - known):
        raise Refused(400, f"unknown field '{unknown[0]:.50}'; there are: {', '.join(sorted(known))}")
    return body


def number(fields: Mapping[str, Any], name: str, usual: Any, least: float, most: float, kind: type) -> Any:
    value = fields.get(name)
    if value is None:
        return usual
    right = is_whole(value) or (kind is float and isinstance(value, float))
    if not right or not least <= value <= most:
        what = "a whole number" if kind is int else "a number"
        raise Refused(400, f"'{name}' must be {what} from {least} to {most}, not {shown(value)}")
    return kind(value)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"'{name}' must be true or false, not {shown(value)}")
    return bool(value)


def word(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"'{name}' must be a text, not {shown(value)}")
    return value


def check_model(fields: Mapping[str, Any], model: str) -> None:
    if word(fields, "model") not in (None, model):
        raise Refused(404, f"there is no model {shown(fields['model'])}; there is: {model}")


def shown(value: Any) -> str:
    """What was given, short; of lists and objects, which may be deep, only what they are."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:50]


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
