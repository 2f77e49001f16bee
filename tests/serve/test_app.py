"""The endpoints of the server: results equal to those of the model, independent requests, clear errors."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors import SafetensorError

from stairwell import FeedbackConfig, GlobalCachedStaircaseConfig, LanguageModel, LanguageModelConfig, LSTMConfig
from stairwell.decode import Session, greedy
from stairwell.errors import UserError
from stairwell.serve import requests
from stairwell.serve.access import host_of
from stairwell.serve.app import ROUTES, make_app
from stairwell.serve.limits import Limits, RequestError
from stairwell.serve.logits import LogitsProcessor
from stairwell.serve.requests import RequestModels
from stairwell.serve.run_server import application, read_token
from stairwell.serve.state_store import StateStore
from stairwell.stream import Stream, encode
from stairwell.text import BPE, Bytes, Characters, Words

pytestmark = pytest.mark.quick

VOCABULARY = Characters.build(["abcdefg\n"])


def make_model(core: Any = None, inputs: int = VOCABULARY.size) -> LanguageModel:
    torch.manual_seed(0)
    core = core or FeedbackConfig(width=8, heads=2, layers=2, memory=6)
    return LanguageModel(LanguageModelConfig(core=core, inputs=inputs)).eval()


MODEL = make_model()
JSON = {"content-type": "application/json"}


def with_client(use: Callable[[httpx.AsyncClient, Any], Awaitable[Any]], app: Any = None, **options: Any) -> Any:
    """Return what `use` returns for a client of an application; close its scheduler afterwards."""
    app = app or make_app(MODEL, VOCABULARY, **options)

    async def run() -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await use(client, app)

    try:
        return asyncio.run(run())
    finally:
        app.state.service.scheduler.close()


def ask(path: str, body: Any = None, method: str = "POST", **options: Any) -> httpx.Response:
    async def use(client: httpx.AsyncClient, app: Any) -> httpx.Response:
        content = json.dumps(body)  # in ASCII, which can also express surrogates
        return await client.request(method, path, content=content, headers=JSON)

    return with_client(use, **options)


def expected(prompt: str, tokens: int) -> str:
    ids = torch.from_numpy(VOCABULARY.encode(prompt))[None]
    return VOCABULARY.decode(greedy(Session(MODEL, MODEL.init_state(1)), ids, tokens)[0].numpy())


def test_a_greedy_completion_equals_greedy_decoding() -> None:
    answer = ask("/v1/completions", {"model": "stairwell", "prompt": "abc", "max_tokens": 20, "temperature": 0}).json()
    assert answer["choices"][0]["text"] == expected("abc", 20)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}


def test_concurrent_requests_get_the_same_result_as_single_ones() -> None:
    """More sequences than slots, of different lengths, so that the batch changes all the time."""
    prompts = ["abc", "g", "ba" * 9, "fed\n", "cc", "dad", "egg", "face", "bad"]

    async def use(client: httpx.AsyncClient, app: Any) -> list[httpx.Response]:
        bodies = [
            {"prompt": prompt, "max_tokens": 5 + 7 * i, "temperature": 0.9, "seed": i, "stop": ["never so"]}
            for i, prompt in enumerate(prompts)
        ]
        together = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        alone = [await client.post("/v1/completions", json=body) for body in bodies]
        assert app.state.service.scheduler.counts["steps"] < 2 * sum(5 + 7 * i for i in range(9))
        return [*zip(together, alone)]

    for together, alone in with_client(use, batch_size=4):
        assert together.status_code == alone.status_code == 200
        assert together.json()["choices"] == alone.json()["choices"]


def test_a_streamed_completion_equals_an_unstreamed_one() -> None:
    body = {"prompt": ["abc", "de"], "max_tokens": 12, "temperature": 1, "seed": 3, "n": 2}

    async def use(client: httpx.AsyncClient, app: Any) -> Any:
        full = (await client.post("/v1/completions", json=body)).json()
        extra = {"stream": True, "stream_options": {"include_usage": True}}
        texts, reasons, usage = [""] * 4, [None] * 4, None
        async with client.stream("POST", "/v1/completions", json={**body, **extra}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        for line in lines[:-1]:
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage", usage)
            for part in event["choices"]:
                texts[part["index"]] += part["text"]
                reasons[part["index"]] = part["finish_reason"] or reasons[part["index"]]
        assert texts == [choice["text"] for choice in full["choices"]]
        assert reasons == ["length"] * 4 and usage == full["usage"]
        assert len(set(texts)) > 1

    with_client(use)


def test_echo_and_logprobs_score_token_ids() -> None:
    ids = VOCABULARY.encode("abcde").tolist()
    body = {"prompt": [ids, ids[:2]], "max_tokens": 1, "echo": True, "logprobs": 2, "temperature": 0}
    choices = ask("/v1/completions", body).json()["choices"]
    with torch.no_grad():
        log_probs = MODEL(torch.tensor([ids]), MODEL.init_state(1))[0][0].log_softmax(-1)
    logprobs = choices[0]["logprobs"]
    assert choices[0]["text"][:5] == "abcde" and len(choices[0]["text"]) == 6
    assert logprobs["tokens"][:5] == list("abcde") and logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    expected_scores = [float(log_probs[i, token]) for i, token in enumerate(ids[1:])]
    assert logprobs["token_logprobs"][1:5] == pytest.approx(expected_scores, abs=1e-5)
    assert logprobs["token_logprobs"][5] == pytest.approx(float(log_probs[4].max()), abs=1e-5)
    # The two most probable tokens, and the token itself.
    for token, top, before in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], log_probs):
        most_probable = {VOCABULARY.decode([int(i)]) for i in before.topk(2).indices}
        assert set(top) == most_probable | {token}
    scored = ask("/v1/completions", {**body, "max_tokens": 0}).json()["choices"][1]
    assert scored["text"] == "ab" and len(scored["logprobs"]["tokens"]) == 2


def test_all_bits_of_a_seed_count() -> None:
    body = {"prompt": "abc", "max_tokens": 40}
    seeds = [3, 3 + 2**32, 3 + 2**62, -(2**63) + 3]
    texts = {ask("/v1/completions", {**body, "seed": seed}).json()["choices"][0]["text"] for seed in seeds}
    assert len(texts) == len(seeds)


def test_a_stop_string_ends_generation() -> None:
    full = expected("abc", 30)
    stop = full[4:6]
    choice = ask("/v1/completions", {"prompt": "abc", "max_tokens": 30, "temperature": 0, "stop": stop}).json()
    assert choice["choices"][0]["text"] == full[: full.index(stop)]
    assert choice["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"prompt": "xyz"}, 400, "not in the training text"),
        ({}, 400, "'prompt' is missing or empty: give a prompt"),
        ({"prompt": ""}, 400, "'prompt' is missing or empty: give a prompt"),
        ({"prompt": []}, 400, "'prompt' must be a string, a list of token ids"),
        ({"prompt": [["a"]]}, 400, "'prompt[0][0]' must be a valid integer, not 'a'"),
        ({"prompt": ["a", [1]]}, 400, "'prompt[1]' must be a valid string, not a list"),
        ({"prompt": [3, 99]}, 400, "'prompt[1]' must be less than or equal to 7, not 99"),
        ({"prompt": "\ud800"}, 400, "'prompt' is not valid Unicode"),
        ({"prompt": "a" * 101}, 400, "'prompt' must have at most 100 characters"),
        ({"prompt": [1] * 101}, 400, "'prompt' must have at most 100 items"),
        ({"prompt": "a", "max_tokens": -1}, 400, "'max_tokens' must be greater than or equal to 0, not -1"),
        ({"prompt": "a", "max_tokens": 51}, 400, "'max_tokens' must be less than or equal to 50, not 51"),
        ({"prompt": "a", "max_tokens": True}, 400, "'max_tokens' must be a valid integer, not True"),
        ({"prompt": "a", "max_tokens": 1, "max_completion_tokens": 2}, 400, "give one of them"),
        ({"prompt": "a", "temperature": "hot"}, 400, "'temperature' must be a valid number, not 'hot'"),
        ({"prompt": "a", "top_p": 0}, 400, "'top_p' must be greater than 0, not 0"),
        ({"prompt": "a", "stream": 1}, 400, "'stream' must be a valid boolean, not 1"),
        ({"prompt": "a", "stream_options": {"x": 1}}, 400, "unknown field 'x'; known fields: include_obfuscation"),
        ({"prompt": "a", "stop": ["a", ""]}, 400, "'stop[1]' must have at least 1 character"),
        ({"prompt": "a", "n": 1000}, 400, "'n' must be less than or equal to 32, not 1000"),
        ({"prompt": ["a"] * 20, "n": 2}, 400, "more than the 32 sequences allowed per request"),
        ({"prompt": "a", "n": 3, "best_of": 2}, 400, "best_of must be at least n"),
        ({"prompt": "a", "best_of": 2, "stream": True}, 400, "'best_of' above n cannot be streamed"),
        ({"prompt": "a", "logit_bias": {"8": 1}}, 400, "'logit_bias' has token id 8; the largest is 7"),
        ({"prompt": "a", "logit_bias": {"1": 101}}, 400, "'logit_bias.1' must be less than or equal to 100, not 101"),
        ({"prompt": "a", "logit_bias": {str(i): 0 for i in range(301)}}, 400, "at most 300 are allowed"),
        ({"prompt": "a", "presence_penalty": 2.5}, 400, "'presence_penalty' must be less than or equal to 2, not 2.5"),
        ({"prompt": "a", "suffix": "b"}, 400, "'suffix' must be '', not 'b'"),
        ({"prompt": "a", "pickle": "x"}, 400, "unknown field 'pickle'; known fields: best_of, echo"),
        ({"prompt": "a", "\ud800": 1}, 400, "unknown field"),
        ({"prompt": "a", "model": "gpt"}, 404, "there is no model 'gpt'; the model of this server is 'stairwell'"),
        ({"prompt": "a", "model": 3}, 400, "'model' must be 'stairwell', not 3"),
        ({"prompt": "a", "state": "../../etc/passwd"}, 404, "no such state"),
        ([1], 400, "the request body must be a JSON object"),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_invalid_requests_get_a_clear_error(body: Any, status: int, message: str) -> None:
    answer = ask("/v1/completions", body, limits=Limits(prompt_tokens=100, completion_tokens=50))
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_a_long_text_is_rejected_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding takes time and memory. Of several prompts, not even the first one is encoded."""
    encoded: list[str] = []
    monkeypatch.setattr(
        requests, "encode", lambda vocabulary, prompt: encoded.append(prompt) or encode(VOCABULARY, prompt)
    )
    bpe = BPE.build(["abc abc abcabc\n" * 20], 260)
    assert max(bpe.byte_lengths) > 3
    for body in ({"prompt": "a" * 900_000}, {"prompt": ["b", "a" * 101]}, {"prompt": ["a"] * 33}):
        answer = ask("/v1/completions", body, limits=Limits(prompt_tokens=100))
        assert answer.status_code == 400, answer.text
    models, longest = RequestModels("stairwell", bpe, Limits(prompt_tokens=100)), 100 * max(bpe.byte_lengths)
    with pytest.raises(RequestError, match=f"'prompt' must have at most {longest} characters"):
        requests.validate(models.complete, {"prompt": "a" * (longest + 1)})
    assert encoded == []


