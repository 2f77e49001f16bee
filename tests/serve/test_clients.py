"""The server with the clients that programs use: openai, litellm and LangChain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from stairwell.decode import Sampling
from stairwell.generate import generate_text
from tests.serve.conftest import TOKEN, LocalServer, run_server

PROMPT = "the quick"
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def local(tiny_run: Path) -> Iterator[LocalServer]:
    from stairwell.serve.limits import Limits
    from stairwell.serve.run_server import application

    with run_server(application(tiny_run, "127.0.0.1", TOKEN, "cpu", 16, 64, Limits())) as server:
        yield server


@pytest.fixture(scope="module")
def expected(tiny_run: Path) -> str:
    return "".join(generate_text(tiny_run, PROMPT, 20, Sampling(temperature=0), device="cpu"))


def address(local: LocalServer) -> str:
    return f"http://127.0.0.1:{local.port}/v1"


def test_openai_chats_and_streams(local: LocalServer, expected: str) -> None:
    client = openai.OpenAI(base_url=address(local), api_key=TOKEN, max_retries=0)
    request: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**request)
    message = whole.choices[0].message
    assert message.content == expected and message.role == "assistant"
    assert whole.usage is not None and whole.usage.completion_tokens == 20
    stream = client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    parts = list(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == expected
    assert parts[-1].usage is not None and parts[-1].usage.total_tokens == 20 + len(PROMPT)
    scored = client.chat.completions.create(**request, logprobs=True, top_logprobs=3).choices[0].logprobs
    assert scored is not None and scored.content is not None
    assert b"".join(bytes(token.bytes or ()) for token in scored.content).decode(errors="replace") == expected
    assert all(len(token.top_logprobs) == 3 for token in scored.content)
    # The answer is a message of the next request as it is.
    again = client.chat.completions.create(**{**request, "messages": [*MESSAGES, message, *MESSAGES]})
    assert again.usage is not None and again.usage.prompt_tokens == 2 * len(PROMPT) + len(expected.encode()) + 2


def test_openai_accepts_every_sampling_option(local: LocalServer) -> None:
    client = openai.OpenAI(base_url=address(local), api_key=TOKEN, max_retries=0)
    options: dict[str, Any] = {
        "temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.5, "seed": 1, "n": 2,
        "logit_bias": {"101": 5}, "stop": ["\n"], "user": "me", "extra_body": {"min_p": 0.05, "top_k": 50},
    }  # fmt: skip
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=9, store=False, metadata={"a": "b"}, service_tier="auto", **options
    )
    completion = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=9, best_of=4, **options)
    assert len(chat.choices) == len(completion.choices) == 2


def test_openai_raises_its_own_exceptions_for_chats(local: LocalServer) -> None:
    client = openai.OpenAI(base_url=address(local), api_key=TOKEN, max_retries=0)
    with pytest.raises(openai.BadRequestError, match="'tools' is not supported"):
        tool: Any = {"type": "function", "function": {"name": "f"}}
        client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[tool])
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.chat.completions.create(model="other", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=address(local), api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(model="tiny", messages=MESSAGES)


def test_litellm_completes_chats_and_streams(local: LocalServer, expected: str) -> None:
    litellm = pytest.importorskip("litellm", reason="pip install litellm to run this")
    server = {"api_base": address(local), "api_key": TOKEN, "num_retries": 0}
    options = {"max_tokens": 20, "temperature": 0}
    chat = litellm.completion("openai/tiny", MESSAGES, **options, **server)
    assert chat.choices[0].message.content == expected and chat.usage.completion_tokens == 20
    stream = litellm.completion("openai/tiny", MESSAGES, stream=True, **options, **server)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == expected
    text = litellm.text_completion(model="text-completion-openai/tiny", prompt=PROMPT, **options, **server)
    assert text.choices[0].text == expected
    stream = litellm.text_completion(
        model="text-completion-openai/tiny", prompt=PROMPT, stream=True, **options, **server
    )
    assert "".join(part.choices[0].text or "" for part in stream) == expected


def test_langchain_completes_chats_and_streams(local: LocalServer, expected: str) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="pip install langchain-openai to run this")
    server = {"base_url": address(local), "api_key": TOKEN, "model": "tiny", "temperature": 0, "max_tokens": 20}
    chat = langchain.ChatOpenAI(max_retries=0, **server)
    answer = chat.invoke(PROMPT)
    assert answer.content == expected and answer.usage_metadata["output_tokens"] == 20
    assert "".join(part.content for part in chat.stream(PROMPT)) == expected
    assert [each.content for each in chat.batch([PROMPT, PROMPT])] == [expected] * 2
    again = chat.invoke([("human", PROMPT), answer, ("human", PROMPT)])
    assert again.usage_metadata["input_tokens"] == 2 * len(PROMPT) + len(expected.encode()) + 2
    completion = langchain.OpenAI(max_retries=0, **server)
    assert completion.invoke(PROMPT) == expected
    assert "".join(completion.stream(PROMPT)) == expected
