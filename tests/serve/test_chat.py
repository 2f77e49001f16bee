"""`/v1/chat/completions`: a completion of the prompt that the chat template makes, within the same limits."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from stairwell.errors import UserError
from stairwell.serve.chat_template import JinjaTemplate, read_chat_template
from stairwell.serve.limits import Limits
from stairwell.text import Bytes
from tests.serve.test_app import MODEL, VOCABULARY, ask, expected, make_app, make_model, with_client

pytestmark = pytest.mark.quick

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ROLES = """{% for message in messages %}
{{ message.role[0] }}{{ message.content }}
{% endfor %}{% if add_generation_prompt %}a{% endif %}"""


def user(*texts: str, **options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts], **options}


def post(*requests: tuple[str, dict[str, Any]], app: Any = None) -> list[Any]:
    async def use(client: httpx.AsyncClient, app: Any) -> list[Any]:
        answers = [await client.post(path, json=body) for path, body in requests]
        assert [answer.status_code for answer in answers] == [200] * len(answers), [answer.text for answer in answers]
        return [answer.json() for answer in answers]

    return with_client(use, app)


def text_of(answer: Any, index: int = 0) -> str:
    assert answer["choices"][index]["message"]["role"] == "assistant"
    return answer["choices"][index]["message"]["content"]


def test_one_message_is_completed_like_a_prompt() -> None:
    options = {"max_tokens": 20, "temperature": 0.9, "seed": 4, "presence_penalty": 0.3, "logit_bias": {"2": 1}}
    chat, completion = post((CHAT, user("abc", **options)), (COMPLETIONS, {"prompt": "abc", **options}))
    assert text_of(chat) == completion["choices"][0]["text"]
    assert chat["object"] == "chat.completion" and chat["id"].startswith("chatcmpl-")
    assert chat["usage"] == completion["usage"] and chat["choices"][0]["finish_reason"] == "length"


def test_the_plain_template_joins_the_texts_with_newlines() -> None:
    messages = [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        {"role": "assistant", "content": "efg", "refusal": None, "tool_calls": None, "annotations": []},
    ]
    (answer,) = post((CHAT, {"messages": messages, "max_completion_tokens": 12, "temperature": 0}))
    assert text_of(answer) == expected("ab\ncd\nefg", 12)
    assert answer["usage"]["prompt_tokens"] == len("ab\ncd\nefg")


def test_a_template_in_a_file_uses_the_roles(tmp_path: Path) -> None:
    (tmp_path / "template").write_text(ROLES)
    template = read_chat_template(tmp_path / "template")
    app = make_app(make_model(inputs=256), Bytes(), chat_template=template)
    body = {"max_tokens": 5, "temperature": 0}
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    chat, completion = post((CHAT, {"messages": messages, **body}), (COMPLETIONS, {"prompt": "sx\nuy\na", **body}),
                            app=app)  # fmt: skip
    assert text_of(chat) == completion["choices"][0]["text"]


def test_a_template_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("{% for %}")
    (tmp_path / "binary").write_bytes(b"\xff")
    for name in ("broken", "binary"):
        with pytest.raises(UserError, match=f"--chat-template: .*{name} is not a Jinja template"):
            read_chat_template(tmp_path / name)
    with pytest.raises(UserError, match=r"--chat-template: cannot read .*nowhere"):
        read_chat_template(tmp_path / "nowhere")


@pytest.mark.parametrize("source", ["{{ raise_exception('no system message') }}", "{{ messages[7].content }}"])
def test_messages_that_a_template_rejects_get_400(source: str) -> None:
    app = make_app(MODEL, VOCABULARY, chat_template=JinjaTemplate(source))
    answer = ask(CHAT, user("abc"), app=app)
    assert answer.status_code == 400 and "the chat template cannot use these messages" in answer.text


def test_a_template_gives_messages_no_access_to_anything() -> None:
    """A message is a value, never a template."""
    app = make_app(make_model(inputs=256), Bytes(), chat_template=JinjaTemplate("{{ messages[0].content }}"))
    (answer,) = post((CHAT, user("{{ 7 * 7 }}", max_tokens=1)), app=app)
    assert answer["usage"]["prompt_tokens"] == len("{{ 7 * 7 }}")
    unsafe = make_app(MODEL, VOCABULARY, chat_template=JinjaTemplate("{{ messages.__class__.__mro__ }}"))
    assert ask(CHAT, user("a"), app=unsafe).status_code == 400


def test_a_streamed_chat_equals_an_unstreamed_one() -> None:
    body = user("abc", max_tokens=12, temperature=1, seed=3, n=2, logprobs=True, top_logprobs=2)

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        full = (await client.post(CHAT, json=body)).json()
        extra = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
        async with client.stream("POST", CHAT, json={**body, **extra}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert {event["id"] for event in events} == {events[0]["id"]}
        for index in (0, 1):
            parts = [part for event in events for part in event["choices"] if part["index"] == index]
            assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
            assert "".join(part["delta"].get("content", "") for part in parts) == text_of(full, index)
            assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
            scores = [token for part in parts if part["logprobs"] for token in part["logprobs"]["content"]]
            for score, whole in zip(scores, full["choices"][index]["logprobs"]["content"], strict=True):
                assert score["token"] == whole["token"] and len(score["top_logprobs"]) == 2
                assert score["logprob"] == pytest.approx(whole["logprob"], abs=1e-5)
        assert events[-1]["choices"] == [] and events[-1]["usage"] == full["usage"]

    with_client(use)


def test_log_probabilities_are_those_of_a_completion() -> None:
    body = {"max_tokens": 6, "temperature": 0}
    chat, plain, completion = post(
        (CHAT, user("abc", logprobs=True, top_logprobs=2, **body)),
        (CHAT, user("abc", logprobs=True, **body)),
        (COMPLETIONS, {"prompt": "abc", "logprobs": 2, **body}),
    )
    expected_scores = completion["choices"][0]["logprobs"]
    tokens = chat["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens] == expected_scores["tokens"]
    assert [token["logprob"] for token in tokens] == pytest.approx(expected_scores["token_logprobs"], abs=1e-5)
    for token, top in zip(tokens, expected_scores["top_logprobs"]):
        assert {each["token"]: each["logprob"] for each in token["top_logprobs"]} == pytest.approx(top, abs=1e-5)
        assert bytes(token["bytes"]).decode() == token["token"]
    assert [token["top_logprobs"] for token in plain["choices"][0]["logprobs"]["content"]] == [[]] * 6


def test_a_chat_continues_from_a_state() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        state = (await client.post("/v1/states", json={"prompt": "abc"})).json()["id"]
        answer = await client.post(CHAT, json=user("de", state=state, max_tokens=9, temperature=0))
        assert text_of(answer.json()) == expected("abcde", 9)

    with_client(use)


def test_without_a_limit_a_chat_generates_256_tokens() -> None:
    whole, short = (ask(CHAT, user("abc"), limits=Limits(completion_tokens=limit)).json() for limit in (1000, 30))
    assert whole["usage"]["completion_tokens"] == 256 and short["usage"]["completion_tokens"] == 30


def test_fields_that_change_nothing_are_ignored() -> None:
    ignored = {
        "user": "someone", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True,
        "tool_choice": "none", "tools": [], "functions": None, "reasoning_effort": "low", "verbosity": "low",
        "prediction": {"type": "content", "content": "x"}, "modalities": ["text"], "response_format": {"type": "text"},
    }  # fmt: skip
    body = user("abc", max_tokens=9, temperature=0)
    body["messages"][0]["name"] = "someone"
    (answer,) = post((CHAT, {**body, **ignored}))
    assert text_of(answer) == expected("abc", 9)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "the field 'messages' is missing"),
        ({"messages": []}, 400, "'messages' must have at least 1 item"),
        ({"messages": "abc"}, 400, "'messages' must be a valid list, not 'abc'"),
        ({"messages": ["abc"]}, 400, "'messages[0]' must be a JSON object"),
        (user(""), 400, "the messages have no text"),
        (user("xyz"), 400, "not in the training text"),
        (user("a" * 101), 400, "'messages[0].content' must have at most 100 characters"),
        (user("a" * 60, "a" * 60), 400, "the messages have 121 characters; at most 100 are allowed"),
        ({"messages": [{"role": "user", "content": "a"}] * 1001}, 400, "'messages' must have at most 1000 items"),
        ({"messages": [{"role": "user"}]}, 400, "the field 'messages[0].content' is missing"),
        ({"messages": [{"content": "a"}]}, 400, "the field 'messages[0].role' is missing"),
        ({"messages": [{"role": "tool", "content": "a"}]}, 400, "'messages[0].role' must be 'system', 'developer'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400,
         "unknown field 'image_url'; known fields: text, type"),
        ({"messages": [{"role": "user", "content": [{"type": "audio", "text": ""}]}]}, 400,
         "'messages[0].content[0].type' must be 'text', not 'audio'"),
        (user("a", tools=[{"type": "function"}]), 400, "'tools' is not supported; leave it out"),
        (user("a", tool_choice="required"), 400, "'tool_choice' must be 'none' or 'auto', not 'required'"),
        (user("a", response_format={"type": "json_object"}), 400, "'response_format.type' must be 'text'"),
        (user("a", top_logprobs=2), 400, "'top_logprobs' requires 'logprobs': true"),
        (user("a", logprobs=True, top_logprobs=21), 400, "'top_logprobs' must be less than or equal to 20, not 21"),
        (user("a", max_tokens=0), 400, "'max_tokens' must be greater than or equal to 1, not 0"),
        (user("a", max_tokens=51), 400, "'max_tokens' must be less than or equal to 50, not 51"),
        (user("a", max_tokens=1, max_completion_tokens=2), 400, "give one of them"),
        (user("a", n=33), 400, "'n' must be less than or equal to 32, not 33"),
        (user("a", n=32, logprobs=True, top_logprobs=20, max_tokens=50), 400, "the output may have a size of 70400"),
        (user("a", logit_bias={"8": 1}), 400, "'logit_bias' has token id 8; the largest is 7"),
        (user("a", model="gpt"), 404, "there is no model 'gpt'; the model of this server is 'stairwell'"),
        (user("a", state="x"), 404, "no such state"),
        (user("a", prompt="b"), 400, "unknown field 'prompt'; known fields: frequency_penalty"),
    ],
    ids=lambda part: repr(part)[:40],
)  # fmt: skip
def test_invalid_chats_get_a_clear_error(body: Any, status: int, message: str) -> None:
    answer = ask(CHAT, body, limits=Limits(prompt_tokens=100, completion_tokens=50, output=10_000))
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_chats_count_like_completions_in_every_limit() -> None:
    """The deadline, the queue, the slots of a client that disconnects, and the size of all outputs."""
    late = ask(CHAT, user("abc", max_tokens=4000), limits=Limits(seconds=0.05)).json()
    assert late["choices"][0]["finish_reason"] == "length" and late["usage"]["completion_tokens"] < 4000

    async def fill(client: httpx.AsyncClient, app: Any) -> list[int]:
        body = user("abc", max_tokens=300)
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(12)))
        return [answer.status_code for answer in answers]

    assert with_client(fill, batch_size=1, max_waiting=3).count(429) >= 6

    async def leave(client: httpx.AsyncClient, app: Any) -> None:
        service = app.state.service
        task = asyncio.ensure_future(client.post(CHAT, json=user("abc", max_tokens=4000, stream=True)))
        while not service.scheduler.running:
            await asyncio.sleep(0.01)
        assert service.output == 4000
        task.cancel()
        until = time.monotonic() + 20
        while (service.scheduler.running or service.output) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert not service.scheduler.running and service.output == 0

    with_client(leave, batch_size=1)


def test_a_large_chat_response_is_not_larger_than_its_computed_size() -> None:
    body = user("abc", max_tokens=200, logprobs=True, top_logprobs=8)
    answer = ask(CHAT, body)
    assert answer.status_code == 200 and len(answer.content) < 60 * 200 * (4 + 2 * 8)