def test_a_text_of_the_longest_tokens_is_accepted() -> None:
    """The limit on characters allows every text that the limit on tokens allows."""
    bpe = BPE.build(["abc abc abcabc\n" * 20], 260)
    word = max((word for word in ("a", "abc", " abc", "abcabc") if len(bpe.encode(word)) == 1), key=len)
    assert len(word) > 1
    for vocabulary, longest in (
        (bpe, word),
        (Bytes(), "a"),
        (VOCABULARY, "a"),
        (Words.build(["ab"]), "ab" + " " * 1000),
    ):
        limits = Limits(prompt_tokens=50)
        body = requests.validate(RequestModels("stairwell", vocabulary, limits).tokenize, {"prompt": longest * 50})
        assert len(requests.encode_prompt(body.prompt, vocabulary, limits)) == 50


def test_the_output_size_is_limited_before_anything_is_read() -> None:
    body = {"prompt": "a" * 1000, "n": 8, "echo": True, "max_tokens": 0}
    limits = Limits(output=8000)
    assert ask("/v1/completions", body, limits=limits).status_code == 200
    for more in ({"logprobs": 0}, {"logprobs": 5, "n": 2}, {"max_tokens": 1}):
        answer = ask("/v1/completions", {**body, **more}, limits=limits)
        assert answer.status_code == 400 and "at most 8000" in answer.text
    small = ask("/v1/completions", {**body, "n": 1, "logprobs": 5}, limits=limits)
    assert small.status_code == 200 and len(small.content) < 60 * 8000


