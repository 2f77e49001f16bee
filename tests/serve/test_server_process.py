"""`stairwell serve` in its own process, used by the openai client."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import httpx
import openai
import pytest

from stairwell.decode import Sampling
from stairwell.generate import generate_text
from tests.serve.conftest import TOKEN, Server, started


def test_the_openai_client_completes_and_streams(server: Server) -> None:
    expected = "".join(generate_text(server.run, "the quick", 20, Sampling(temperature=0), device="cpu"))
    request = {"model": "tiny", "prompt": "the quick", "max_tokens": 20, "temperature": 0}
    whole = server.client.completions.create(**request)
    assert whole.choices[0].text == expected and whole.usage is not None and whole.usage.completion_tokens == 20
    stream = server.client.completions.create(**request, stream=True)
    assert "".join(part.choices[0].text for part in stream) == expected
    assert [model.id for model in server.client.models.list()] == ["tiny"]


def test_the_openai_client_streams_logprobs_and_usage_from_a_state(server: Server) -> None:
    body = {"prompt": "the quick"}
    name = server.client.post("/states", body=body, cast_to=dict)["id"]  # type: ignore[type-var]
    request = {"model": "tiny", "prompt": " brown", "max_tokens": 6, "seed": 3, "logprobs": 2, "n": 2}
    stream = server.client.completions.create(
        **request, extra_body={"state": name}, stream=True, stream_options={"include_usage": True}
    )
    texts, tokens, usage = ["", ""], 0, None
    for part in stream:
        usage = part.usage or usage
        for choice in part.choices:
            texts[choice.index] += choice.text
            tokens += len(choice.logprobs.tokens) if choice.logprobs else 0
    assert usage is not None and usage.completion_tokens == tokens == 12
    whole = server.client.completions.create(**{**request, "prompt": "the quick brown"})
    assert texts == [choice.text for choice in whole.choices]


def test_the_openai_client_raises_its_own_exceptions(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="less than or equal to 255, not 256"):
        server.client.completions.create(model="tiny", prompt=[256])
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        server.client.completions.create(model="other", prompt="a")
    stranger = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.completions.create(model="tiny", prompt="a")


def test_the_page_is_served(server: Server) -> None:
    answer = server.get("/")
    assert answer.status_code == 200 and "TextPage" in answer.text


def test_clients_that_disconnect_leave_nothing_behind(server: Server) -> None:
    body = b'{"prompt": "a", "max_tokens": 4000, "stream": true}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    for cut in (body, body[:20], b""):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode() + cut)
            time.sleep(0.1)
    deadline = time.monotonic() + 30
    while "stairwell_running 0" not in server.get("/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_stopped_server_finishes_the_requests_in_progress(server: Server) -> None:
    """The last test of this file: it stops the server."""
    stream = server.client.completions.create(
        model="tiny", prompt="the quick", max_tokens=400, temperature=0, stream=True
    )
    text = next(stream).choices[0].text
    server.process.send_signal(signal.SIGTERM)
    text += "".join(part.choices[0].text for part in stream)
    assert text == "".join(generate_text(server.run, "the quick", 400, Sampling(temperature=0), device="cpu"))
    server.process.wait(30)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{server.port}/health")


def test_a_second_interrupt_ends_the_server_immediately(tiny_run: Path) -> None:
    with started(tiny_run, "--max-tokens", "200000") as server:
        stream = server.client.completions.create(model="tiny", prompt="the quick", max_tokens=200_000, stream=True)
        next(stream)
        server.process.send_signal(signal.SIGINT)
        while True:  # until the server no longer listens: it waits for the stream
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except ConnectionError:
                break
            time.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 130
        assert server.process.stderr is not None
        assert server.process.stderr.read() == "interrupted; the requests in progress were dropped\n"
