"""The request log and the latency histograms: every request counts once, and no text of a client is in them."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import httpx
import pytest

from stairwell.serve.metrics import Histogram
from stairwell.serve.request_log import MAX_UNWRITTEN, RequestLog
from tests.serve.test_app import MODEL, VOCABULARY, make_app, with_client

pytestmark = pytest.mark.quick

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\S+) ([A-Z]+) (\S+|\(unknown path\)) (\S+) \d+\.\d{3}s(.*)")


def logged(use: Any, **options: Any) -> list[tuple[str, ...]]:
    """Return method, path, status and details of each line."""
    lines: list[str] = []
    app = make_app(MODEL, VOCABULARY, request_log=lines.append, **options)

    async def used(client: httpx.AsyncClient, app: Any) -> None:
        async with app.router.lifespan_context(app):  # its end closes the log
            await use(client)

    with_client(used, app)
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), lines
    return [match.groups()[1:] for match in matches if match]


def test_a_request_is_one_line_without_its_text() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        body = {"prompt": "abcdefg", "max_tokens": 5, "n": 2, "user": "a-secret-name"}
        await client.post("/v1/completions", json=body)
        await client.post("/v1/completions", json={**body, "stream": True})
        await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "g"}]})
        await client.post("/v1/completions", json={"prompt": "secret"})
        state = (await client.post("/v1/states", json={"prompt": "abc"})).json()["id"]
        await client.get(f"/v1/states/{state}")
        await client.get("/secret%0A/path?secret=1")
        await client.get("/health", headers={"host": "secret.example"})

    sequences = " prompt_tokens=7 completion_tokens=10 finish=length"
    assert logged(use) == [
        ("POST", "/v1/completions", "200", sequences),
        ("POST", "/v1/completions", "200", sequences),
        ("POST", "/v1/chat/completions", "200", " prompt_tokens=1 completion_tokens=256 finish=length"),
        ("POST", "/v1/completions", "400", ""),
        ("POST", "/v1/states", "201", ""),
        ("GET", "/v1/states/{id}", "200", ""),
        ("GET", "(unknown path)", "404", ""),
        ("GET", "(unknown path)", "400", ""),
    ]


def test_a_request_that_the_client_leaves_is_logged_as_cancelled() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        body = {"prompt": "abc", "max_tokens": 4000, "stream": True}
        task = asyncio.ensure_future(client.post("/v1/completions", json=body))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    ((method, path, _, details),) = logged(use)
    assert (method, path) == ("POST", "/v1/completions") and details.endswith(" finish=cancelled")


def test_rejected_requests_are_logged_too() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        await client.get("/metrics")

    assert logged(use, token="secret-token") == [("GET", "(unknown path)", "401", "")]


def test_a_blocked_output_of_the_log_does_not_block_the_server() -> None:
    written: list[str] = []
    blocked = threading.Event()

    def write(line: str) -> None:
        blocked.wait(30)
        written.append(line)

    log = RequestLog(write)
    for number in range(MAX_UNWRITTEN + 100):
        log.add(str(number))
    started = time.monotonic()
    log.close(0.1)
    assert time.monotonic() - started < 5
    blocked.set()
    while len(written) < MAX_UNWRITTEN:
        time.sleep(0.01)
    assert sum("lines of the request log were dropped" in line for line in written) == 1


def test_histograms_have_the_text_format_of_prometheus() -> None:
    histogram = Histogram("x_seconds", "Help.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value, path="/a")
    histogram.observe(0.2, path="/b")
    assert list(histogram.lines()) == [
        "# HELP x_seconds Help.",
        "# TYPE x_seconds histogram",
        'x_seconds_bucket{path="/a",le="0.1"} 2',
        'x_seconds_bucket{path="/a",le="1.0"} 3',
        'x_seconds_bucket{path="/a",le="+Inf"} 4',
        'x_seconds_sum{path="/a"} 7.650000',
        'x_seconds_count{path="/a"} 4',
        'x_seconds_bucket{path="/b",le="0.1"} 0',
        'x_seconds_bucket{path="/b",le="1.0"} 1',
        'x_seconds_bucket{path="/b",le="+Inf"} 1',
        'x_seconds_sum{path="/b"} 0.200000',
        'x_seconds_count{path="/b"} 1',
    ]


def test_the_metrics_count_every_request_sequence_and_status() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        await client.post("/v1/completions", json={"prompt": ["abc", "de"], "max_tokens": 5})
        await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1})
        await client.post("/v1/completions", json={})
        await client.get("/nothing/secret")
        text = (await client.get("/metrics")).text
        lines = text.splitlines()
        assert 'stairwell_request_seconds_count{path="/v1/completions",status="200"} 2' in lines
        assert 'stairwell_request_seconds_count{path="/v1/completions",status="400"} 1' in lines
        assert 'stairwell_request_seconds_count{path="other",status="404"} 1' in lines
        assert "stairwell_time_to_first_token_seconds_count 3" in lines
        assert "stairwell_time_per_output_token_seconds_count 2" in lines, "one token has no time between tokens"
        assert "secret" not in text
        for line in lines:
            assert re.fullmatch(r"# (HELP|TYPE) .+|[a-z_]+(\{[^ ]*\})? [0-9.e+-]+", line), line

    with_client(use)