def test_bodies_that_are_not_json_or_too_large_are_rejected() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        for content, headers, status in (
            (b"{", JSON, 400),
            (b'{"prompt": NaN}', JSON, 400),
            (b"[" * 100_000, JSON, 400),
            (b"{}", {"content-type": "text/plain"}, 415),
            (b" " * 200_000, JSON, 413),
        ):
            answer = await client.post("/v1/completions", content=content, headers=headers)
            assert answer.status_code == status, (content[:20], answer.text)
        assert (await client.get("/v1/completions")).status_code == 405
        assert (await client.get("/nothing")).json()["error"]["code"] == 404
        for host in ("evil.example", "127.0.0.1.evil.example", "1", ""):
            assert (await client.get("/health", headers={"host": host})).status_code == 400
        for host in ("192.168.1.7:8000", "[fe80::1]:8000", "LOCALHOST"):
            assert (await client.get("/health", headers={"host": host})).status_code == 200

    with_client(use, limits=Limits(body_bytes=150_000))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"), ("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/v1/states"), ("GET", "/v1/states/x/save"),
        ("GET", "/nothing"),
    ],
)  # fmt: skip
def test_every_route_requires_the_token(method: str, path: str) -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> list[int]:
        answers = []
        for header in (None, "Bearer wrong", "Bearer", "secret-token", "Bearer secret-token"):
            headers = {"authorization": header} if header else {}
            answers.append((await client.request(method, path, headers=headers, json={"prompt": "a"})).status_code)
        return answers

    statuses = with_client(use, token="secret-token")
    assert statuses[:4] == [401] * 4 and statuses[4] != 401


def test_requests_beyond_the_queue_get_429() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> list[httpx.Response]:
        body = {"prompt": "abc", "max_tokens": 300, "temperature": 1}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(12)))
        again = await client.post("/v1/completions", json=body)
        assert again.status_code == 200
        return answers

    answers = with_client(use, batch_size=1, max_waiting=3)
    statuses = sorted(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429} and statuses.count(429) >= 6
    late = next(answer for answer in answers if answer.status_code == 429)
    assert late.headers["retry-after"] and "sequences are waiting already" in late.json()["error"]["message"]


def test_a_request_ends_at_its_deadline() -> None:
    answer = ask("/v1/completions", {"prompt": "abc", "max_tokens": 4000}, limits=Limits(seconds=0.05)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] < 4000


def test_a_client_that_disconnects_frees_its_slot() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        scheduler = app.state.service.scheduler
        body = {"prompt": "abc", "max_tokens": 4000, "temperature": 1, "stream": True}
        task = asyncio.ensure_future(client.post("/v1/completions", json=body))
        while not scheduler.running:
            await asyncio.sleep(0.01)
        task.cancel()
        until = time.monotonic() + 20
        while scheduler.running and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert not scheduler.running and scheduler.counts["generated_tokens"] < 4000

    with_client(use, batch_size=1)


def test_an_internal_error_ends_requests_but_not_the_server() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        scheduler, body = app.state.service.scheduler, {"prompt": "abc", "max_tokens": 5, "temperature": 0}
        step = scheduler.session.step
        scheduler.session.step = lambda tokens: 1 / 0
        assert (await client.post("/v1/completions", json=body)).status_code == 503
        scheduler.session.step = step
        answer = await client.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == expected("abc", 5)
        assert "stairwell_failed_total 1" in (await client.get("/metrics")).text

    with_client(use)


def test_a_bug_gets_500_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(MODEL, VOCABULARY)
    monkeypatch.setattr(app.state.service.states, "get", lambda id: 1 / 0)

    async def use() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/v1/states/x")).status_code == 500
            assert "stairwell_failed_total 1" in (await client.get("/metrics")).text

    asyncio.run(use())
    app.state.service.scheduler.close()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_time_limits_must_be_finite(seconds: float) -> None:
    for name in ("seconds", "state_seconds"):
        with pytest.raises(UserError, match=f"{name} must be a finite number of seconds, not"):
            Limits(**{name: seconds})  # type: ignore[arg-type]


def test_states_are_fed_forked_cropped_saved_and_restored() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def completed(state: str, prompt: str = "") -> str:
            body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "state": state}
            return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

        made = (await client.post("/v1/states", json={"prompt": "abc"})).json()
        name = made["id"]
        assert made["tokens"] == 3 and await completed(name) == expected("abc", 12)
        fork = (await client.post(f"/v1/states/{name}/fork")).json()["id"]
        assert (await client.post(f"/v1/states/{fork}/feed", json={"prompt": "gg"})).json()["tokens"] == 5
        assert await completed(fork) == expected("abcgg", 12) and await completed(name) == expected("abc", 12)
        assert await completed(name, "gg") == expected("abcgg", 12)
        content = (await client.get(f"/v1/states/{fork}/save")).content
        assert (await client.post(f"/v1/states/{fork}/crop", json={"tokens": 2})).json()["tokens"] == 3
        assert await completed(fork) == expected("abc", 12)
        binary = {"content-type": "application/octet-stream"}
        restored = (await client.post("/v1/states/restore", content=content, headers=binary)).json()
        assert restored["tokens"] == 5 and await completed(restored["id"]) == expected("abcgg", 12)
        assert (await client.delete(f"/v1/states/{name}")).status_code == 204
        assert (await client.get(f"/v1/states/{name}")).status_code == 404
        rejected = await client.post(f"/v1/states/{fork}/crop", json={"tokens": 40})
        assert rejected.status_code == 409 and "cannot crop 40 tokens" in rejected.json()["error"]["message"]
        for damaged in (b"", b"noise", content[:-7], content[:200] + b"\x00" + content[201:]):
            answer = await client.post("/v1/states/restore", content=damaged, headers=binary)
            assert answer.status_code == 400 and "/tmp" not in answer.text, answer.text
        empty = (await client.post("/v1/states", json={})).json()["id"]
        body = {"prompt": "", "state": empty}
        assert (await client.post("/v1/completions", json=body)).status_code == 409

    with_client(use)


def test_states_have_a_quota_and_are_evicted() -> None:
    now = [0.0]
    states = StateStore(MODEL, VOCABULARY, Limits(states=2, state_seconds=10), clock=lambda: now[0])
    first = states.add(states.initial)
    states.add(states.initial)
    with pytest.raises(Exception, match="2 states are stored already"):
        states.add(states.initial)
    now[0] = 9
    states.get(first)
    now[0] = 15
    states.add(states.initial)  # the second state was evicted, the first was used
    states.get(first)
    assert len(states) == 2


def test_a_full_disk_gets_507(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_in_safetensors(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        name = (await client.post("/v1/states", json={"prompt": "abc"})).json()["id"]
        content = (await client.get(f"/v1/states/{name}/save")).content
        binary = {"content-type": "application/octet-stream"}
        for problem in (full, full_in_safetensors):
            monkeypatch.setattr(Stream, "save", problem)
            monkeypatch.setattr(Path, "write_bytes", problem)
            saved = await client.get(f"/v1/states/{name}/save")
            restored = await client.post("/v1/states/restore", content=content, headers=binary)
            for answer in (saved, restored):
                assert answer.status_code == 507 and "no disk space left" in answer.json()["error"]["message"]

    with_client(use)


def test_a_core_without_crop_is_served() -> None:
    app = make_app(make_model(LSTMConfig(width=8, layers=1)), VOCABULARY)

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        name = (await client.post("/v1/states", json={"prompt": "abc"})).json()["id"]
        body = {"prompt": "a", "state": name, "max_tokens": 3}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert (await client.post(f"/v1/states/{name}/crop", json={"tokens": 1})).status_code == 409

    with_client(use, app)


def test_openapi_describes_every_route() -> None:
    described = ask("/openapi.json", method="GET").json()["paths"]
    methods = {path: {name.upper() for name in parts} & {"GET", "POST", "DELETE"} for path, parts in described.items()}
    assert methods == {route.path: set(route.methods or ()) - {"HEAD"} for route in ROUTES}


@pytest.mark.parametrize(
    ("header", "host"),
    [(b"LocalHost:80", "localhost"), (b"127.0.0.1", "127.0.0.1"), (b"[::1]:8000", "::1"), (b"[::1", "::1"), (b"", "")],
)
def test_the_host_is_parsed_without_its_port(header: bytes, host: str) -> None:
    assert host_of(header) == host


def test_a_server_on_all_interfaces_accepts_addresses_and_its_own_names(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Machine")

    def status(host: str, bound: str = "0.0.0.0", allowed: list[str] = []) -> int:  # noqa: B006
        app = application(tiny_run, bound, None, "cpu", 1, 1, Limits(), allowed)

        async def use(client: httpx.AsyncClient, app: Any) -> int:
            return (await client.get("/health", headers={"host": host})).status_code

        return with_client(use, app)

    assert [status("10.0.0.3:8000"), status("[::1]"), status("machine:8000"), status("localhost")] == [200] * 4
    assert [status("evil.example"), status("evil.example", "::"), status("machine", "127.0.0.1")] == [400] * 3
    assert [status("my.example", allowed=["My.example"]), status("any.example", allowed=["*"])] == [200] * 2


def test_a_token_file_has_one_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  a-long-token\n")
    assert read_token(file) == "a-long-token"
    for content in (b"", b"short", b"two words here", b"\xff\xfe\x00long enough", "tökens-are-ascii".encode()):
        file.write_bytes(content)
        with pytest.raises(UserError, match="must have one token"):
            read_token(file)
    with pytest.raises(UserError, match="cannot read the token file"):
        read_token(tmp_path / "none")


def test_waiting_prompts_are_prefilled_together() -> None:
    """In as many calls as there are different lengths."""

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        scheduler, shapes = app.state.service.scheduler, []
        hidden = scheduler.model.hidden
        scheduler.model.hidden = lambda x, state: (shapes.append(tuple(x.shape)), hidden(x, state))[1]
        try:
            body = {"prompt": ["abcd", "ab", "gfed", "abcdefg"], "max_tokens": 0, "echo": True, "logprobs": 1}
            together = (await client.post("/v1/completions", json=body)).json()["choices"]
            assert shapes == [(4, 2), (3, 2), (1, 3)]
        finally:
            del scheduler.model.hidden
        for choice, prompt in zip(together, body["prompt"]):
            alone = (await client.post("/v1/completions", json={**body, "prompt": prompt})).json()["choices"][0]
            assert choice["text"] == alone["text"] == prompt
            scores, scores_alone = (part["logprobs"]["token_logprobs"][1:] for part in (choice, alone))
            assert scores == pytest.approx(scores_alone, abs=1e-5)

    with_client(use, make_app(make_model(), VOCABULARY))


def test_a_request_does_not_inherit_the_options_of_the_one_before() -> None:
    full, seeds = expected("abc", 30), []

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def completed(**options: Any) -> str:
            body = {"prompt": "abc", "max_tokens": 30, **options}
            return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

        assert await completed(temperature=0, stop=[full[4:6]]) == full[: full.index(full[4:6])]
        assert await completed(temperature=0) == full
        assert await completed(temperature=0, repetition_penalty=50) != full
        assert await completed(temperature=0) == full
        seeds.extend([await completed(seed=1), await completed(), await completed(), await completed(seed=1)])

    with_client(use)
    assert len(set(seeds)) == 3 and seeds[0] == seeds[3]


def test_a_fork_and_its_parent_are_independent() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def completed(state: str) -> str:
            body = {"max_tokens": 12, "temperature": 0, "state": state}
            return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

        async def changed(state: str, how: str, **body: Any) -> int:
            return (await client.post(f"/v1/states/{state}/{how}", json=body)).json()["tokens"]

        parent = (await client.post("/v1/states", json={"prompt": "abcde"})).json()["id"]
        fork = (await client.post(f"/v1/states/{parent}/fork")).json()["id"]
        assert fork != parent
        assert await changed(parent, "feed", prompt="gg") == 7 and await completed(fork) == expected("abcde", 12)
        assert await changed(fork, "feed", prompt="f\n") == 7 and await completed(parent) == expected("abcdegg", 12)
        assert await changed(parent, "crop", tokens=4) == 3 and await completed(fork) == expected("abcdef\n", 12)
        assert await changed(fork, "crop", tokens=1) == 6 and await completed(parent) == expected("abc", 12)
        assert (await client.delete(f"/v1/states/{parent}")).status_code == 204
        assert await completed(fork) == expected("abcdef", 12)

    with_client(use)


def test_a_long_state_is_cropped_exactly() -> None:
    """Longer than the memory, and than the stored recent tokens."""
    text = "abcdefg\nbadcafe" * 12
    ids = VOCABULARY.encode(text).tolist()
    with torch.no_grad():
        log_probs = MODEL(torch.tensor([ids]), MODEL.init_state(1))[0][0].log_softmax(-1)

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def scores(state: str) -> list[float]:
            """Return the log-probabilities of two tokens after the state."""
            body = {"state": state, "prompt": "ga", "max_tokens": 0, "echo": True, "logprobs": 0}
            choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
            return choice["logprobs"]["token_logprobs"]

        made = (await client.post("/v1/states", json={"prompt": text})).json()
        assert made["tokens"] == len(ids) > 64 and made["croppable"] == 32
        g = int(VOCABULARY.encode("g")[0])
        left = len(ids)
        for tokens in (1, 1, 7, 23):  # 32 in total
            left -= tokens
            cropped = await client.post(f"/v1/states/{made['id']}/crop", json={"tokens": tokens})
            assert cropped.json()["tokens"] == left
            assert (await scores(made["id"]))[0] == pytest.approx(float(log_probs[left - 1, g]), abs=1e-5)
        assert cropped.json()["croppable"] == 0
        fed = await client.post(f"/v1/states/{made['id']}/feed", json={"prompt": text[left:]})
        assert fed.json()["tokens"] == len(ids)
        assert (await scores(made["id"]))[0] == pytest.approx(float(log_probs[-1, g]), abs=1e-5)

    with_client(use)


def test_sequences_of_one_prompt_prefill_it_once() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": "abcdef", "n": 4, "max_tokens": 5, "seed": 1, "echo": True, "logprobs": 1}
        choices = (await client.post("/v1/completions", json=body)).json()["choices"]
        assert app.state.service.scheduler.counts["prompt_tokens"] == 6
        assert all(choice["text"].startswith("abcdef") for choice in choices) and len({*map(str, choices)}) == 4
        first = [choice["logprobs"]["token_logprobs"][:6] for choice in choices]
        assert first[1:] == first[:-1]

    with_client(use)


def test_a_partial_character_in_the_prompt_is_completed() -> None:
    """The model always predicts the second byte of é."""
    model = make_model(inputs=256)
    with torch.no_grad():
        model.head.bias[0xA9] += 100  # type: ignore[union-attr]
    app = make_app(model, Bytes())

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": [ord("a"), 0xC3], "max_tokens": 1, "temperature": 0}
        assert (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"] == "é"

    with_client(use, app)


def test_text_offsets_count_text_that_a_stop_string_holds_back() -> None:
    full = expected("abc", 8)
    body = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "logprobs": 0, "stop": [full[1:3] + "never"]}
    choice = ask("/v1/completions", body).json()["choices"][0]
    assert choice["text"] == full and choice["logprobs"]["text_offset"] == list(range(8))


def test_generation_stops_at_the_longest_stream_of_a_core() -> None:
    core = GlobalCachedStaircaseConfig(width=8, heads=2, layers=1, chunk=4, compute=1, max_tokens=20)
    app = make_app(make_model(core), VOCABULARY)

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": "abcdefgabc", "max_tokens": 100}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["usage"]["completion_tokens"] == 11 and answer["choices"][0]["finish_reason"] == "length"
        answer = await client.post("/v1/completions", json={"prompt": "abc" * 10})
        assert answer.status_code == 400 and "more than max_tokens=20" in answer.text
        name = (await client.post("/v1/states", json={"prompt": "abcdefgabc"})).json()["id"]
        assert (await client.post(f"/v1/states/{name}/feed", json={"prompt": "abc" * 10})).status_code == 400
        assert (await client.get(f"/v1/states/{name}")).json()["tokens"] == 10
        assert app.state.service.scheduler.counts["failed"] == 0

    with_client(use, app)


def test_tokenize_models_health_and_metrics() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        tokenized = (await client.post("/tokenize", json={"prompt": "abc"})).json()
        assert tokenized["tokens"] == VOCABULARY.encode("abc").tolist() and tokenized["count"] == 3
        assert (await client.post("/detokenize", json={"tokens": tokenized["tokens"]})).json() == {"prompt": "abc"}
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "stairwell"
        assert (await client.get("/v1/models/stairwell")).status_code == 200
        assert (await client.get("/v1/models/other")).status_code == 404
        assert (await client.get("/health")).json()["status"] == "ok"
        metrics = (await client.get("/metrics")).text
        assert "stairwell_requests_total 0" in metrics and "stairwell_states 0" in metrics
        assert "<title>" in (await client.get("/")).text

    with_client(use)


def test_tokens_that_are_not_utf8_are_returned_in_hexadecimal() -> None:
    app = make_app(make_model(inputs=256), Bytes())

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": list("é".encode()), "max_tokens": 0, "echo": True, "logprobs": 0}
        choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
        assert choice["text"] == "é" and choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]

    with_client(use, app)


def post_completions(*bodies: dict[str, Any]) -> list[Any]:
    async def use(client: httpx.AsyncClient, app: Any) -> list[Any]:
        return [(await client.post("/v1/completions", json=body)).json() for body in bodies]

    return with_client(use)


def reference(prompt: str, tokens: int, process: Callable[[torch.Tensor, list[int]], torch.Tensor]) -> str:
    """Decode greedily by the model itself, with processed logits."""
    stream, generated = Stream(MODEL, VOCABULARY), []
    stream.feed(prompt)
    for _ in range(tokens):
        assert stream.logits is not None
        generated.append(int(process(stream.logits, generated).argmax()))
        stream.feed(generated[-1])
    return VOCABULARY.decode(generated)


def test_presence_and_frequency_penalties_follow_the_openai_definition() -> None:
    def penalize(logits: torch.Tensor, generated: list[int]) -> torch.Tensor:
        counts = torch.bincount(torch.tensor(generated, dtype=torch.int64), minlength=len(logits))
        return logits - 0.3 * counts - 0.2 * (counts > 0)

    body = {"prompt": "abc", "max_tokens": 40, "temperature": 0, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    (answer,) = post_completions(body)
    text = answer["choices"][0]["text"]
    assert text == reference("abc", 40, penalize) != expected("abc", 40)


def test_logit_bias_is_added_to_the_logits() -> None:
    a, b = (int(VOCABULARY.encode(letter)[0]) for letter in "ab")

    def add(logits: torch.Tensor, generated: list[int]) -> torch.Tensor:
        return logits.index_add(0, torch.tensor([a, b]), torch.tensor([0.1, -100.0]))

    body = {"prompt": "abc", "max_tokens": 30, "temperature": 0}
    forced, biased = post_completions(
        {**body, "logit_bias": {str(a): 100}}, {**body, "logit_bias": {str(a): 0.1, str(b): -100}, "logprobs": 0}
    )
    assert forced["choices"][0]["text"] == "a" * 30
    assert biased["choices"][0]["text"] == reference("abc", 30, add)
    # The returned log-probabilities are those of the model.
    scores = biased["choices"][0]["logprobs"]["token_logprobs"]
    stream = Stream(MODEL, VOCABULARY)
    stream.feed("abc")
    assert scores[0] == pytest.approx(
        float(stream.log_probabilities()[VOCABULARY.encode(biased["choices"][0]["text"])[0]])
    )


def test_min_p_excludes_improbable_tokens() -> None:
    body = {"prompt": "abc", "max_tokens": 30, "seed": 1}
    greedy, narrow, off, without = post_completions(
        {**body, "temperature": 0}, {**body, "min_p": 1}, {**body, "min_p": 0}, body
    )
    assert narrow["choices"] == greedy["choices"] and off["choices"] == without["choices"] != greedy["choices"]
    logits = torch.tensor([0.0, -1.0, -2.0, -3.0])
    for temperature, count in ((1.0, 2), (2.0, 3), (0.5, 1)):
        processed = LogitsProcessor(min_p=0.3, temperature=temperature)(logits, {})
        probabilities = (logits / temperature).softmax(-1)
        assert processed.isfinite().tolist() == (probabilities >= 0.3 * probabilities.max()).tolist()
        assert int(processed.isfinite().sum()) == count


def test_best_of_returns_the_sequences_with_the_highest_mean_logprob() -> None:
    body = {"prompt": ["abc", "g"], "max_tokens": 8, "seed": 3, "logprobs": 0, "echo": True, "stop": ["d"]}
    everything, best = post_completions({**body, "n": 5}, {**body, "n": 2, "best_of": 5})

    def mean_logprob(choice: dict[str, Any], prompt_tokens: int) -> float:
        scores = choice["logprobs"]["token_logprobs"][prompt_tokens:]
        return sum(scores) / len(scores)

    for i, prompt_tokens in enumerate((3, 1)):
        candidates = everything["choices"][5 * i : 5 * i + 5]
        ranked = sorted(candidates, key=lambda choice: mean_logprob(choice, prompt_tokens), reverse=True)
        assert [choice["text"] for choice in best["choices"][2 * i : 2 * i + 2]] == [c["text"] for c in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"] == everything["usage"], "all generated tokens count"
    without_logprobs = {key: value for key, value in body.items() if key != "logprobs"}
    (same,) = post_completions({**without_logprobs, "n": 2, "best_of": 5})
    assert [choice["text"] for choice in same["choices"]] == [choice["text"] for choice in best["choices"]]
    assert same["choices"][0]["logprobs"] is None


def test_options_of_newer_clients_are_accepted() -> None:
    stream = {"stream": True, "stream_options": {"include_obfuscation": True}}
    assert ask("/v1/completions", {"prompt": "abc", **stream}).status_code == 200
    (answer,) = post_completions({"prompt": "abc", "max_completion_tokens": 7})
    assert answer["usage"]["completion_tokens"] == 7


def test_an_unknown_endpoint_names_the_ones_there_are() -> None:
    answer = ask("/v1/responses", {"input": "abc"})
    assert answer.status_code == 404 and "/v1/chat/completions" in answer.json()["error"]["message"]
    assert "/openapi.json" in ask("/v1/embeddings", {}).json()["error"]["message"]


def test_fields_that_change_nothing_are_ignored() -> None:
    body = {"prompt": "abc", "max_tokens": 9, "temperature": 0}
    ignored = {
        "user": "someone", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "x",
        "prompt_cache_key": "y", "prompt_cache_retention": "24h", "stream_options": None,
    }  # fmt: skip
    plain, more = post_completions(body, {**body, **ignored})
    assert plain["choices"] == more["choices"]


def test_the_openapi_description_has_the_limits_of_the_server() -> None:
    limits = Limits(prompt_tokens=100, completion_tokens=50, sequences=3)
    description = ask("/openapi.json", method="GET", limits=limits).json()
    fields = description["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["max_tokens"]["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 50}
    assert fields["n"]["anyOf"][0]["maximum"] == 3
    string, tokens, strings, token_lists = fields["prompt"]["anyOf"][0]["oneOf"]
    assert string["maxLength"] == tokens["maxItems"] == 100 and strings["maxItems"] == token_lists["maxItems"] == 3
    assert tokens["items"] == {"type": "integer", "minimum": 0, "maximum": VOCABULARY.size - 1}
    assert fields["temperature"]["description"] == "Sampling temperature; 0 is greedy."
    assert description["components"]["schemas"]["CompletionRequest"]["additionalProperties"] is False
